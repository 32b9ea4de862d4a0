"""What the implementations share: specifications, data, timing and results. Imports no framework."""
