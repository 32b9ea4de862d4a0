"""Data sets: where they come from, their file formats, and the arrays that they become."""
