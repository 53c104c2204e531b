"""MirroredBuffer: what the device writes, downloads and takes, and the memory that both sides share."""

from __future__ import annotations

import pytest

from runtime.mirror_errors import (
    OutcomeError,
    StagingBusyError,
    StaleReadError,
    TwoWritersError,
)
from runtime.race_detector import Race
from tests.mirror_bench import Bench, discrete_bench, each_bench, refused
from tests.mirror_steps import POLICIES, open_virtual

bench = pytest.fixture(params=POLICIES)(each_bench)
discrete = pytest.fixture(discrete_bench)


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
