"""The base layer: errors, command lines, files, and facts about a process and its machine."""
