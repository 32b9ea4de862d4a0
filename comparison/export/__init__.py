"""Exports the results of a comparison, with one module for each format."""
