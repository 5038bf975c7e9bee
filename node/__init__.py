"""Composition: request pipeline, forwarding, servers, command line."""
