"""Meshes in containers, and what is done to them: faults, delays, a running workload."""
