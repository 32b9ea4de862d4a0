from fake_training import run

run("parted", loss_factor=1.001)
