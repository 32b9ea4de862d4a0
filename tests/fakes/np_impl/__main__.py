from common.main import main

main("np")
