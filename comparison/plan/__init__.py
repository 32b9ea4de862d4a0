"""What is to be run: the options, the request that is stored, and the list of runs."""
