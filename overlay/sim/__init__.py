"""The simulator: the shipped core under a virtual clock."""
