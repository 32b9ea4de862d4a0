"""Ways to start this project's programs on a cluster: job files for Slurm and LSF, modules for Ray and Flyte.

They only start programs that also run without them.
"""
