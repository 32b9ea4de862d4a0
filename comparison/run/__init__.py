"""Makes the runs, here or on a cluster, and reads the files that they leave."""
