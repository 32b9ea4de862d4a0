"""Ways to start this project's programs on a cluster: job files for Slurm and LSF, a module for Flyte.

They only start programs that also run without them.
"""
