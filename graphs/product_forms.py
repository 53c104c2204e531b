"""The forms that products of our own have, and on which GPUs each is more than the source that all machines share."""

from __future__ import annotations

from graphs.flow_ops import FlowLayout, flow_layouts_of
from graphs.held_ops import HeldLayout
from graphs.tile_layouts import Layout, layouts_of
from graphs.wide_head_ops import WideHead
from graphs.wide_ops import WideLayout, wide_layouts_of
from kernels.lang_overlap import HOPPER, warp_groups_at

Form = Layout | FlowLayout | WideLayout | HeldLayout | WideHead
"""How a product of our own is laid out."""


def forms_of(name: str, outputs: int, depth: int) -> list[Form | None]:
    """The forms of a product to choose from: our layouts, those for large weights, those for many rows, and last the library's
    product."""
    shape = name, outputs, depth
    return [*layouts_of(*shape), *flow_layouts_of(*shape), *wide_layouts_of(*shape), None]


_LITTLE_SHARED = (12, 0)
"""Compute capability from which on a block has 99 KiB of shared memory again, in place of Hopper's 227."""


def has_own_form(form: Form | None, compute_capability: tuple[int, int]) -> bool:
    """Does a GPU of this capability have the instructions, and the shared memory, that a form was made for? Elsewhere it need not
    be measured. form: None, the library's product, runs anywhere."""
    if isinstance(form, WideLayout | WideHead):
        return warp_groups_at(compute_capability)
    return HOPPER <= compute_capability < _LITTLE_SHARED if isinstance(form, FlowLayout) else True
