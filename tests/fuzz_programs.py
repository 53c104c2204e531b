"""Random programs for the virtual device: tests/fuzz_interpreter.py runs them, tests/fuzz_oracle.py says what races.

A program is a list of `Step`s over three streams, two device arrays, two pinned arrays, one mapped array (both a device and a host
array) and four events. `anything_goes` draws each step blindly. `mostly_ordered` puts the waits that each step needs before it, as
direct edges or through a third stream with no operation between (t -> u -> s), and forgets one in eight: there one missing edge is
the only defect, which blind programs seldom have.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

STREAMS, ARRAYS, EVENTS, LENGTH = 3, 3, 4, 4
RANGES = (slice(0, 4), slice(0, 2), slice(2, 4), slice(1, 3))
FORGET = 0.12


@dataclass(frozen=True)
class Step:
    """One statement. `a`, `b`: array, event or stream numbers, by what; `part`: of RANGES; `nodes`, `repeats`: of a graph."""

    what: str
    stream: int = 0
    a: int = 0
    b: int = 0
    part: int = 0
    value: int = 0
    nodes: tuple[Step, ...] = ()
    repeats: int = 1


Program = list[Step]


def _device_work(rng: random.Random, stream: int) -> Step:
    what = rng.choice(("mix", "mix", "h2d", "d2h"))
    part = rng.choice((0, 0, 1, 2, 3))
    return Step(what, stream, rng.randrange(ARRAYS), rng.randrange(ARRAYS), part, rng.randrange(9))


def _graph(rng: random.Random, stream: int) -> Step:
    """Work on two branches, with edges between them that may come too late or point the wrong way."""
    nodes = []
    for _ in range(rng.randrange(2, 9)):
        branch, event = rng.randrange(2), rng.randrange(2)
        what = rng.choice(("work", "work", "record", "wait", "edge"))
        if what == "work":
            nodes.append(_device_work(rng, branch))
        elif what == "edge":
            nodes += [Step("record", branch, event), Step("wait", 1 - branch, event)]
        else:
            nodes.append(Step(what, branch, event))
    return Step("graph", stream, nodes=tuple(nodes), repeats=rng.randrange(1, 3))


def _host_work(rng: random.Random) -> Step:
    what = rng.choice(("write", "read"))
    return Step(what, a=rng.randrange(ARRAYS), part=rng.randrange(len(RANGES)), value=rng.randrange(9))


def anything_goes(rng: random.Random) -> Program:
    """6 to 25 steps, each drawn by itself."""
    program = []
    for _ in range(rng.randrange(6, 26)):
        stream, event = rng.randrange(STREAMS), rng.randrange(EVENTS)
        what = rng.choices(
            ("work", "record", "wait", "host", "event_sync", "stream_sync", "device_sync", "graph", "query"),
            (8, 4, 4, 3, 2, 2, 1, 2, 2),
        )[0]
        if what == "work":
            program.append(_device_work(rng, stream))
        elif what == "graph":
            program.append(_graph(rng, stream))
        elif what == "host":
            program.append(_host_work(rng))
        else:
            program.append(Step(what, stream, event))
    return program


def mostly_ordered(rng: random.Random) -> Program:
    """3 to 8 pieces of work, each after the waits that order it behind everything before, one in eight of them forgotten."""
    program: Program = []
    used = 0

    def edge(source: int, target: int) -> None:
        nonlocal used
        program.extend((Step("record", source, used % EVENTS), Step("wait", target, used % EVENTS)))
        used += 1

    def order_stream(target: int) -> None:
        for source in range(STREAMS):
            if source == target or rng.random() < FORGET:
                continue
            between = 3 - source - target
            if rng.random() < 0.5:
                edge(source, target)
            else:
                edge(source, between)
                edge(between, target)

    def order_host() -> None:
        nonlocal used
        for source in range(STREAMS):
            if rng.random() < FORGET:
                continue
            how = rng.random()
            if how < 0.3:
                program.append(Step("stream_sync", source))
                continue
            last = source
            if how > 0.6:
                last = (source + 1) % STREAMS
                edge(source, last)
            program.extend((Step("record", last, used % EVENTS), Step("event_sync", a=used % EVENTS)))
            used += 1

    for _ in range(rng.randrange(3, 9)):
        stream = rng.randrange(STREAMS)
        if rng.random() < 0.3:
            order_host()
            program.append(_host_work(rng))
        else:
            order_stream(stream)
            program.append(_graph(rng, stream) if rng.random() < 0.4 else _device_work(rng, stream))
    return program


GENERATORS: dict[str, Callable[[random.Random], Program]] = {"anything_goes": anything_goes, "mostly_ordered": mostly_ordered}
