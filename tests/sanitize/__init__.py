"""Kernels of a speculative step under compute-sanitizer: each by itself, and copies with a race planted in them."""
