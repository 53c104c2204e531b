"""Wide products in the set of operations: where they are offered, what an engine yields with them, and who never takes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from graphs.fused_ops import FusedOps
from graphs.ops import OpTable
from graphs.product_forms import forms_of
from graphs.wide_ops import WideLayout, wide_layouts_of
from runtime import assembly
from tests.test_graphs_ops import PROMPTS, SHAPES, target_of
from tests.test_runtime_engine_logits import Watcher
from tests.tiny_checkpoint import write_tiny_checkpoint
from tests.tiny_engine import open_tiny


@pytest.mark.parametrize(
    ("name", "outputs", "depth", "expected"),
    [
        ("gate_up", 24576, 4096, [WideLayout(128)]),  # Qwen3-8B
        ("gate_up", 49168, 4096, [WideLayout(257)]),  # more tiles than multiprocessors
        ("gate_up", 3072, 576, []),  # SmolLM2-135M: too few tiles
        ("gate_up", 24584, 4096, []),
        ("down", 4096, 12288, [WideLayout(132, 6)]),
        ("out", 4096, 4096, []),  # over before its sums are added up
        ("down", 576, 1536, []),
        ("qkv", 24576, 4096, []),
    ],
)
def test_layouts(name: str, outputs: int, depth: int, expected: list[WideLayout]) -> None:
    assert wide_layouts_of(name, outputs, depth) == expected
    assert [form for form in forms_of(name, outputs, depth) if isinstance(form, WideLayout)] == expected


@pytest.mark.parametrize(
    "others",
    [
        {"gate_up": WideLayout(1)},
        {"gate_up": WideLayout(1), "out": None},
        {"gate_up": WideLayout(1), "out": None, "qkv": None, "down": None},
        {"gate_up": WideLayout(1), "out": WideLayout(3, 3), "qkv": None, "down": WideLayout(2, 2)},
        {"out": WideLayout(6, 6), "down": WideLayout(1, 1)},
    ],
    ids=str,
)
def test_an_engine_with_wide_products_yields_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: dict[str, WideLayout | None]
) -> None:
    """Every logits row against the whole sequence computed anew: the norm in front is whole, whoever adds to the residual."""
    build = assembly.build_ops

    def build_with_wide(*args: Any, **options: Any) -> tuple[OpTable, str]:
        table, said = build(*args, **options)
        ((rows, fused),) = table.few
        assert isinstance(fused, FusedOps)
        return replace(table, few=((rows, replace(fused, layouts=others)),)), said

    monkeypatch.setattr(assembly, "build_ops", build_with_wide)
    model = write_tiny_checkpoint(tmp_path, SHAPES["qwen3-head-norm"])
    with open_tiny(model.path, graphs__ops="fused", runner__async=False) as engine:
        ops = target_of(engine).ops.for_rows(1)
        assert isinstance(ops, FusedOps)
        assert ops.layouts == others
        watcher = Watcher(engine, model)
        watcher.run(PROMPTS, max_tokens=6)
    assert watcher.kinds["decode"] > 0


def test_batch_invariant_takes_no_wide_products(tmp_path: Path) -> None:
    """Its sums have another order than those of the tiles that it takes for every number of rows."""
    model = write_tiny_checkpoint(tmp_path, SHAPES["llama"])
    with open_tiny(model.path, numerics="batch_invariant") as engine:
        table = target_of(engine).ops
        sets = [table.for_rows(rows) for rows in (1, 8, 9, 64, 65, 512)]
    assert [ops.layouts for ops in sets if isinstance(ops, FusedOps)] == [{}] * 6
