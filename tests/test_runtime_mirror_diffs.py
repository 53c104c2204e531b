"""MirroredBuffer: single cells, values that do not fit, poison, pins."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.mirror_errors import (
    MirrorError,
    PinnedBufferError,
    StaleReadError,
    StaleValueError,
    TwoWritersError,
)
from runtime.truth import HostExact, HostUpperBound, Truth
from runtime.virtual_memory import poison
from runtime.virtual_stream import VirtualStream
from tests.mirror_bench import Bench, discrete_bench, each_bench, refused
from tests.mirror_steps import POLICIES, open_virtual

SENTINEL = np.empty(1, np.int32)
poison(SENTINEL)
bench = pytest.fixture(params=POLICIES)(each_bench)
discrete = pytest.fixture(discrete_bench)


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
