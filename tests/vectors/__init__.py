"""Vectors: inputs and expected outputs in JSON, run through the real kernels and host functions by one adapter."""
