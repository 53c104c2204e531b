"""What the host does for a steady step: counted, because the time of it is a matter of the machine."""

from __future__ import annotations

from typing import Any

import pytest

from tests.host_step import calls_of, decoding_engine


@pytest.mark.parametrize(("speculator", "fixed", "each"), [("none", 240, 75), ("ngram", 290, 88)])
def test_a_steady_step_makes_few_calls(speculator: str, fixed: int, each: int) -> None:
    """Calls of functions: so many for a step, and so many for each request in it (680 and 125 when every copy was bound anew)."""
    for requests in (1, 8):
        with decoding_engine(speculator, requests) as engine:
            calls = calls_of(engine, 48)
        assert calls <= fixed + each * requests, f"{calls} calls a step with {requests} requests"


def test_a_steady_step_asks_the_device_for_what_it_needs() -> None:
    """One replay, the outcome aside and to the host; inputs go over when they differ, two steps of 64 here."""
    with decoding_engine("none", 1) as engine:
        counters: Any = engine.runner.device.counters  # type: ignore[attr-defined]
        before = counters.copy()
        for _ in range(64):
            engine.step()
        used = counters.since(before)
    assert (used.graph_launches, used.launches, used.event_synchronizes) == (64, 0, 64)
    assert (used.stream_synchronizes, used.device_synchronizes, used.transfers) == (0, 0, 0)
    assert used.copies_by_kind["d2d"] == used.copies_by_kind["d2h"] == 64
    assert used.copies_by_kind["h2d"] == 2, "blocks of 64 tokens are entered at once: their write, and the step without it"
