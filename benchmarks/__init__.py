"""Benchmarks: how near each implementation is to what its framework can do. Each script runs alone; see docs."""
