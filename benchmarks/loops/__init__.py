"""Loops that runs are compared with, a file for each framework; they return the seconds of a number of steps.

`make_limit` makes a bare loop: the training step on one batch that is already in memory as the network's input.
`make_usual` makes that of an independent program, which trains on MNIST as the framework's documentation teaches.
"""
