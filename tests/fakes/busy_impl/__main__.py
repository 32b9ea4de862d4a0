from fake_training import run

# Other programs seem to use the cores in the first round.
run("busy", others=lambda config: 0.5 * (config.run_dir.parent.name == "round-1"))
