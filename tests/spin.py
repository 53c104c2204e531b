"""A kernel that does nothing for a while: put ahead of work, it shows what relied on luck instead of an event."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.lang import cuda, i32, kernel, u32


@kernel(writes=("sink",))
def spin(sink, rounds):
    """About `rounds` tenths of a millisecond; sink[0] = rounds. For a GPU alone: the simulator knows no nanosleep."""
    for _ in range(rounds):
        cuda.nanosleep(u32(100_000))
    sink[0] = i32(rounds)


def delay(stream: Any, method: str, sink: Any, rounds: int = 10) -> None:
    """Let every call of stream.`method` outside captures queue a spin first; also what is prepared for such calls from now on."""
    launch = stream.launch

    def delayed(plain: Callable[..., None]) -> Callable[..., None]:
        def call(*args: Any) -> None:
            if stream.joined is None:
                launch(spin, 1, 1, sink, rounds)
            plain(*args)

        return call

    setattr(stream, method, delayed(getattr(stream, method)))
    prepare = getattr(stream, f"prepare_{method}", None)
    if prepare is not None:
        setattr(stream, f"prepare_{method}", lambda *args: delayed(prepare(*args)))
