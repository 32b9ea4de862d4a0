from fake_training import run

# Others are at work in the first round and, for ever, with seed 1.
run("busy", others=lambda config: 0.5 * (config.run_dir.parent.name == "round-1" or config.seed == 1))
