"""MirroredBuffer: one transition at a time, every refusal by the parts of its text, under both policies.

Where a buffer starts, and uploads; downloads and single cells have files of their own.
"""

from __future__ import annotations

import pytest

from runtime.mirror_errors import (
    StagingBusyError,
    StaleReadError,
    TwoWritersError,
)
from tests.mirror_bench import Bench, discrete_bench, each_bench, refused
from tests.mirror_steps import POLICIES

bench = pytest.fixture(params=POLICIES)(each_bench)
discrete = pytest.fixture(discrete_bench)


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
