"""The HTTP door: an OpenAI-compatible API, health and metrics."""
