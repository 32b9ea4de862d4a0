"""What a run leaves behind: the clock, what is recorded, and the files of a run folder."""
