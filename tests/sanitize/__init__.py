"""Kernels of a speculative step under compute-sanitizer: each by itself, and with its barriers taken away."""
