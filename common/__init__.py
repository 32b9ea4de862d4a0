"""Code that all implementations share: specifications, data, timing and results. It imports no framework."""
