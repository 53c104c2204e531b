"""The engine on a GPU: the tokens of the NumPy reference in float32, those of plain decoding in batch_invariant bfloat16, whatever
the mode, policy, order or delay."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.device import open_device
from runtime.draft_lengths import ScriptedLengths
from runtime.engine import Engine
from runtime.sampling import SamplingParams
from tests.spin import delay
from tests.tiny_checkpoint import TinyShape
from tests.tiny_engine import LOOPING, Arrival, Reference, check_outputs, count_steady_steps, drive, open_tiny, tiny_reference

pytestmark = pytest.mark.gpu

SHAPES = {
    "llama": LOOPING,
    "qwen2": TinyShape(architecture="qwen2", seed=5),
    "qwen3": TinyShape(architecture="qwen3", seed=6, tied=True),
}
BFLOAT16: dict[str, Any] = {"model__dtype": "bfloat16", "numerics": "batch_invariant"}
MODES: list[dict[str, Any]] = [
    {"graphs__mode": "eager"},
    {"runner__async": False},
    {"mirror__policy": "integrated"},
    {"mirror__policy": "integrated", "graphs__mode": "eager"},
    {"runner__steps_in_flight": 4},
    {"graphs__buckets": [4], "graphs__token_buckets": [32]},
    {"scheduler__max_num_seqs": 1},
]
ARRIVALS = [
    Arrival([5, 6, 7, 8, 5, 6, 7, 8, 5, 6], SamplingParams(max_tokens=30, ignore_eos=True), 0),
    Arrival([40, 41, 42], SamplingParams(max_tokens=25), 0),
    Arrival(list(range(10, 45)), SamplingParams(max_tokens=20), 2),  # longer than a step: prefilled in chunks beside decode rows
    Arrival([9], SamplingParams(max_tokens=40, min_tokens=5), 3),
    Arrival([3, 3, 3, 3], SamplingParams(max_tokens=12, ignore_eos=True), 3),
    Arrival([77, 78], SamplingParams(max_tokens=1), 9),
]


@pytest.fixture(scope="module", params=list(SHAPES))
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return tiny_reference(tmp_path_factory.mktemp(request.param), SHAPES[request.param])


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return tiny_reference(tmp_path_factory.mktemp("llama"), LOOPING)


def open_gpu(model: Any, k: int = 3, **overrides: Any) -> Engine:
    return open_tiny(model, k=k, on=open_device("cuda", poison=True), device="cuda", **overrides)


@pytest.mark.parametrize("k", [0, 3])
def test_tokens_are_the_references(reference: Reference, k: int) -> None:
    with open_gpu(reference.model.path, k) as engine:
        check_outputs(reference, engine, ARRIVALS, drive(engine, ARRIVALS))


@pytest.mark.parametrize(
    "overrides", MODES, ids=lambda overrides: " ".join(f"{key}={value}" for key, value in overrides.items())
)
def test_every_mode_gives_the_same_tokens(llama: Reference, overrides: dict[str, Any]) -> None:
    with open_gpu(llama.model.path, **overrides) as engine:
        check_outputs(llama, engine, ARRIVALS, drive(engine, ARRIVALS))


@pytest.fixture(scope="module")
def wide_heads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads of 64, which the operations of 16 bits want."""
    return tiny_reference(tmp_path_factory.mktemp("wide"), replace(LOOPING, head_dim=64)).model.path


@pytest.fixture(scope="module")
def plain_bfloat16(wide_heads: Path) -> list[tuple[int, ...]]:
    """What every batch_invariant engine must give, bit for bit: one request at a time, no drafts."""
    with open_gpu(wide_heads, 0, **BFLOAT16) as engine:
        return [engine.generate([list(arrival.prompt)], arrival.params)[0].token_ids for arrival in ARRIVALS]


@pytest.mark.parametrize(
    ("k", "overrides"),
    [(0, {}), (1, {}), (7, {}), (3, {}), *((3, mode) for mode in MODES)],
    ids=lambda value: "usual" if value == {} else str(value),
)
def test_batch_invariant_bfloat16_is_plain_decoding(
    wide_heads: Path, plain_bfloat16: list[tuple[int, ...]], k: int, overrides: dict[str, Any]
) -> None:
    """Batched, drafted or alone, in every mode: the same bits, so the same tokens."""
    with open_gpu(wide_heads, k, **(BFLOAT16 | overrides)) as engine:
        outputs = drive(engine, ARRIVALS)
    assert [output.token_ids for output in outputs] == plain_bfloat16
    if k:
        assert sum(output.acceptance.num_accepted_tokens for output in outputs if output.acceptance is not None) > 0


DRAFTER = {"speculator__method": "dflash", "speculator__draft_source": "random:dflash2?block=8"}


@pytest.mark.parametrize("counts", [{1: 5, 2: 2, 3: 0}, "auto"], ids=["table", "auto"])
@pytest.mark.parametrize("speculator", [{}, DRAFTER], ids=["ngram", "dflash2"])
def test_lengths_that_change_from_step_to_step_change_no_bit(speculator: dict[str, Any], counts: Any) -> None:
    """By a table, plain steps among them, or by what pays; a drafter that pauses goes on."""
    with open_gpu(Path("random:tiny"), 0, **BFLOAT16) as engine:
        plain = [engine.generate([list(arrival.prompt)], arrival.params)[0].token_ids for arrival in ARRIVALS]
    settings = BFLOAT16 | speculator | {"speculator__num_speculative_tokens": counts}
    with open_gpu(Path("random:tiny"), 3, **settings) as engine:
        if counts != "auto":
            engine.scheduler.lengths = ScriptedLengths([5, 0, 0, 2, 5, 5, 0, 2, 0, 5])
        assert [output.token_ids for output in drive(engine, ARRIVALS)] == plain


@pytest.mark.parametrize("policy", ["discrete", "integrated"])
@pytest.mark.parametrize("slow", ["compute.copy", "compute.replay", "compute.launch", "copy.copy"])
def test_delays_change_nothing(llama: Reference, slow: str, policy: str) -> None:
    """A millisecond of nothing ahead of uploads, graphs, admissions or downloads."""
    with open_gpu(llama.model.path, mirror__policy=policy) as engine:
        runner: Any = engine.runner
        stream, method = slow.split(".")
        delay(getattr(runner, stream), method, runner.device.array("sink", (1,), np.int32))
        check_outputs(llama, engine, ARRIVALS, drive(engine, ARRIVALS))


def test_a_steady_step_waits_for_one_event_and_no_stream(llama: Reference, record_property: Any) -> None:
    with open_gpu(llama.model.path) as engine:
        drive(engine, ARRIVALS)
        generation = engine.submit([5, 6, 7, 8, 5, 6, 7], SamplingParams(max_tokens=40, ignore_eos=True))
        counted = count_steady_steps(engine)
        assert generation.output is None, "the request ended before the steps did"
        record_property("stream synchronisations in 5 steady steps", counted.stream_synchronizes)


def test_info_names_the_gpu_and_the_blocks_come_from_its_memory(llama: Reference) -> None:
    settings = {"scheduler__num_blocks": "auto", "scheduler__max_num_seqs": 4}
    with open_gpu(llama.model.path, **settings) as engine:
        info = engine.info()
        assert engine.runner.device.name in info["device"]  # type: ignore[attr-defined]
        assert info["scheduler"]["num_blocks"] == 4 * 16
        assert info["memory_bytes"]["device"] > 0


def test_close_gives_the_memory_back(llama: Reference) -> None:
    """Of several times one must cost nothing: other processes take and give memory of the same GPU, but what an engine keeps is
    gone every time. CUDA keeps a little for its next graphs; one cuBLAS workspace that stayed would be 64 MiB."""
    probe = open_device("cuda")
    lost = []
    while len(lost) < 8 and (not lost or min(lost) > 2**24):
        with open_gpu(llama.model.path):
            pass
        before = probe.free_bytes()
        for _ in range(3):
            with open_gpu(llama.model.path):
                pass
        lost.append(before - probe.free_bytes())
    assert min(lost) <= 2**24
    probe.close()
