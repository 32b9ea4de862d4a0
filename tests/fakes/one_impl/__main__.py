from fake_training import run

run("one")
