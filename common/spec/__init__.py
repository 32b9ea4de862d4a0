"""What is trained: options, networks, update rule, and which examples make up a batch."""
