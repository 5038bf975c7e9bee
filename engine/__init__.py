"""The paged-attention engine."""
