"""Recording a run: its clock, its measurements, and the files of its run folder."""
