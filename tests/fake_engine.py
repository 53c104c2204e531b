"""An engine without a model, for tests of what stands around one: it answers with scripted events.

`python -m tests.fake_engine ARGS` is the command line with this engine in the place of the real one.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

from runtime.config import RunConfig, load_config
from runtime.errors import CheckpointError
from runtime.metrics import AcceptanceStats
from runtime.plan import FinishReason
from runtime.prompts import Prompt
from runtime.report import RequestOutput, StreamEvent
from runtime.sampling import SamplingParams

ANSWERS = ["Paris is ", "the ", "capital 🙂."]


class FakeEngine:
    """Each prompt gets ANSWERS, one piece and two tokens a step, prompts in turn; with speculation one of k accepted.

    model.source "broken" fails to open; a prompt "interrupt" sends SIGINT to this process after its first piece;
    a prompt "slow" waits after each piece; a prompt "last first" ends after all the others have begun; a prompt "masked" ends where
    nothing could be chosen.
    """

    opened: list[FakeEngine] = []  # noqa: RUF012 - shared on purpose: tests look at what the command opened

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.closed = False
        self.params: list[SamplingParams] = []
        self.names: list[list[str] | None] = []
        self.runner = SimpleNamespace(device=SimpleNamespace(has_clock=False))
        self.scheduler = SimpleNamespace(max_model_len=2048)
        FakeEngine.opened.append(self)

    @classmethod
    def from_config(cls, source: Any, *, progress: Any = None, expects: Any = None, **overrides: Any) -> FakeEngine:
        config = load_config(source, **overrides)
        if config.model.source == "broken":
            raise CheckpointError("model.source = broken: truncated at byte 7; fetch it again")
        if progress is not None:
            with progress("reading weights", "bytes") as advance:
                advance(1024, 1024)
        return cls(config)

    def __enter__(self) -> FakeEngine:
        return self

    def __exit__(self, *exception: object) -> None:
        self.closed = True

    def trace_phases(self, phases: Any) -> None:
        """Nothing here has phases."""

    def info(self) -> dict[str, Any]:
        return {
            "device": {"name": self.config.device, "simulator": os.environ.get("NUMBA_ENABLE_CUDASIM", "0")},
            "graphs": [{"family": "decode", "requests": 1}, {"family": "verify", "requests": 1}],
            "eos_token_ids": [2],
            "sliding_window": None,
        }

    def stream(self, prompts: list[Prompt], params: SamplingParams, *, names: list[str] | None = None) -> Iterator[StreamEvent]:
        self.params.append(params)
        self.names.append(names)
        ends = sorted(range(len(prompts)), key=lambda index: prompts[index] == "last first")
        tokens: list[list[int]] = [[] for _ in prompts]
        for piece in range(len(ANSWERS)):
            for index in ends:
                new = (10 * index + 2 * piece, 10 * index + 2 * piece + 1)
                tokens[index].extend(new)
                output = self._output(index, prompts[index], tokens[index]) if piece == len(ANSWERS) - 1 else None
                yield StreamEvent(index, ANSWERS[piece], new, output)
                if prompts[index] == "interrupt":
                    os.kill(os.getpid(), signal.SIGINT)
                if prompts[index] == "slow":
                    time.sleep(0.2)

    def _output(self, index: int, prompt: Prompt, tokens: list[int]) -> RequestOutput:
        acceptance = AcceptanceStats(self.config.speculator.k)
        if self.config.speculator.k:
            acceptance.add_step(self.config.speculator.k, 1)
        reason: FinishReason = "error" if prompt == "masked" else "stop"
        return RequestOutput(
            f"r{index}", prompt, (1, 2, 3), tuple(tokens), "".join(ANSWERS), reason, 0.25, 0.01, acceptance
        )


def install() -> None:
    """Puts the fake where the command line imports the real engine."""
    module = ModuleType("runtime.engine")
    module.Engine = FakeEngine  # type: ignore[attr-defined]
    sys.modules["runtime.engine"] = module


if __name__ == "__main__":
    # A suite that runs in the background of a shell hands on an ignored SIGINT, and Python then leaves it ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # The class of the module that `runtime.cli` will see, not of __main__.
    from runtime.cli import main
    from tests.fake_engine import install as install_fake

    install_fake()
    main()
