"""Products whose weights flow in the set of operations: where they are offered, and what an engine yields with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from graphs.flow_ops import FlowLayout, flow_layouts_of
from graphs.fused_ops import FusedOps
from graphs.held_ops import HeldLayout, head_layout_of
from graphs.ops import OpTable
from graphs.product_forms import forms_of
from kernels.flow import MOST_COLUMNS
from runtime import assembly
from tests.test_graphs_ops import PROMPTS, SHAPES, target_of
from tests.test_runtime_engine_logits import Watcher
from tests.tiny_checkpoint import write_tiny_checkpoint
from tests.tiny_engine import open_tiny


@pytest.mark.parametrize(
    ("name", "outputs", "depth", "expected"),
    [
        ("qkv", 6144, 4096, [FlowLayout(8, 8, 132)]),  # Qwen3-8B
        ("gate_up", 24576, 4096, [FlowLayout(8, 8, 132), FlowLayout(8, 8, 132, slabs=True)]),
        ("head", 151936, 4096, [FlowLayout(8, 8, 132)]),
        ("down", 4096, 12288, []),  # more columns than eight warps hold
        ("head", 49152, 960, [FlowLayout(2, 8, 132)]),  # SmolLM2-360M
        ("gate_up", 3072, 576, []),  # small
        ("qkv", 6144, 4104, []),  # no whole lines
    ],
)
def test_layouts(name: str, outputs: int, depth: int, expected: list[FlowLayout]) -> None:
    found = flow_layouts_of(name, outputs, depth)
    assert found == expected
    assert [form for form in forms_of(name, outputs, depth) if isinstance(form, FlowLayout)] == expected
    assert all(layout.parts * MOST_COLUMNS >= depth for layout in found)


@pytest.mark.parametrize(
    ("outputs", "depth", "expected"),
    [
        (49152, 576, HeldLayout(8, 132)),  # SmolLM2-135M
        (8192, 576, HeldLayout(8, 64)),
        (4096, 576, None),  # small
        (151936, 4096, FlowLayout(8, 8, 132)),  # Qwen3-8B
        (49152, 584, None),  # no whole lines
    ],
)
def test_heads(outputs: int, depth: int, expected: HeldLayout | FlowLayout | None) -> None:
    assert head_layout_of(outputs, depth) == expected


def test_a_held_head_is_no_form_of_a_layer() -> None:
    """Its kernel yields best columns, and takes no sums of squares."""
    known = [form for name in ("qkv", "out", "gate_up", "down") for form in forms_of(name, 49152, 576)]
    assert not any(isinstance(form, HeldLayout) for form in known)


FLOWS = FlowLayout(2, 4, 3)


@pytest.mark.parametrize(
    "layouts",
    [
        dict.fromkeys(("qkv", "out", "gate_up", "down", "head"), FLOWS),
        {"gate_up": FLOWS, "head": HeldLayout(4, 3)},
        {"gate_up": replace(FLOWS, slabs=True)},
        {"out": FLOWS},
        {"head": HeldLayout(8, 50)},  # fewer stripes than blocks
    ],
    ids=lambda layouts: "-".join(layouts),
)
@pytest.mark.parametrize("model_name", ["qwen2-bias", "qwen3-head-norm"])
def test_an_engine_with_products_whose_weights_flow_yields_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layouts: dict[str, FlowLayout | HeldLayout], model_name: str
) -> None:
    """Every logits row against the whole sequence computed anew."""
    build = assembly.build_ops

    def build_with_flow(*args: Any, **options: Any) -> tuple[OpTable, str]:
        table, said = build(*args, **options)
        ((rows, fused),) = table.few
        assert isinstance(fused, FusedOps)
        return replace(table, few=((rows, replace(fused, layouts=layouts)),)), said

    monkeypatch.setattr(assembly, "build_ops", build_with_flow)
    model = write_tiny_checkpoint(tmp_path, SHAPES[model_name])
    with open_tiny(model.path, graphs__ops="fused", runner__async=False) as engine:
        ops = target_of(engine).ops.for_rows(1)
        assert isinstance(ops, FusedOps)
        assert ops.layouts == layouts
        watcher = Watcher(engine, model)
        watcher.run(PROMPTS, max_tokens=6)
    assert watcher.kinds["decode"] > 0
