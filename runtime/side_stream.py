"""What streams of every device share: another one beside them, for work that need not wait for what comes next."""

from __future__ import annotations

from typing import Any, TypeVar

from graphs.launch import Launcher

S = TypeVar("S", bound="SideStream")


class SideStream:
    """Base of the streams. Forks are events, so that they mean inside a capture what they mean outside."""

    device: Any
    name: str
    _side: tuple[Any, Any, Any] | None = None  # the other stream, and the events at which both part and meet

    def record(self, event: Any) -> None:
        raise NotImplementedError

    def wait(self, event: Any) -> None:
        raise NotImplementedError

    def let_fork(self) -> None:
        """Give this stream one beside it."""
        if self._side is None:
            device, name = self.device, self.name
            self._side = device.stream(f"{name}.beside"), device.event(f"{name}.forked"), device.event(f"{name}.joined")

    def fork(self: S) -> S:
        """The stream beside this one; this one itself where `let_fork` was not called."""
        if self._side is None:
            return self
        beside, forked, _ = self._side
        self.record(forked)
        beside.wait(forked)
        other: S = beside
        return other

    def join(self, beside: Launcher) -> None:
        """What is queued here from now on runs after what went to `beside`, which `fork` returned."""
        if self._side is None:
            return
        stream, _, joined = self._side
        assert beside is stream
        stream.record(joined)
        self.wait(joined)
