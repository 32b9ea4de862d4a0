"""Checks that the rows are the same training, and that each row learns."""
