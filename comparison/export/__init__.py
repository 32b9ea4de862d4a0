"""The files of a comparison beside its runs, a module for each format."""
