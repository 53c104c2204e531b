"""On which GPUs a form of a product is more than the source that all machines share: elsewhere it need not be measured."""

from __future__ import annotations

from graphs.flow_ops import FlowLayout
from graphs.wide_head_ops import WideHead
from graphs.wide_ops import WideLayout
from kernels.lang_overlap import HOPPER, warp_groups_at


def has_own_form(form: object, compute_capability: tuple[int, int]) -> bool:
    """Does a GPU of this capability have instructions that the form was made for? form: a layout; None, the library's product, runs
    anywhere."""
    if isinstance(form, WideLayout | WideHead):
        return warp_groups_at(compute_capability)
    return compute_capability >= HOPPER if isinstance(form, FlowLayout) else True
