"""The engine on CUDA: one decoder on PyTorch, with Triton kernels and CUDA graphs where they can be had."""
