# A copy of another implementation, in which one has forgotten to change the name.
from fake_training import run

run("one")
