"""The ground: errors, command lines, files, and what a process finds out about itself and its machine."""
