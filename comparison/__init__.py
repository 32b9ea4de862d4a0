"""What compare.py is made of: running implementations, checking the lockstep, tables. Imports no framework.

In a notebook: `comparison.load(DIR)`.
"""

from comparison.loading import Comparison as Comparison
from comparison.loading import load as load
