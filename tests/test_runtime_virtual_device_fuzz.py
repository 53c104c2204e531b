"""Random programs against the virtual device and its race detector, and mutants of both that these programs must catch."""

from __future__ import annotations

import inspect
import random
import textwrap
from typing import Any

import pytest

import runtime.virtual_graph
from runtime.race_detector import RaceDetector
from runtime.virtual_capture import VirtualCapture
from runtime.virtual_device import VirtualDevice
from runtime.virtual_graph import VirtualGraph
from runtime.virtual_queue import OperationQueue
from runtime.virtual_stream import VirtualEvent, VirtualStream
from tests.fuzz_oracle import check, differs_somewhere, oracle
from tests.fuzz_programs import GENERATORS

PROGRAMS = 300


@pytest.mark.parametrize("generator", sorted(GENERATORS))
def test_flags_what_the_oracle_flags_and_clean_runs_equal_program_order(generator: str) -> None:
    clean = racy = 0
    for seed in range(PROGRAMS):
        program = GENERATORS[generator](random.Random(seed))
        check(program, range(1, 4))
        if oracle(program, {}):
            racy += 1
        else:
            clean += 1
    # Both verdicts must be well represented, or the test says little.
    assert clean >= PROGRAMS // 12
    assert racy >= PROGRAMS // 3


@pytest.mark.parametrize("generator", sorted(GENERATORS))
def test_most_races_show_as_wrong_data_under_some_schedule(generator: str) -> None:
    programs = [GENERATORS[generator](random.Random(seed)) for seed in range(100)]
    racy = [program for program in programs if oracle(program, {})]
    shown = sum(differs_somewhere(program, range(4)) for program in racy)
    assert shown >= 0.7 * len(racy)


MUTANTS: dict[str, tuple[Any, str, str, str]] = {
    # What runs: a wait, an event or a graph that orders less than it says.
    "an event recorded straight after a wait drops the wait": (
        VirtualStream,
        "record",
        "event.frontier, event.clock = self.frontier, dict(self.clock)",
        "event.frontier, event.clock = self.frontier[:1], dict(self.clock)",
    ),
    "a wait orders nothing": (VirtualStream, "wait", "(*self.frontier, *event.frontier)", "self.frontier"),
    "a wait replaces what the stream had": (VirtualStream, "wait", "(*self.frontier, *event.frontier)", "event.frontier"),
    "a stream is no queue": (VirtualStream, "_submit", "work.accesses, self.frontier)", "work.accesses, ())"),
    "the start of a graph waits for nothing": (VirtualGraph, "enqueue", "else frontier", "else ()"),
    "the end of a graph joins one branch": (VirtualGraph, "enqueue", "for i in self._leaves)", "for i in self._leaves[:1])"),
    "a join inside a graph keeps one branch": (VirtualCapture, "add", "work, branch.frontier)", "work, branch.frontier[:1])"),
    "a graph drops edges between its segments": (
        runtime.virtual_graph,
        "_segments",
        "segment_of[i] for i in node.dependencies",
        "segment_of[i] for i in node.dependencies[:1]",
    ),
    "waiting for an event runs nothing": (VirtualEvent, "synchronize", "self.device.queue.run(frontier)", "pass"),
    "poison lands on what queued work still reads": (
        OperationQueue,
        "touches",
        "for operation in self._pending",
        "for operation in ()",
    ),
    # What is known: clocks that grow too much or too little.
    "the snapshot of an event is taken too late": (VirtualStream, "record", "dict(self.clock)", "self.clock"),
    "a wait teaches the stream nothing": (VirtualStream, "wait", "join(self.clock, event.clock)", "pass"),
    "an operation does not tick": (VirtualStream, "_admit", "clock.get(self.index, 0) + 1", "1"),
    "a stream does not learn what the host knows": (VirtualStream, "_admit", "join(clock, self.device.host_clock)", "pass"),
    "the host learns nothing from an event": (VirtualEvent, "synchronize", "join(self.device.host_clock, self.clock)", "pass"),
    "a look at an unfinished event orders the host": (VirtualEvent, "query", "if reached:", "if True:"),
    "branches of a graph know each other": (VirtualCapture, "record", "dict(branch.clock)", "branch.clock"),
    "draining teaches the host about one stream": (VirtualDevice, "_drain", "in self._streams", "in self._streams[:1]"),
    # What conflicts, and what is forgotten.
    "two reads race": (RaceDetector, "admit", "elif (writes or old_writes) and", "elif"),
    "a write after a read is missed": (RaceDetector, "admit", "elif (writes or old_writes)", "elif old_writes"),
    "a read after a write is missed": (RaceDetector, "admit", "elif (writes or old_writes)", "elif writes"),
    "neighbouring bytes overlap": (RaceDetector, "admit", "old_start < stop and", "old_start <= stop and"),
    "a read makes a write forgotten": (RaceDetector, "admit", "(writes or not old_writes) and start", "start"),
    "a part makes the whole forgotten": (RaceDetector, "admit", "start <= old_start and old_stop <= stop", "True"),
    "whatever is ordered is forgotten": (RaceDetector, "admit", "host.get(old_actor, 0)", "clock.get(old_actor, 0)"),
    "the log keeps one access": (RaceDetector, "admit", "log[allocation] = kept", "log[allocation] = kept[-1:]"),
    "the host races with nothing unordered": (RaceDetector, "_unordered", "entry[4] > host.get(entry[3], 0)", "False"),
    "races of branches are not looked for": (VirtualCapture, "add", "self._detector is not None", "False"),
    "a graph hides its reads": (
        runtime.virtual_graph,
        "_merged",
        "if writes or not any(low <= start and stop <= high",
        "if writes or not any(low < stop and start < high",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_each_mutant_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, member, before, after = MUTANTS[name]
    monkeypatch.setattr(owner, member, _mutated(owner, member, before, after))
    with pytest.raises(AssertionError):
        _check_all(2 * PROGRAMS)


def _check_all(programs: int) -> None:
    for seed in range(programs):
        for generator in GENERATORS.values():
            check(generator(random.Random(seed)), range(1, 4))


def _mutated(owner: Any, member: str, before: str, after: str) -> Any:
    """`owner.member` compiled anew with one piece of its text replaced."""
    original = getattr(owner, member)
    source = textwrap.dedent(inspect.getsource(original))
    if source.count(before) != 1:
        pytest.fail(f"the mutant no longer fits: {before!r} occurs {source.count(before)} times in {member}")
    namespace = dict(original.__globals__)
    source = "from __future__ import annotations\n" + source.replace(before, after)
    exec(compile(source, f"<mutant of {member}>", "exec"), namespace)
    return namespace[member]
