"""What tests of one engine over the looping tiny checkpoint share: prompts, parameters that never stop early, a check."""

from __future__ import annotations

from runtime.engine import Engine
from runtime.sampling import SamplingParams
from tests.tiny_engine import check_idle

PROMPTS = [[7, 9, 11, 7, 9], [5], [20, 21, 22, 23, 8, 6, 4, 20, 21], [12, 13, 12, 13, 12, 13, 12]]
LONG = SamplingParams(max_tokens=40, ignore_eos=True)


def check_drained(engine: Engine) -> None:
    """As check_idle, once the frames of requests that ended on the host side have returned."""
    engine.drain()
    check_idle(engine)
