"""Heads of steps of many rows in the set of operations: where they are offered, and what engines yield with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from graphs.flow_ops import FlowLayout
from graphs.fused_ops import FusedOps
from graphs.key import Family, GraphKey
from graphs.ops import OpTable
from graphs.product_forms import Form, forms_of
from graphs.trace import Trace
from graphs.wide_head_ops import WideHead, wide_head_of
from runtime import assembly
from runtime.models.scratch import with_fast_heads
from tests.test_graphs_ops import PROMPTS, SHAPES, target_of
from tests.test_runtime_engine_logits import Watcher
from tests.tiny_checkpoint import TinyShape, write_tiny_checkpoint
from tests.tiny_drafter import DrafterShape, write_tiny_drafter
from tests.tiny_engine import open_tiny

HEADS: dict[str, Form | None] = {"head": FlowLayout(2, 4, 3), "wide_head": WideHead(2)}


@pytest.mark.parametrize(
    ("outputs", "depth", "expected"),
    [
        (151936, 4096, WideHead(132)),  # Qwen3-8B: 792 tiles
        (49152, 576, WideHead(128)),  # SmolLM2-135M: 256 tiles
        (25152, 576, None),  # fewer tiles than multiprocessors
        (151937, 4096, None),  # no whole eights
        (151936, 4100, None),
    ],
)
def test_layouts(outputs: int, depth: int, expected: WideHead | None) -> None:
    assert wide_head_of(outputs, depth) == expected


@pytest.mark.parametrize(
    ("capability", "offered"),
    [((8, 9), []), ((9, 0), ["head", "wide_head"]), ((10, 0), ["head"])],
)
def test_a_gpu_is_offered_what_it_has_instructions_for(capability: tuple[int, int], offered: list[str]) -> None:
    fused, spec = FusedOps(*[None] * 2), SimpleNamespace(vocab_size=151936, hidden_size=4096)  # type: ignore[arg-type]
    device = SimpleNamespace(facts=SimpleNamespace(compute_capability=capability))
    every = {"head": FlowLayout(8, 8, 132), "wide_head": WideHead(132)}
    assert with_fast_heads(fused, spec, device).layouts == {name: every[name] for name in offered}  # type: ignore[arg-type]


def test_it_is_no_form_of_a_layer() -> None:
    known = [form for name in ("qkv", "out", "gate_up", "down") for form in forms_of(name, 151936, 4096)]
    assert not any(isinstance(form, WideHead) for form in known)


@pytest.fixture
def with_heads(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    build = assembly.build_ops

    def build_with_heads(*args: Any, **options: Any) -> tuple[OpTable, str]:
        table, said = build(*args, **options)
        ((rows, fused),) = table.few
        assert isinstance(fused, FusedOps)
        return replace(table, few=((rows, replace(fused, layouts=HEADS)),)), said

    return lambda: monkeypatch.setattr(assembly, "build_ops", build_with_heads)


def traces_of(engine: Any) -> dict[GraphKey, Trace]:
    traces: dict[GraphKey, Trace] = engine.runner.library.traces
    return traces


def kernels_of(engine: Any, family: Family) -> set[str]:
    """Of the graphs of more than eight token rows."""
    found = [trace for key, trace in traces_of(engine).items() if key.family is family and key.num_tokens > 8]
    return {node.name for trace in found for node in trace.nodes}


def test_logits_of_many_rows(tmp_path: Path, with_heads: Callable[[], None]) -> None:
    """Every logits row against the whole sequence computed anew; 16 rows in a verify step."""
    with_heads()
    model = write_tiny_checkpoint(tmp_path, SHAPES["qwen3-head-norm"])
    with open_tiny(model.path, graphs__ops="fused", runner__async=False) as engine:
        ops = target_of(engine).ops.for_rows(16)
        assert isinstance(ops, FusedOps)
        assert ops.layouts == HEADS
        watcher = Watcher(engine, model)
        watcher.run(PROMPTS, max_tokens=6)
        assert "wide_head" in kernels_of(engine, Family.VERIFY)


def test_drafts_are_picked_by_the_targets_own_head(tmp_path: Path, with_heads: Callable[[], None]) -> None:
    """As many answers of the same tokens as without, by 12 picks of four requests and by three of one."""
    shape = TinyShape(seed=3, num_layers=3, attention_scale=0.3, num_likely_ids=5)
    model = write_tiny_checkpoint(tmp_path / "model", shape)
    drafter = write_tiny_drafter(tmp_path / "drafter", shape, DrafterShape(taps=(0, 1)))
    settings: dict[str, Any] = {"speculator__method": "dflash", "speculator__draft_source": str(drafter.path)}
    prompts = [[3, 5, 7], [4, 9], [8, 3, 6, 5], [11]]
    answers, accepted = [], []
    for ours in (False, True):
        if ours:
            with_heads()
        with open_tiny(model.path, graphs__ops="fused" if ours else "plain", **settings) as engine:
            answers.append([output.token_ids for output in engine.generate(prompts)])
            answers[-1] += [output.token_ids for output in engine.generate(prompts[:1])]
            accepted.append(engine.scheduler.acceptance.num_accepted_tokens)
            assert ("wide_head" in kernels_of(engine, Family.PROPOSE)) == ours
            of_one = {node.name for trace in traces_of(engine).values() for node in trace.nodes}
            assert ("flow_argmax" in of_one) == ours
    assert answers[0] == answers[1]
    assert accepted[0] == accepted[1] > 0
