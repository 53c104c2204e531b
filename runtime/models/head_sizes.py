"""Widths of what a projection yields for heads, of a target and of a drafter."""

from __future__ import annotations


class HeadSizes:
    """Base of specs that have heads. Sizes count elements of one token."""

    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def qkv_size(self) -> int:
        return self.q_size + 2 * self.kv_size
