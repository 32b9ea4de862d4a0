"""What all three classical programs print."""

import re

EPOCH = re.compile(r"^epoch +\d+: test accuracy ([\d.]+)%, [\d,]+ images/s$", re.MULTILINE)
LAST = re.compile(r"^test accuracy ([\d.]+)%, [\d,]+ images/s in the last epoch, [\d.]+ s of training$", re.MULTILINE)


def accuracies(output):
    """In percent, after each epoch; there must be one last line, and it must tell the last of them."""
    found = EPOCH.findall(output)
    assert LAST.findall(output) == found[-1:], output
    return [float(percent) for percent in found]
