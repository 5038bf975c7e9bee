"""Requests in the simulator: the shipped router over modelled engines, workloads and delays."""
