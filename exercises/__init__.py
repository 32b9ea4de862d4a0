"""Activities of a course on distributed training: programs to read and to fill in, and a checker of the answers."""
