from fake_training import run

run("fewer", test_count_less=1)
