"""What the implementations are measured against: programs of one framework each, with the options of a run."""
