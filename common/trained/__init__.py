"""Uses a trained network: the framework-free part of `python -m <implementation> evaluate` and `predict`."""
