"""Data sets: their sources, their file formats, and the arrays they are read into."""
