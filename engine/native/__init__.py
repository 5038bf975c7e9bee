"""The decoder compiled for this machine's CPU, where a C++ compiler is at hand."""
