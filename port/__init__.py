"""Checks whether a network written for several frameworks is the same network in each; see docs/porting.md."""
