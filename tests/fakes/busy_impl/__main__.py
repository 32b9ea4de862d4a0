from fake_training import run

# Other programs seem to use the cores in the first round, and in every round with seed 1.
run("busy", others=lambda config: 0.5 * (config.run_dir.parent.name == "round-1" or config.seed == 1))
