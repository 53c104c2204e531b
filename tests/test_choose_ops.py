"""What is remembered of a choice of operations, and what is made of it; the measurement itself runs on the virtual device."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from graphs.cache_age import DAY_SECONDS, mark_used, prune
from graphs.compile_cache import kernel_cache_dir
from graphs.cpu_executor import CpuExecutor
from graphs.flow_ops import FlowLayout
from graphs.fused_ops import FusedOps
from graphs.ops import HeadOps, OpTable
from graphs.plain_ops import PlainOps
from graphs.product_forms import forms_of
from graphs.tile_layouts import layouts_of
from runtime import forward_rig
from runtime.models import choose_ops
from runtime.models.choose_forms import Places
from runtime.models.choose_ops import OpsChooser, choice_file, table_of
from runtime.models.choose_pass import measured_pass, requests_of
from runtime.models.measured_ops import Measured, read_measured, write_measured
from runtime.models.scratch import allocate_scratch, build_ops
from runtime.models.spec import ModelSpec
from runtime.step_buffers import StepSizes
from runtime.virtual_device import VirtualDevice
from tests.storage_cases import stored
from tests.test_bench_kernels import tiny

KEY = {"device": "a GPU", "rows": [1, 8]}
FIRST = {"down": 0, "gate_up": 0, "out": 0, "qkv": 0}
LARGE, LARGEST = (6144, 4096), (24576, 4096)
FORMS = forms_of("qkv", *LARGE)
ALGORITHMS = dict.fromkeys(("down", "gate_up", "head", "out", "qkv"), "")
MEASURED = Measured(
    [1, 8],
    [10.0, 30.0],
    [20.0, 20.0],
    [5.0, 5.0],
    [4.0, 6.0],
    [FIRST | {"qkv": 2, "gate_up": len(forms_of("gate_up", *LARGE)) - 1}, FIRST],
    [ALGORITHMS | {"head": "00ff"}, ALGORITHMS],
)
SIZES = StepSizes(2, 7, 64, 16, 16, 1)


def test_what_was_measured_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "choices" / "a.json"
    assert read_measured(path, KEY) is None
    write_measured(path, KEY, MEASURED)
    assert read_measured(path, KEY) == MEASURED
    assert [file.name for file in path.parent.iterdir()] == ["a.json"]


def test_a_choice_is_remembered_for_as_long_as_the_kernels_of_its_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTGRAPH_CACHE", str(tmp_path))
    own, others = choice_file(KEY), tmp_path / "kernels" / ("0" * 16) / "choices" / choice_file(KEY).name
    for path in (own, others):
        write_measured(path, KEY, MEASURED)
        mark_used(path.parent.parent)
    assert prune(tmp_path / "kernels", kernel_cache_dir().name, 30) == []
    later = time.time() + 31 * DAY_SECONDS
    monkeypatch.setattr(time, "time", lambda: later)
    assert prune(tmp_path / "kernels", kernel_cache_dir().name, 30) == [others.parent.parent]
    assert read_measured(own, KEY) == MEASURED


def damaged(change: Callable[[dict[str, Any]], None]) -> str:
    content = {"key": KEY, "measured": MEASURED.__dict__ | {}}
    content = json.loads(json.dumps(content))
    change(content)
    return json.dumps(content)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "\x00\xff",
        damaged(lambda content: content.update(key={"device": "another GPU", "rows": [1, 8]})),
        damaged(lambda content: content.pop("measured")),
        damaged(lambda content: content["measured"].pop("rows")),
        damaged(lambda content: content["measured"].update(rows=[])),
        damaged(lambda content: content["measured"].update(rows=[1, 4])),
        damaged(lambda content: content["measured"].update(fused_head=[1.0])),
        damaged(lambda content: content["measured"].update(fused_head=[1.0, None])),
        damaged(lambda content: content["measured"].update(fused_head=[1.0, -1.0])),
        damaged(lambda content: content["measured"].update(fused_head=[1.0, float("nan")])),
        damaged(lambda content: content["measured"].update(fused_head="ab")),
        damaged(lambda content: content["measured"].update(layouts=[FIRST, 3])),
        damaged(lambda content: content["measured"].update(layouts=[FIRST, {"qkv": 0}])),
        damaged(lambda content: content["measured"].update(layouts=[FIRST, FIRST | {"qkv": -1}])),
        damaged(lambda content: content["measured"].update(layouts=[FIRST, FIRST | {"qkv": "0"}])),
        damaged(lambda content: content["measured"].pop("algorithms")),
        damaged(lambda content: content["measured"].update(algorithms=[ALGORITHMS, {"qkv": ""}])),
        damaged(lambda content: content["measured"].update(algorithms=[ALGORITHMS, ALGORITHMS | {"qkv": "0"}])),
        damaged(lambda content: content["measured"].update(algorithms=[ALGORITHMS, ALGORITHMS | {"qkv": 0}])),
    ],
)
def test_a_damaged_file_is_ignored_with_a_log_line(tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text, encoding="latin-1")
    with caplog.at_level(logging.WARNING):
        assert read_measured(path, KEY) is None
    assert "measured anew" in caplog.text
    assert str(path) in caplog.text


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "choices").write_text("a file")
    with caplog.at_level(logging.WARNING):
        write_measured(tmp_path / "choices" / "a.json", KEY, MEASURED)
    assert "cannot be kept" in caplog.text


def sets_of(device: VirtualDevice, spec: ModelSpec) -> tuple[FusedOps, PlainOps]:
    table, _ = build_ops(device, spec, SIZES, "bfloat16", on_gpu=True)
    fused = table.for_rows(1)
    assert isinstance(fused, FusedOps)
    assert isinstance(table.many, PlainOps)
    return fused, table.many


def test_each_row_count_gets_what_was_fastest() -> None:
    device = VirtualDevice(CpuExecutor(), poison=True)
    fused, library = sets_of(device, tiny("qwen3-8b"))
    large = device.array("large", LARGE, np.uint16)
    layer = SimpleNamespace(qkv=large, out=large, gate_up=large, down=large)
    table, said = table_of(MEASURED, fused, library, layer)  # type: ignore[arg-type]
    one, eight = table.for_rows(1), table.for_rows(2)
    assert isinstance(one, HeadOps)
    assert isinstance(eight, HeadOps)
    assert isinstance(one.layers, FusedOps)
    assert one.layers.layouts["qkv"] == layouts_of("qkv", 6144, 4096)[2] != layouts_of("qkv", 6144, 4096)[0]
    assert one.layers.layouts["gate_up"] is None
    assert one.layers.layouts["out"] == layouts_of("out", 6144, 4096)[0]
    assert eight.layers is library
    assert isinstance(one.head, FusedOps)
    assert isinstance(eight.head, FusedOps)
    assert one.head.stripes is library.stripes is not None
    assert eight.head.stripes is None
    assert table.for_rows(8) is eight
    assert table.for_rows(9) is library
    assert said == "measured, layers + head up to so many rows: 1 fused but gate_up + library; 8 library + fused; library above"


def test_weights_do_not_flow_where_they_would_be_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    flowing = next(place for place, form in enumerate(FORMS) if isinstance(form, FlowLayout))
    assert fastest_form(monkeypatch, 8, {flowing: 0.5}) == flowing
    assert fastest_form(monkeypatch, 16, {flowing: 0.5}) == 0


def test_products_of_many_rows_begin_between_the_librarys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between tiles that read their weights eight times a form would be measured in a step that nobody takes."""
    neighbours: list[list[Places]] = []

    def fastest(forms: Mapping[str, Sequence[int]], first: Places, measure: Any) -> Places:
        neighbours.append([first, {name: max(places) for name, places in forms.items()}])
        return first

    monkeypatch.setattr(choose_ops, "fastest_places", fastest)
    for rows in (8, 16):
        fastest_form(monkeypatch, rows, {})
    (few, _), (many, last) = neighbours
    assert few == FIRST
    assert many == last != FIRST


@pytest.mark.parametrize(
    ("capability", "few", "many"),
    [((8, 0), set(), set()), ((9, 0), {"FlowLayout"}, {"WideLayout"}), ((10, 0), {"FlowLayout"}, set())],
)
def test_forms_whose_instructions_a_gpu_lacks_are_not_measured(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], few: set[str], many: set[str]
) -> None:
    """There they are the source that all machines share, which takes a start seconds to be found slow."""
    kinds: list[set[str]] = []

    def fastest(forms: Mapping[str, Sequence[int]], first: Places, measure: Any) -> Places:
        known = {name: forms_of(name, *LARGEST) for name in forms}
        kinds.append({type(known[name][place]).__name__ for name, places in forms.items() for place in places})
        return first

    monkeypatch.setattr(choose_ops, "fastest_places", fastest)
    for rows in (8, 16):
        fastest_form(monkeypatch, rows, {}, capability, LARGEST)
    anywhere = {"Layout", "NoneType"}
    assert kinds == [anywhere | few, anywhere | many]


def fastest_form(
    monkeypatch: pytest.MonkeyPatch,
    rows: int,
    times: dict[int, float],
    capability: tuple[int, int] = (9, 0),
    shape: tuple[int, int] = LARGE,
) -> int:
    """The place chosen for qkv where its forms take these times, and others 1."""

    def measure(device: Any, stream: Any, records: dict[str, Callable[[], None]], *, turns: int) -> dict[str, list[float]]:
        return {name: [times.get(int(name.split("'qkv': ")[1].split("}")[0]), 1.0)] * turns for name in records}

    fused, _ = sets_of(VirtualDevice(CpuExecutor(), poison=True), tiny("qwen3-8b"))
    layer = SimpleNamespace(**dict.fromkeys(FIRST, SimpleNamespace(shape=shape, nbytes=1)))
    device = SimpleNamespace(facts=SimpleNamespace(compute_capability=capability))
    chooser = OpsChooser(device, SimpleNamespace(layers=[layer]), None)  # type: ignore[arg-type]
    monkeypatch.setattr(choose_ops, "times_in_turn", measure)
    run: Any = SimpleNamespace(launch=None, num_tokens=rows)
    return chooser._fastest_forms(run, fused)["qkv"]


@pytest.mark.parametrize(
    ("rows", "requests", "contexts"),
    [(1, 1, [33]), (8, 1, [33]), (16, 2, [33, 33]), (12, 2, [33, 33]), (64, 2, [3, 3])],
)
def test_a_step_is_measured_as_the_engine_has_it(rows: int, requests: int, contexts: list[int]) -> None:
    """Verify steps of requests in the middle of their sequences, in blocks of their own; long ones from their beginning on."""
    device = VirtualDevice(CpuExecutor(), poison=True)
    sizes = StepSizes(2, 7, 48, 64, 16, 1)
    cache = SimpleNamespace(shape=(6, 16, 2, 64))
    model: Any = SimpleNamespace(layers=[SimpleNamespace(k_cache=cache)])
    run = measured_pass(device, device.stream("s"), model, None, sizes, rows, [])  # type: ignore[arg-type]
    step, inputs = run.step, run.step.inputs
    starts, live = device.download(inputs.query_start_loc), device.download(inputs.live)
    assert list(live) == [rows, requests, rows]
    assert requests_of(rows, sizes) == requests == len(starts) - 1
    positions, of_row = device.download(step.positions), device.download(step.token_slot)
    tables, places = device.download(run.state.block_tables), device.download(step.slot_mapping)
    longest = max(np.diff(starts))
    assert inputs.query_len == (rows // requests if len({*np.diff(starts)}) == 1 else 0)
    for request in range(requests):
        own = positions[starts[request] : starts[request + 1]]
        context = max(min(48 - longest, 6 // requests * 16 - longest), 0)
        assert list(own) == [min(context + i, 47) for i in range(len(own))]
    assert set(of_row) == set(range(requests))
    np.testing.assert_array_equal(places, tables[of_row, positions // 16] * 16 + positions % 16)
    if longest < 48:
        assert len(set(tables.reshape(-1))) == tables.size


def test_a_second_start_remembers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whole: every record runs on the virtual device, with its race detector; then nothing is measured again."""
    monkeypatch.setenv("DRAFTGRAPH_CACHE", str(tmp_path))
    device: Any = VirtualDevice(CpuExecutor(), poison=True)
    device.facts = SimpleNamespace(compute_capability=(9, 0))
    rng, spec = np.random.default_rng(1), tiny("qwen3-8b")

    def fill(array: Any, scale: float) -> None:
        device.upload(array, stored((rng.standard_normal(array.shape) * scale).astype(np.float32), "bfloat16"))

    monkeypatch.setattr(forward_rig, "fill_normal", fill)
    model = forward_rig.random_model(device, spec, "bfloat16", 8, 64)
    fused, library = sets_of(device, spec)
    runs: list[str] = []

    def turns_of(device: Any, stream: Any, records: dict[str, Callable[[], None]], *, turns: int = 1) -> dict[str, list[float]]:
        for name, record in records.items():
            record()
            stream.synchronize()
            runs.append(name)
        return {name: [float(i + 1)] * turns for i, name in enumerate(records)}

    def measure(device: Any, stream: Any, records: dict[str, Callable[[], None]]) -> dict[str, float]:
        return {name: turns[0] for name, turns in turns_of(device, stream, records).items()}

    used: list[tuple[int, dict[str, str]]] = []
    monkeypatch.setattr(choose_ops, "measure_in_turn", measure)
    monkeypatch.setattr(choose_ops, "times_in_turn", turns_of)
    monkeypatch.setattr(choose_ops, "measured_algorithms", lambda device, run: ALGORITHMS | {"qkv": f"{run.num_tokens:02x}"})
    monkeypatch.setattr(choose_ops, "use_algorithms", lambda run, chosen: used.append((run.num_tokens, dict(chosen))))
    scratch = allocate_scratch(device, spec, SIZES, "bfloat16")
    device.upload(scratch.residual, np.ones(scratch.residual.shape, np.float32))
    first = OpsChooser(device, model, scratch)(fused, library, SIZES)
    every = 4 * 2 + 4  # ours and the library's of each product; the library's is taken for slower and not measured again
    whole = ["fused_layers", "fused_head", "library_layers", "library_head"]  # no head behind another: it would be read from L2
    assert len(runs) == (every + len(whole)) * 5  # 1, 2, 4, 8 and 16 rows
    assert [name for name in runs if name in whole] == whole * 5
    assert all("1" not in name for name in runs[8:12])
    chosen = [(rows, ALGORITHMS | {"qkv": f"{rows:02x}"}) for rows in (1, 2, 4, 8, 16)]
    assert used == chosen
    again: tuple[OpTable, str] = OpsChooser(device, model, scratch)(fused, library, SIZES)
    assert len(runs) == 80
    assert again == first
    assert used == chosen * 2
    assert "16 fused + fused" in first[1]
