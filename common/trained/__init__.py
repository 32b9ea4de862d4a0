"""A trained network put to use: `python -m <implementation> evaluate` and `predict`, without the framework."""
