"""`rumormill doctor`: what can be checked of a machine before or while it runs a node."""
