"""A bench for one mirrored buffer at a time: a lazy device, a table, a buffer of each truth."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from runtime.mirror import MirroredBuffer
from runtime.mirror_table import MirrorTable
from runtime.truth import Truth
from runtime.virtual_device import VirtualDevice
from tests.mirror_steps import open_virtual, policy_of


class Bench:
    """A lazy device, a table, and a buffer of each truth."""

    def __init__(self, device: VirtualDevice, policy: str, *, poison: bool = False) -> None:
        self.device = device
        self.compute, self.copy = device.stream("compute"), device.stream("copy")
        self.table = MirrorTable(device, policy_of(policy), self.compute, steps_in_flight=2, poison=poison)
        self.drafts = self.table.create("draft_tokens", (3,), Truth.DEVICE_EXACT)
        self.prefill_len = self.table.create("prefill_len", (3,), Truth.HOST_EXACT)
        self.input_ids = self.table.create("input_token_ids", (3,), Truth.EITHER)
        self.block_tables = self.table.create("block_tables", (2, 3), Truth.HOST_EXACT, diffs=True)

    def device_writes(self, buffer: MirroredBuffer, value: int, writer: str = "verify[R=2]") -> None:
        self.compute.fill(buffer.device_array, value)
        buffer.wrote_on_device(writer)

    def device_holds(self, buffer: MirroredBuffer) -> list[int]:
        held: list[int] = self.device.download(buffer.device_array).tolist()  # type: ignore[arg-type]
        return held


def each_bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """For a fixture with a policy as parameter."""
    with open_virtual("lazy") as device:
        yield Bench(device, request.param)
        assert device.races == []


def discrete_bench() -> Iterator[Bench]:
    """For a fixture."""
    with open_virtual("lazy") as device:
        yield Bench(device, "discrete")


def refused(error: type[Exception], *parts: str) -> AbstractContextManager[Any]:
    """The error, with every part in its text."""
    return pytest.raises(error, match="".join(f"(?=.*{_escaped(part)})" for part in parts))


def _escaped(part: str) -> str:
    return "".join("\\" + char if char in r"\.^$*+?{}[]()|" else char for char in part)
