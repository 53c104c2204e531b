"""A head that is held in registers, against the oracle of the others: each executor and storage type, ragged shapes, pads."""

from __future__ import annotations

import pytest

from kernels.held import HELD_COLUMNS
from kernels.held_head import held_argmax
from tests.fused_cases import forms
from tests.head_cases import check_head, head_case
from tests.kernel_cases import Launch


@forms((2, 3), (1, 8), (5, 2))
@pytest.mark.parametrize(
    ("count", "vocab_size", "padding"),
    [
        (1, 21, 3),
        (3, 240, 0),  # several tiles of a warp, and of a stripe
        (17, 77, 8),  # rows beyond eight: the first tile once more
        (9, 124, 4),
        (0, 20, 0),
    ],
)
def test_held_argmax(launch: Launch, storage: str, count: int, vocab_size: int, padding: int) -> None:
    check_head(launch, held_argmax, head_case(storage, count, vocab_size, padding, HELD_COLUMNS), storage)
