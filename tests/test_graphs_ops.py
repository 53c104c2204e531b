"""The sets of operations against each other and against a plain NumPy forward, through whole engines on the cpu executor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphs.arrays import DecoderShape
from graphs.fused_ops import FusedOps, why_not_fused
from graphs.ops import OpTable
from graphs.plain_ops import PagedAttention, PlainOps
from graphs.step_attention import pair_tiles, step_form
from graphs.tile_layouts import Layout, layouts_of, stripes_of
from graphs.transformer import DecoderTarget
from kernels.lang import Kernel
from kernels.project import norm_gate_up, norm_project_two, project_residual
from kernels.project_small import norm_gate_up_small, norm_project_small
from runtime import assembly
from runtime.engine import Engine
from runtime.errors import ConfigError
from runtime.sampling import SamplingParams
from tests.test_runtime_engine_logits import Watcher
from tests.tiny_checkpoint import TinyModel, TinyShape, write_tiny_checkpoint
from tests.tiny_engine import LOOPING, open_tiny

SHAPES = {
    "llama": TinyShape(),
    "llama-looping": LOOPING,
    "llama-head-64": TinyShape(head_dim=64),
    "qwen2-bias": TinyShape("qwen2", tied=True),
    "qwen3-head-norm": TinyShape("qwen3"),
}
PROMPTS = [[5, 9, 5, 9, 5, 9, 5], [7], [3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TinyModel]:
    made: dict[str, TinyModel] = {}

    def make(name: str) -> TinyModel:
        if name not in made:
            made[name] = write_tiny_checkpoint(Path(tmp_path_factory.mktemp(name)), SHAPES[name])
        return made[name]

    return make


def target_of(engine: Engine) -> DecoderTarget:
    target = engine.runner._target  # type: ignore[attr-defined]
    assert isinstance(target, DecoderTarget)
    return target


def use_library(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Engines that open from now on have the fused set with these products of the library."""
    build = assembly.build_ops

    def build_with_library(*args: Any, **options: Any) -> tuple[OpTable, str]:
        table, said = build(*args, **options)
        ((rows, fused),) = table.few
        assert isinstance(fused, FusedOps)
        return replace(table, few=((rows, replace(fused, layouts=dict.fromkeys(names))),)), said

    monkeypatch.setattr(assembly, "build_ops", build_with_library)


@pytest.mark.parametrize("names", [("qkv",), ("out", "gate_up"), ("down", "gate_up"), ("qkv", "out", "gate_up", "down")], ids=str)
@pytest.mark.parametrize("name", ["qwen2-bias", "qwen3-head-norm"])
def test_products_of_the_library_yield_the_same(
    models: Callable[[str], TinyModel], monkeypatch: pytest.MonkeyPatch, name: str, names: tuple[str, ...]
) -> None:
    model = models(name)
    use_library(monkeypatch, *names)
    with open_tiny(model.path, graphs__ops="fused", runner__async=False) as engine:
        ops = target_of(engine).ops.for_rows(1)
        assert isinstance(ops, FusedOps)
        assert list(ops.layouts) == list(names)
        watcher = Watcher(engine, model)
        watcher.run(PROMPTS, max_tokens=6)
    assert watcher.kinds["decode"] > 0


@pytest.mark.parametrize("numerics", ["fast", "batch_invariant"])
@pytest.mark.parametrize("name", SHAPES)
def test_fused_logits_are_those_of_the_reference(models: Callable[[str], TinyModel], name: str, numerics: str) -> None:
    """Prefill, decode and accepted drafts, ragged batches: every logits row against the whole sequence computed anew."""
    model = models(name)
    with open_tiny(model.path, graphs__ops="fused", numerics=numerics, runner__async=False) as engine:
        assert isinstance(target_of(engine).ops.for_rows(1), FusedOps)
        watcher = Watcher(engine, model)
        watcher.run(PROMPTS, max_tokens=12)
    assert watcher.kinds["prefill"] == len(PROMPTS)
    assert watcher.kinds["decode"] > 0
    assert watcher.kinds["accepted draft"] > 5 or name != "llama-looping"


def logits_of_rows(engine: Engine, prompts: list[list[int]], max_tokens: int) -> dict[tuple[int, ...], bytes]:
    """Logits, bit for bit, behind each sequence of tokens that the engine committed to, by that sequence."""
    seen: dict[tuple[int, ...], bytes] = {}
    plans: list[Any] = []
    launch = engine.runner.launch

    def remember(plan: Any) -> Any:
        plans.append(plan)
        return launch(plan)

    engine.runner.launch = remember  # type: ignore[method-assign]
    submitted = [engine.submit(prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True)) for prompt in prompts]
    generations = {generation.request.request_id: generation for generation in submitted}
    while engine.has_unfinished:
        before = {name: generation.request.num_tokens for name, generation in generations.items()}
        engine.step()
        logits = engine.runner.device.download(target_of(engine).scratch.logits)  # type: ignore[attr-defined]
        row = 0
        for planned in plans.pop().rows:
            request = generations[planned.request_id].request
            tokens = (*request.prompt_token_ids, *request.output_token_ids)
            for i in range(0 if planned.is_prefilling else len(tokens) - before[planned.request_id]):
                seen[tokens[: before[planned.request_id] + i]] = logits[row + i].tobytes()
            row += 1 + planned.num_drafts
    return seen


def test_batch_invariant_logits_do_not_depend_on_company_or_drafts(models: Callable[[str], TinyModel]) -> None:
    """Bit for bit: three requests together with drafts, against each alone without."""
    model = models("llama-looping")
    settings: dict[str, Any] = {"numerics": "batch_invariant", "runner__async": False}
    with open_tiny(model.path, k=3, **settings) as engine:
        together = logits_of_rows(engine, PROMPTS, 12)
    compared = 0
    for prompt in PROMPTS:
        with open_tiny(model.path, k=0, **settings) as engine:
            for tokens, row in logits_of_rows(engine, [prompt], 12).items():
                if tokens in together:
                    assert row == together[tokens], f"{len(tokens)} tokens"
                    compared += 1
    assert compared > 20


@pytest.mark.parametrize("dtype", [pytest.param("float16", marks=pytest.mark.slow), "bfloat16"])
def test_fused_and_plain_agree_in_sixteen_bits(
    models: Callable[[str], TinyModel], monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    """A CPU refuses 16-bit models only because it is slow with them; here it stands in for the GPU."""
    monkeypatch.setattr("runtime.blueprint.weight_dtype", lambda config, kind: dtype)
    logits: dict[str, np.ndarray] = {}
    for ops in ("plain", "fused", "library"):
        set_of = "plain" if ops == "plain" else "fused"
        if ops == "library":
            use_library(monkeypatch, "qkv", "out", "gate_up", "down")
        with open_tiny(models("llama-head-64").path, k=0, graphs__ops=set_of, runner__async=False) as engine:
            engine.generate([PROMPTS[2]], SamplingParams(max_tokens=1))
            logits[ops] = engine.runner.device.download(target_of(engine).scratch.logits)[0]  # type: ignore[attr-defined]
    scale = np.abs(logits["plain"]).max()
    for ops in ("fused", "library"):
        difference = np.abs(logits[ops] - logits["plain"]).max() / scale
        assert 0 < difference < {"float16": 4e-3, "bfloat16": 3e-2}[dtype]


def test_what_a_machine_without_a_gpu_takes(models: Callable[[str], TinyModel]) -> None:
    with open_tiny(models("llama").path) as engine:
        ops = target_of(engine).ops
        assert ops.for_rows(1) == ops.for_rows(512) == PlainOps(PagedAttention())


def test_plain_above_the_few_rows(models: Callable[[str], TinyModel]) -> None:
    with open_tiny(models("llama").path, graphs__ops="fused") as engine:
        ops = target_of(engine).ops
        assert isinstance(ops.for_rows(64), FusedOps)
        assert isinstance(ops.for_rows(65), PlainOps)


def test_batch_invariant_refuses_the_plain_set(models: Callable[[str], TinyModel]) -> None:
    with pytest.raises(ConfigError, match=r"graphs\.ops = plain: numerics = batch_invariant needs the fused set"):
        open_tiny(models("llama").path, graphs__ops="plain", numerics="batch_invariant")


def test_why_not_fused_names_the_size() -> None:
    shape = DecoderShape(576, 1536, 9, 3, 64, 49152, 1e-5)
    half = np.dtype(np.float16)
    assert why_not_fused(shape, half) is None
    assert "head_dim = 80" in str(why_not_fused(DecoderShape(576, 1536, 9, 3, 80, 49152, 1e-5), half))
    assert "hidden_size = 580" in str(why_not_fused(DecoderShape(580, 1536, 9, 3, 64, 49152, 1e-5), half))
    assert why_not_fused(DecoderShape(580, 1536, 9, 3, 80, 49152, 1e-5), np.dtype(np.float32)) is None


@pytest.mark.parametrize(
    ("outputs", "depth", "slabs", "expected"),
    [
        (960, 576, None, Layout(9, 1, 9, 120, small=True)),  # SmolLM2-135M: q, k, v; out; gate and up; down
        (576, 576, None, Layout(9, 1, 9, 72, small=True)),
        (3072, 576, 2, Layout(5, 2, 5, 192, small=True)),
        (576, 1536, None, Layout(8, 1, 8, 72, small=True)),
        (6144, 4096, None, Layout(5, 2, 5, 384, spread=True)),  # Qwen3-8B
        (4096, 4096, None, Layout(5, 2, 5, 256, spread=True)),
        (24576, 4096, 2, Layout(5, 2, 5, 384, spread=True)),
        (4096, 12288, None, Layout(5, 2, 5, 256, spread=True)),
        (128, 64, None, Layout(1, 1, 4, 4, small=True)),
    ],
)
def test_layout_of_products(outputs: int, depth: int, slabs: int | None, expected: Layout) -> None:
    assert Layout.of(outputs, depth, slabs=slabs) == expected


def test_large_products_have_layouts_to_choose_from() -> None:
    """The usual one comes first: it is what batch_invariant takes."""
    for name, outputs, depth in (("qkv", 6144, 4096), ("out", 4096, 4096), ("gate_up", 24576, 4096), ("down", 4096, 12288)):
        known = layouts_of(name, outputs, depth)
        assert known[0] == Layout.of(outputs, depth)
        assert known[0].spread
        assert [(layout.parts, layout.spread) for layout in known[:3]] == [(5, True), (5, False), (4, True)]
        assert len(known) == len(set(known)) == (4 if name == "gate_up" else 3)


def test_layouts_of_small_products() -> None:
    """SmolLM2-135M's, and q, k, v of more columns than are under way at once."""
    assert layouts_of("qkv", 960, 576) == [Layout(3, 2, 3, 60, small=True)]
    assert layouts_of("gate_up", 3072, 576) == [Layout(5, 2, 5, 192, small=True), Layout(3, 2, 3, 192, small=True)]
    assert layouts_of("gate_up", 96, 64) == [Layout(1, 2, 4, 2, small=True)]
    assert layouts_of("down", 576, 1536) == [Layout(8, 1, 8, 72, small=True)]
    assert layouts_of("qkv", 960, 2048) == [Layout(5, 2, 5, 60, small=True)]


@pytest.mark.parametrize(
    ("layout", "kernel", "launched"),
    [
        (layouts_of("qkv", 960, 576)[0], norm_project_two, norm_project_small),
        (layouts_of("gate_up", 3072, 576)[0], norm_gate_up, norm_gate_up_small),
        (layouts_of("down", 576, 1536)[0], project_residual, project_residual),
        (layouts_of("gate_up", 24576, 4096)[1], norm_gate_up, norm_gate_up),
    ],
)
def test_small_products_have_kernels_of_their_own(layout: Layout, kernel: Kernel, launched: Kernel) -> None:
    assert layout.kernel(kernel) is launched


def test_stripes_share_the_head_evenly() -> None:
    assert stripes_of(49152) == 384  # two groups of four tiles each
    assert stripes_of(151936) == 396


def test_one_set_records_every_step_of_its_table() -> None:
    ops = PlainOps(PagedAttention())
    assert OpTable(ops).for_rows(1) is OpTable(ops).for_rows(4096) is ops


@pytest.mark.parametrize(
    ("rows", "requests", "num_heads", "num_kv_heads", "expected"),
    [
        (1, 1, 9, 3, (8, 4)),
        (1, 2, 9, 3, (8, 4)),
        (8, 1, 9, 3, (4, 8)),
        (1, 8, 9, 3, (4, 8)),
        (8, 8, 9, 3, (2, 8)),
        (1, 1, 32, 8, (4, 8)),
        (8, 1, 32, 8, (4, 8)),
        (1, 8, 32, 8, (2, 8)),
        (8, 8, 32, 8, (1, 8)),
        (8, 64, 32, 8, (1, 8)),
    ],
)
def test_clusters_grow_smaller_where_there_are_many(
    rows: int, requests: int, num_heads: int, num_kv_heads: int, expected: tuple[int, int]
) -> None:
    assert step_form((pair_tiles(rows, num_heads, num_kv_heads), num_kv_heads, requests)) == expected
