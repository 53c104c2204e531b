"""GraphLibrary: capture largest first, replay by key, hooks around each launch, and eager mode that does the same work."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graphs.arrays import SlotState, StepArrays
from graphs.key import Family, GraphKey
from graphs.launch import Launcher
from graphs.library import GraphLibrary, Mode, StepGraph
from runtime.runner import Runner
from runtime.sampling import SamplingParams
from runtime.virtual_device import VirtualDevice
from tests.tiny_engine import EXECUTOR, LOOPING, open_tiny, tiny_reference

KEYS = [GraphKey.uniform(1, 3), GraphKey.mixed(2, 40), GraphKey.uniform(4, 3), GraphKey.propose(2)]


class Shop:
    """A library whose graphs fill an array with a number of their own, on a device that notes the order of captures."""

    def __init__(self, mode: Mode = "graph") -> None:
        self.device = VirtualDevice(EXECUTOR)
        self.out = self.device.array("out", (2,), np.int32)
        self.recorded: list[GraphKey] = []
        self.calls: list[tuple[str, GraphKey]] = []
        self.refuse: type[Exception] | None = None
        recorders = dict.fromkeys((Family.MIXED, Family.VERIFY, Family.PROPOSE), self.record)
        self.library = GraphLibrary(self.device.stream("compute"), recorders, mode, self.before, self.after)

    def record(self, launch: Launcher, key: GraphKey) -> None:
        self.recorded.append(key)
        launch.fill(self.out, key.num_tokens)

    def before(self, graph: StepGraph) -> None:
        self.calls.append(("before", graph.key))
        if self.refuse is not None:
            raise self.refuse("stale")

    def after(self, graph: StepGraph) -> None:
        self.calls.append(("after", graph.key))


def test_capture_goes_from_the_largest_down_and_once_a_key() -> None:
    shop = Shop()
    seen: list[tuple[int, int]] = []
    shop.library.capture([*KEYS, *KEYS], lambda done, total: seen.append((done, total)))
    assert list(shop.library.graphs) == [KEYS[1], KEYS[2], KEYS[0], KEYS[3]]
    assert seen == [(0, 4), (1, 4), (2, 4), (3, 4)]
    first = dict(shop.library.graphs)
    shop.library.capture([*KEYS, GraphKey.mixed(2, 8)])
    assert {key: shop.library.graphs[key] for key in first} == first
    assert len(shop.library.graphs) == 5
    assert shop.library.capture_seconds > 0


@pytest.mark.parametrize("mode", ["graph", "eager"])
def test_launch_runs_the_graph_of_the_key_between_its_hooks(mode: Mode) -> None:
    shop = Shop(mode)
    shop.library.capture(KEYS)
    assert shop.calls == []
    shop.recorded.clear()
    for key in (KEYS[2], KEYS[1], KEYS[2]):
        shop.library.launch(key)
        assert shop.device.download(shop.out).tolist() == [key.num_tokens] * 2
    assert shop.calls == [(hook, key) for key in (KEYS[2], KEYS[1], KEYS[2]) for hook in ("before", "after")]
    assert shop.library.launches == {KEYS[2]: 2, KEYS[1]: 1}
    assert shop.recorded == ([] if mode == "graph" else [KEYS[2], KEYS[1], KEYS[2]])
    assert shop.device.counters.graph_launches == (3 if mode == "graph" else 0)


def test_a_refused_launch_queues_and_counts_nothing() -> None:
    shop = Shop()
    shop.library.capture(KEYS)
    shop.device.upload(shop.out, [7, 7])
    shop.refuse = RuntimeError
    with pytest.raises(RuntimeError, match="stale"):
        shop.library.launch(KEYS[1])
    assert shop.device.download(shop.out).tolist() == [7, 7]
    assert shop.calls == [("before", KEYS[1])]
    assert not shop.library.launches


def test_a_key_that_was_not_captured_is_an_error() -> None:
    shop = Shop()
    shop.library.capture(KEYS[:2])
    with pytest.raises(KeyError):
        shop.library.launch(KEYS[2])
    shop.library.close()
    shop.library.close()
    with pytest.raises(KeyError):
        shop.library.launch(KEYS[1])


def test_graphs_know_what_they_read_and_write() -> None:
    shop = Shop()
    shop.library.capture(KEYS)
    graph = shop.library.graphs[KEYS[0]]
    assert (graph.reads, graph.writes, graph.num_nodes) == (frozenset(), {"out"}, 1)
    assert len(shop.library.traces[KEYS[0]].nodes) == 1


def test_a_replay_leaves_every_array_as_an_eager_step_does(tmp_path_factory: pytest.TempPathFactory) -> None:
    """B15, B16: something computed outside the recorder would be missing, or old, after a replay. All memory starts poisoned."""
    reference = tiny_reference(tmp_path_factory.mktemp("looping"), LOOPING)
    states: dict[str, list[dict[str, Any]]] = {}
    for mode in ("graph", "eager"):
        states[mode] = []
        with open_tiny(reference.model.path, graphs__mode=mode, runner__async=False) as engine:
            runner = engine.runner
            assert isinstance(runner, Runner)
            for length in (1, 4, 20, 5, 5):
                engine.submit([3 + (i * i) % 20 for i in range(length)], SamplingParams(max_tokens=9))
            while engine.has_unfinished:
                engine.step()
                states[mode].append(everything(runner))
    assert len(states["graph"]) == len(states["eager"]) > 5
    for step, (replayed, ran) in enumerate(zip(states["graph"], states["eager"], strict=True)):
        for name, values in replayed.items():
            np.testing.assert_array_equal(values, ran[name], err_msg=f"{name} after step {step}")


def everything(runner: Runner) -> dict[str, Any]:
    """Every array of the slots and of the step but the staged inputs, which are the host's."""
    fields = (*SlotState.__dataclass_fields__, *StepArrays.__dataclass_fields__)
    names = [name for name in fields if name not in ("inputs", "sampling")]
    values = {}
    for name in names:
        owner = runner._state if name in SlotState.__dataclass_fields__ else runner._step
        values[name] = runner.device.download(getattr(owner, name))
    return values
