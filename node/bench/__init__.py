"""Benchmarks of a running mesh, and of the engine alone."""
