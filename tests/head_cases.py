"""Heads with best columns, for the tests of each form: ties, padding that would win, logits that are NaN or all -inf."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels import oracle_fused as oracle
from kernels.argmax import NO_TOKEN
from kernels.head import best_of_stripes
from kernels.lang import Kernel
from tests.fused_cases import check, wide_args
from tests.kernel_cases import Launch, floats, live, poisoned, untouched
from tests.storage_cases import stored


def head_case(storage: str, count: int, vocab_size: int, padding: int, depth: int, stripes: int = 3) -> dict[str, Any]:
    """What a head takes, but for what its own form asks. Every third row is NaN from the second on, every third -inf from the
    third on."""
    weight = floats(47, vocab_size + padding, depth)
    weight[vocab_size:] *= 1000  # the padding would win
    weight[[3, vocab_size - 1]] = weight[3] * 4  # ties between columns of different stripes
    rows = floats(48, count + 1, depth)
    rows[1:count:3, 5] = np.nan  # and so every logit
    rows[2:count:3, 5] = -np.inf
    weight[:, 5] = abs(weight[:, 5])
    return {
        "logits": untouched(count + 1, vocab_size + padding),
        "best_value": untouched(stripes, count + 1),
        "best_column": untouched(stripes, count + 1, dtype=np.int32),
        "x": stored(poisoned(rows, count), storage),
        "weight": stored(weight, storage),
        "vocab_size": vocab_size,
        "num_rows": live(count),
    }


def check_head(launch: Launch, kernel: Kernel, args: dict[str, Any], storage: str) -> None:
    """Logits and best columns of a `head_case`, and nothing in the pads."""
    wide, count, vocab_size = wide_args(args), int(args["num_rows"][0]), args["vocab_size"]
    logits = oracle.project_argmax(wide["logits"], wide["x"], wide["weight"], args["num_rows"])
    held = check(launch, kernel, args, {}, storage, wide={"logits": logits})
    assert (held["best_value"][:, count:] == -7).all()
    out = untouched(count + 1, dtype=np.int32)
    launch.run(best_of_stripes, out, held["best_value"], held["best_column"], args["num_rows"])
    best = held["logits"][:count, :vocab_size].argmax(axis=1)
    best[1::3] = best[2::3] = NO_TOKEN
    np.testing.assert_array_equal(out[:count], best)
    assert out[count] == -7
