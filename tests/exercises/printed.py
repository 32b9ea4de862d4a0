"""Reads the lines that all three classical programs print."""

import re

EPOCH = re.compile(r"^epoch +\d+: test accuracy ([\d.]+)%, [\d,]+ images/s$", re.MULTILINE)
LAST = re.compile(r"^test accuracy ([\d.]+)%, [\d,]+ images/s in the last epoch, [\d.]+ s of training$", re.MULTILINE)


def accuracies(output):
    """The test accuracies in percent, one per epoch. The output must have one final line, with the last accuracy."""
    found = EPOCH.findall(output)
    assert LAST.findall(output) == found[-1:], output
    return [float(percent) for percent in found]
