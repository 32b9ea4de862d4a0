"""Benchmarks: how close each implementation comes to its framework's limit. Each script runs alone; see docs."""
