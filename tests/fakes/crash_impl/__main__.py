import sys

print("about to crash")
sys.exit("the reason of the crash")
