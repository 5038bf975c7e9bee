"""Transports, codec, discovery and the driver that feeds the core."""
