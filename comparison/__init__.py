"""The parts of compare.py: they run implementations, check the lockstep and make tables. They import no framework.

In a notebook: `comparison.load(DIR)`.
"""

from comparison.loading import Comparison as Comparison
from comparison.loading import load as load
