"""The demonstration: three real nodes on this machine, one workload, several routing policies."""
