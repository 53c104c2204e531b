"""MirroredBuffer: one transition at a time, every refusal by the parts of its text, under both policies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest

from runtime.mirror import MirroredBuffer
from runtime.mirror_errors import (
    MirrorError,
    OutcomeError,
    PinnedBufferError,
    StagingBusyError,
    StaleReadError,
    StaleValueError,
    TwoWritersError,
)
from runtime.mirror_table import MirrorTable
from runtime.race_detector import Race
from runtime.truth import HostExact, HostUpperBound, Truth
from runtime.virtual_device import VirtualDevice
from runtime.virtual_memory import poison
from runtime.virtual_stream import VirtualStream
from tests.mirror_steps import POLICIES, open_virtual, policy_of

SENTINEL = np.empty(1, np.int32)
poison(SENTINEL)


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


@pytest.fixture(params=POLICIES)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    with open_virtual("lazy") as device:
        yield Bench(device, request.param)
        assert device.races == []


@pytest.fixture
def discrete() -> Iterator[Bench]:
    with open_virtual("lazy") as device:
        yield Bench(device, "discrete")


def refused(error: type[Exception], *parts: str) -> AbstractContextManager[Any]:
    """The error, with every part in its text."""
    return pytest.raises(error, match="".join(f"(?=.*{_escaped(part)})" for part in parts))


def _escaped(part: str) -> str:
    return "".join("\\" + char if char in r"\.^$*+?{}[]()|" else char for char in part)


# Where a buffer starts


def test_device_exact_starts_unwritten_on_both_sides(bench: Bench) -> None:
    assert (bench.drafts.state, bench.drafts.host_version, bench.drafts.device_version) == ("unwritten", 0, 0)


def test_host_exact_starts_as_zeros_that_the_device_lacks(bench: Bench) -> None:
    assert bench.prefill_len.state == "host newer"
    assert bench.prefill_len.read_host().tolist() == [0, 0, 0]


def test_reading_what_nobody_wrote_is_refused_on_both_sides(bench: Bench) -> None:
    with refused(StaleReadError, "draft_tokens", "the host", "host version 0, device version 0", "nobody", "queue the step"):
        bench.drafts.read_host()
    with refused(StaleReadError, "draft_tokens", "the device by verify", "nobody", "admit a request, or fill it"):
        bench.drafts.read_device("verify")
    assert bench.drafts.counters.stale_reads_refused == 2


# Host newer


def test_write_host_makes_the_host_newer(bench: Bench) -> None:
    bench.prefill_len.write_host([5, 6, 7])
    assert (bench.prefill_len.state, bench.prefill_len.host_version, bench.prefill_len.device_version) == ("host newer", 2, 0)
    assert bench.prefill_len.read_host().tolist() == [5, 6, 7]


def test_the_host_copy_is_handed_out_read_only(bench: Bench) -> None:
    with pytest.raises(ValueError, match="read-only"):
        bench.prefill_len.read_host()[0] = 1


def test_device_read_of_a_newer_host_names_buffer_versions_writer_and_remedy(bench: Bench) -> None:
    bench.prefill_len.write_host(4)
    with refused(
        StaleReadError,
        "stale read of prefill_len on the device by verify[R=4]",
        "host version 2, device version 0",
        "write_host",
        "upload(stream)",
    ):
        bench.prefill_len.read_device("verify[R=4]")


def test_device_write_over_a_newer_host_is_a_second_writer(bench: Bench) -> None:
    bench.input_ids.write_host([1, 2, 3])
    with refused(TwoWritersError, "input_token_ids", "combine", "host version 2", "write_host", "upload(stream) first"):
        bench.input_ids.wrote_on_device("combine")
    with refused(TwoWritersError, "prefill_len", "take_diffs, carry"):
        bench.prefill_len.wrote_on_device("admit")


# Upload


def test_upload_is_in_flight_until_its_event_was_seen(bench: Bench) -> None:
    bench.prefill_len.write_host([5, 6, 7])
    event = bench.prefill_len.upload(bench.compute)
    assert bench.prefill_len.state == "in flight"
    assert bench.prefill_len.read_device("verify", bench.compute) is bench.prefill_len.device_array
    event.synchronize()
    assert bench.prefill_len.state == "in flight"  # nothing looks by itself
    assert bench.prefill_len.poll() == "synced"
    assert bench.device_holds(bench.prefill_len) == [5, 6, 7]


def test_the_host_may_write_on_while_a_discrete_upload_is_queued(discrete: Bench) -> None:
    discrete.prefill_len.write_host([5, 6, 7])
    discrete.prefill_len.upload(discrete.compute)
    discrete.prefill_len.write_host([8, 8, 8])
    assert discrete.device_holds(discrete.prefill_len) == [5, 6, 7]
    assert discrete.prefill_len.poll() == "host newer"


def test_another_stream_must_be_ordered_after_the_upload(bench: Bench) -> None:
    bench.prefill_len.write_host(1)
    bench.prefill_len.upload(bench.compute)
    with refused(StaleReadError, "prefill_len", "on stream copy", "upload on compute that may not", "order_after_upload(copy)"):
        bench.prefill_len.read_device("propose", bench.copy)
    bench.prefill_len.order_after_upload(bench.copy)
    bench.prefill_len.read_device("propose", bench.copy)


def test_more_uploads_than_blocks_are_refused(discrete: Bench) -> None:
    for value in range(3):
        discrete.prefill_len.write_host(value)
        discrete.prefill_len.upload(discrete.compute)
    with refused(StagingBusyError, "prefill_len_upload", "depth = 3", "steps_in_flight = 2"):
        discrete.prefill_len.upload(discrete.compute)
    discrete.device.synchronize()
    discrete.prefill_len.upload(discrete.compute)


def test_counters(bench: Bench) -> None:
    shared = bench.table.policy.integrated
    bench.prefill_len.upload(bench.compute)
    bench.device_writes(bench.drafts, 1)
    bench.drafts.download(bench.compute).take()
    total = bench.table.counters
    assert (total.uploads, total.uploaded_bytes) == (1, 0 if shared else 12)
    assert (total.downloads, total.downloaded_bytes) == (1, 0 if shared else 12)


# Device newer


def test_a_device_write_makes_the_device_newer(bench: Bench) -> None:
    bench.device_writes(bench.drafts, 7)
    assert (bench.drafts.state, bench.drafts.host_version, bench.drafts.device_version) == ("device newer", 0, 1)


def test_host_read_of_a_newer_device_names_buffer_versions_writer_and_remedy(bench: Bench) -> None:
    bench.input_ids.upload(bench.compute)
    bench.device_writes(bench.input_ids, 7, "verify[R=4,T=16,q=4]")
    with refused(
        StaleReadError,
        "stale read of input_token_ids on the host",
        "host version 1, device version 2",
        "verify[R=4,T=16,q=4]",
        "download(stream) and take()",
        "OutcomeRing.collect(step)",
    ):
        bench.input_ids.read_host()


def test_host_write_over_a_newer_device_is_a_second_writer(bench: Bench) -> None:
    bench.input_ids.upload(bench.compute)
    bench.device_writes(bench.input_ids, 7)
    with refused(TwoWritersError, "input_token_ids", "host version 1, device version 2", "verify[R=2]", "and take() it first"):
        bench.input_ids.write_host(1)
    with pytest.raises(TwoWritersError):
        bench.input_ids.upload(bench.compute)


def test_the_host_never_writes_what_is_device_exact(bench: Bench) -> None:
    with refused(TwoWritersError, "draft_tokens", "only the device writes it", "admission record"):
        bench.drafts.write_host(-1)


# Download


def test_a_take_brings_the_host_copy_up_to_date(bench: Bench) -> None:
    bench.device_writes(bench.drafts, 7)
    pending = bench.drafts.download(bench.compute)
    assert bench.drafts.state == "in flight"
    assert pending.take().tolist() == [7, 7, 7]
    assert bench.drafts.state == "synced"
    assert bench.drafts.read_host().tolist() == [7, 7, 7]


def test_after_a_take_the_host_may_write_again(bench: Bench) -> None:
    bench.input_ids.upload(bench.compute)
    bench.device_writes(bench.input_ids, 7)
    bench.input_ids.download(bench.compute).take()
    bench.input_ids.write_host(9, slice(1))
    assert bench.input_ids.read_host().tolist() == [9, 7, 7]


def test_taking_twice_is_refused(bench: Bench) -> None:
    bench.device_writes(bench.drafts, 7)
    pending = bench.drafts.download(bench.compute)
    pending.take()
    with refused(OutcomeError, "draft_tokens", "version 1", "was read before", "first read"):
        pending.take()


def test_a_take_that_the_device_has_overtaken_leaves_the_host_copy_stale(discrete: Bench) -> None:
    discrete.device_writes(discrete.drafts, 7)
    pending = discrete.drafts.download(discrete.compute)
    discrete.device_writes(discrete.drafts, 8, "propose")
    assert pending.take().tolist() == [7, 7, 7]
    assert discrete.drafts.state == "device newer"
    with refused(StaleReadError, "device version 2", "propose"):
        discrete.drafts.read_host()


def test_shared_memory_is_not_written_before_an_unread_download_was_taken() -> None:
    with open_virtual("lazy") as device:
        bench = Bench(device, "integrated")
        bench.device_writes(bench.drafts, 7)
        pending = bench.drafts.download(bench.compute)
        with refused(StagingBusyError, "draft_tokens", "propose", "version 1", "take() it first", "OutcomeRing"):
            bench.drafts.wrote_on_device("propose")
        pending.take()
        bench.device_writes(bench.drafts, 8, "propose")
        bench.prefill_len.upload(bench.compute)
        pending = bench.prefill_len.download(bench.compute)
        with refused(StagingBusyError, "prefill_len", "write_host", "version 1", "take() it first"):
            bench.prefill_len.write_host(5)
        assert pending.take().tolist() == [0, 0, 0]


def test_more_untaken_downloads_than_blocks_are_refused(discrete: Bench) -> None:
    discrete.device_writes(discrete.drafts, 7)
    first, _ = discrete.drafts.download(discrete.compute), discrete.drafts.download(discrete.compute)
    with refused(StagingBusyError, "draft_tokens_download", "version 1", "depth = 2", "take() it first"):
        discrete.drafts.download(discrete.compute)
    first.take()
    discrete.drafts.download(discrete.compute)


def test_a_download_on_a_stream_that_is_not_ordered_after_the_writer_is_a_race(discrete: Bench) -> None:
    discrete.device_writes(discrete.drafts, 7)
    with pytest.raises(Race, match="draft_tokens"):
        discrete.drafts.download(discrete.copy)


# Shared memory: the tag guards order


def test_a_host_write_waits_for_the_consumer_of_shared_memory() -> None:
    with open_virtual("lazy") as device:
        bench = Bench(device, "integrated")
        bench.prefill_len.write_host([5, 6, 7])
        bench.prefill_len.upload(bench.compute)
        with bench.table.eager("verify", reads=["prefill_len"]):
            bench.compute.copy(bench.drafts.device_array, bench.prefill_len.device_array)
        with refused(StagingBusyError, "prefill_len", "share this memory", "prefill_len_consumed", "stage the value in a pack"):
            bench.prefill_len.write_host(0)
        bench.device.synchronize()
        bench.prefill_len.write_host(0)


# Diffs


def test_diffs_keep_order_and_bring_the_device_up_to_the_carried_version(bench: Bench) -> None:
    tables = bench.block_tables
    tables.upload(bench.compute)
    tables.write_host(4, (1, 2))
    tables.write_host([8, 9], (0, slice(1, 3)))
    tables.write_host(5, (1, 2))
    assert tables.num_diffs == 4
    assert tables.take_diffs(4).tolist() == [[1, 2, 4], [0, 1, 8], [0, 2, 9], [1, 2, 5]]
    with pytest.raises(StaleReadError, match="stage the diffs"):
        tables.read_device("propose")  # staged, not applied
    tables.wrote_on_device("verify[R=4]")
    assert (tables.host_version, tables.device_version, tables.num_diffs) == (4, 4, 0)
    assert tables.poll() == "synced"
    assert tables.read_host().tolist() == [[0, 8, 9], [0, 0, 5]]


def test_cells_are_written_as_one_by_one(bench: Bench) -> None:
    tables = bench.block_tables
    tables.write_cells([])
    assert (tables.host_version, tables.num_diffs) == (1, 0), "nothing was written"
    tables.write_cells([(1, 2, 4), (0, 1, 8)])
    tables.write_host(5, (1, 0))
    assert tables.read_host().tolist() == [[0, 8, 0], [5, 0, 4]]
    assert tables.take_diffs(4).tolist() == [[1, 2, 4], [0, 1, 8], [1, 0, 5]]
    assert tables.host_version == 3


@pytest.mark.parametrize("cell", [(2, 0, 1), (0, 3, 1), (-1, 0, 1), (0, -1, 1)])
def test_cells_outside_are_refused_and_none_is_written(bench: Bench, cell: tuple[int, int, int]) -> None:
    with refused(MirrorError, "block_tables[2, 3]", "not all inside"):
        bench.block_tables.write_cells([(0, 0, 7), cell])
    assert (bench.block_tables.host_version, bench.block_tables.num_diffs) == (1, 0)
    assert not bench.block_tables.read_host().any()


def test_cells_hold_exact_values_of_a_buffer_that_the_host_writes(bench: Bench) -> None:
    with refused(StaleValueError, "block_tables"):
        bench.block_tables.write_cells([(0, 0, HostUpperBound(7))])  # type: ignore[list-item]
    with refused(MirrorError, "block_tables", "do not fit int32"):
        bench.block_tables.write_cells([(0, 0, 2**31)])
    assert bench.block_tables.num_diffs == 0


def test_a_write_after_the_diffs_were_staged_is_not_covered_by_them(bench: Bench) -> None:
    tables = bench.block_tables
    tables.upload(bench.compute)
    tables.write_host(4, (1, 2))
    tables.take_diffs(4)
    tables.write_host(5, (1, 1))
    with refused(TwoWritersError, "block_tables", "verify"):
        tables.wrote_on_device("verify")


def test_too_many_diffs_ask_for_an_upload_and_nothing_is_lost(bench: Bench) -> None:
    bench.block_tables.write_host(np.arange(6).reshape(2, 3))
    with refused(MirrorError, "block_tables", "6 cells", "holds 5", "upload(stream)"):
        bench.block_tables.take_diffs(5)
    assert bench.block_tables.num_diffs == 6
    bench.block_tables.upload(bench.compute)
    assert bench.block_tables.num_diffs == 0
    assert bench.device_holds(bench.block_tables) == [[0, 1, 2], [3, 4, 5]]


def test_shared_memory_carries_nothing() -> None:
    with open_virtual("lazy") as device:
        bench = Bench(device, "integrated")
        with refused(MirrorError, "prefill_len", "share", "apart=True"):
            bench.prefill_len.carry()
        assert bench.table.create("limits", (3,), Truth.HOST_EXACT, apart=True).memory.mapped is False


def test_a_buffer_without_diffs_says_so(bench: Bench) -> None:
    with refused(MirrorError, "prefill_len", "diffs=True"):
        bench.prefill_len.take_diffs(1)
    with refused(MirrorError, "lengths", "shape = [3]", "two axes"):
        bench.table.create("lengths", (3,), Truth.HOST_EXACT, diffs=True)


# Values


def test_a_bound_cannot_enter_a_buffer(bench: Bench) -> None:
    with refused(StaleValueError, "prefill_len", "HostUpperBound(limit=9)", "upper bound"):
        bench.prefill_len.write_host(HostUpperBound(9), slice(1))
    with refused(StaleValueError, "prefill_len[1]"):
        bench.prefill_len.write_host([HostExact(1), HostUpperBound(2), HostExact(3)])  # type: ignore[list-item]
    bench.prefill_len.write_host([HostExact(1), HostExact(2), HostExact(3)])  # type: ignore[list-item]
    bench.prefill_len.write_host(HostExact(8), 0)
    assert bench.prefill_len.read_host().tolist() == [8, 2, 3]


def test_values_that_do_not_fit_are_refused_and_move_no_tag(bench: Bench) -> None:
    for values, *parts in [
        (2**40, "1099511627776..1099511627776 do not fit int32"),
        ([-(2**40), 2, 3], "-1099511627776..3 do not fit int32"),
        (1.5, "float64", "int32"),
        ([1, 2], "prefill_len[3]", "[2]"),
    ]:
        with refused(MirrorError, "prefill_len", *parts):
            bench.prefill_len.write_host(values)
    with refused(MirrorError, "prefill_len"):
        bench.prefill_len.write_host(1, 7)
    assert bench.prefill_len.host_version == 1


# Poison


def test_poison_makes_an_unguarded_read_of_an_overtaken_host_copy_loud() -> None:
    with open_virtual("lazy") as device:
        bench = Bench(device, "discrete", poison=True)
        bench.input_ids.write_host([1, 2, 3])
        kept = bench.input_ids.read_host()  # somebody keeps the view and reads it without asking the tag
        bench.input_ids.upload(bench.compute)
        bench.device_writes(bench.input_ids, 7, "combine")
        assert kept.tolist() == [SENTINEL[0]] * 3
        assert SENTINEL[0] < -1
        assert bench.device_holds(bench.input_ids) == [7, 7, 7]


def test_without_poison_such_a_read_would_be_silent(discrete: Bench) -> None:
    discrete.input_ids.write_host([1, 2, 3])
    kept = discrete.input_ids.read_host()
    discrete.input_ids.upload(discrete.compute)
    discrete.device_writes(discrete.input_ids, 7, "combine")
    assert kept.tolist() == [1, 2, 3]
    discrete.table.poison_when_overtaken("input_token_ids")
    discrete.device_writes(discrete.input_ids, 8, "combine")
    assert kept.tolist() == [SENTINEL[0]] * 3


# Pins and text


def test_a_pinned_buffer_cannot_move_and_says_who_holds_it(bench: Bench) -> None:
    bench.drafts.pin("verify[R=4]")
    bench.drafts.pin("propose[R=4]")
    assert bench.drafts.pinned_by == ("verify[R=4]", "propose[R=4]")
    with refused(PinnedBufferError, "draft_tokens [3]", "resized to [5]", "verify[R=4], propose[R=4]", "capture them again"):
        bench.table.resize("draft_tokens", (5,))
    with refused(PinnedBufferError, "draft_tokens", "moved"):
        bench.drafts.move_to(bench.drafts.memory)
    bench.drafts.unpin("verify[R=4]")
    with refused(PinnedBufferError, "propose[R=4]"):
        bench.table.resize("draft_tokens", (5,))


def test_a_resized_buffer_starts_anew(bench: Bench) -> None:
    bench.device_writes(bench.drafts, 7)
    bench.device.synchronize()
    bench.table.resize("draft_tokens", (5,))
    assert (bench.drafts.shape, bench.drafts.state, bench.drafts.moves) == ((5,), "unwritten", 1)
    bench.device_writes(bench.drafts, 8)
    assert bench.drafts.download(bench.compute).take().tolist() == [8] * 5


def test_str_is_the_whole_state_in_one_line(bench: Bench) -> None:
    assert str(bench.drafts) == "draft_tokens int32[3] | device exact | unwritten | host v0 by nobody | device v0 by nobody"
    bench.prefill_len.upload(bench.compute)
    bench.prefill_len.pin("verify[R=4]")
    text = str(bench.prefill_len)
    assert "prefill_len int32[3] | host exact | in flight | host v1 by initial zeros | device v1 by upload on compute" in text
    assert text.endswith("upload of v1 in flight | pinned by verify[R=4]")
    assert "\n" not in text
    bench.device_writes(bench.drafts, 7)
    bench.drafts.download(bench.compute)
    assert "download of v1 not taken" in str(bench.drafts)
    bench.block_tables.carry()
    assert "v1 carried by staged diffs" in str(bench.block_tables)


def test_streams_are_compared_by_identity(bench: Bench) -> None:
    twin = bench.device.stream("compute")
    assert isinstance(twin, VirtualStream)
    bench.prefill_len.upload(bench.compute)
    with pytest.raises(StaleReadError, match="order_after_upload"):
        bench.prefill_len.read_device("verify", twin)
