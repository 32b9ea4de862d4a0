from fake_training import run

run("two")
