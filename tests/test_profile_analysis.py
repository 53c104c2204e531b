"""What is read off canned traces: the right number, or the right refusal."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernels
from runtime.phase_clock import Phase, PhaseSpan
from runtime.profile.analysis import DEVICE, Analysis, cause_of, histogram
from runtime.profile.families import BETWEEN, OTHER, family_of_module, operation, shares
from runtime.profile.inner_gaps import LIBRARY, inner_gaps
from runtime.profile.intervals import complement, exclusive, total, union
from runtime.profile.trace import Activity, Kind, Mode, Replay, Trace, TraceRefusedError
from tests.canned_traces import NS, PROPOSE, STEP, VERIFY, VERIFY_US, events_trace, graph_trace, node_trace

INTERVALS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)).map(lambda pair: (min(pair), max(pair))), max_size=12)


@given(INTERVALS, st.integers(0, 30), st.integers(31, 60))
def test_intervals_agree_with_counting_points(intervals: list[tuple[int, int]], low: int, high: int) -> None:
    covered = [any(start <= point < end for start, end in intervals) for point in range(low, high)]
    merged = union(intervals, (low, high))
    assert total(merged) == sum(covered)
    assert total(complement(merged, (low, high))) == len(covered) - sum(covered)
    assert all(one[1] < other[0] for one, other in pairwise(merged))
    assert sum(exclusive(intervals)) == total(union(intervals, (0, 60)))


def test_step_time_is_the_window_over_its_steps() -> None:
    assert Analysis(graph_trace()).step_ns() == STEP * NS
    assert Analysis(events_trace()).step_ns() == STEP * NS


def test_busy_is_a_union_over_graphs_and_copies() -> None:
    busy = Analysis(graph_trace()).busy()
    assert busy.percent == pytest.approx(92.0)  # 80 + 10 + 2 of 100
    assert busy.upper_bound
    assert [end - start for start, end in busy.idle[:3]] == [4 * NS, 1 * NS, 3 * NS]


def test_work_that_overlaps_on_another_stream_counts_once() -> None:
    trace = graph_trace()
    beside = [
        Activity(Kind.MEMCPY, "DtoH", (1000 + step * STEP + 20) * NS, (1000 + step * STEP + 83) * NS, "8") for step in range(5)
    ]
    busy = Analysis(replace(trace, activities=trace.activities + beside)).busy()
    assert busy.percent == pytest.approx(95.0)  # 3 of the gap of 4 are covered now; their sum would have been 155 %


def test_what_lies_outside_the_window_does_not_count() -> None:
    trace = graph_trace()
    outside = [Activity(Kind.KERNEL, "admit", 10 * NS, 900 * NS, "7"), Activity(Kind.KERNEL, "late", 1500 * NS, 9000 * NS, "7")]
    assert Analysis(replace(trace, activities=trace.activities + outside)).busy().percent == pytest.approx(92.0)


def test_gaps_lie_between_replays_and_say_what_ran_in_them() -> None:
    gaps = Analysis(graph_trace()).gaps()
    assert [(gap.length_ns // NS, gap.working_ns // NS, gap.before, gap.after) for gap in gaps[:2]] == [
        (4, 0, VERIFY, PROPOSE), (6, 2, PROPOSE, VERIFY),
    ]  # fmt: skip
    assert {gap.cause for gap in gaps} == {DEVICE}
    assert gaps[0].queued_ns == (1000 + 80 - 915) * NS
    counts = dict(histogram(gaps))
    assert (counts["2-5"], counts["5-10"], sum(counts.values())) == (5, 5, 10)


def test_a_late_launch_is_blamed_on_the_phase_in_which_the_host_was() -> None:
    phases = [PhaseSpan(Phase.COLLECT, 0, 100, 0), PhaseSpan(Phase.DETOKENISE, 100, 160, 0), PhaseSpan(Phase.LAUNCH, 160, 200, 1)]
    assert cause_of(95, Replay(VERIFY, 165, 170, True), phases) == "detokenise"
    assert cause_of(171, Replay(VERIFY, 165, 170, True), phases) == DEVICE
    assert cause_of(10, Replay(VERIFY, 165, 170, True), phases) == "collect"
    assert cause_of(500, Replay(VERIFY, 600, 610, True), phases) == "outside"


def test_phases_are_summed_per_step() -> None:
    phases = Analysis(graph_trace()).phase_ns()
    assert phases[Phase.COLLECT] == 75 * NS
    assert phases[Phase.LAUNCH] == 5 * NS
    assert sum(phases.values()) == STEP * NS


def test_shares_of_a_node_trace_are_scaled_to_the_span_of_the_graph_trace() -> None:
    graph, node = Analysis(graph_trace()), Analysis(node_trace(slowed=3))
    span = graph.span_ns(VERIFY)
    assert span == VERIFY_US * NS
    found = shares(node, VERIFY, span)
    assert [(share.family, share.time_ns) for share in found] == [
        ("products", pytest.approx(40 * NS)), ("attention", pytest.approx(30 * NS)), (BETWEEN, pytest.approx(10 * NS)),
    ]  # fmt: skip
    assert sum(share.share for share in found) == pytest.approx(1.0)
    assert found[0].gigabytes_per_s == pytest.approx(10.0)
    assert found[1].gigabytes_per_s is None


def test_nodes_that_overlap_share_their_time() -> None:
    trace = node_trace(slowed=1)
    nodes = [
        replace(node, start=node.start - 20 * NS) if "attend" in node.name else node for node in trace.activities
    ]  # 30..80 instead of 50..80: ten of it beside the product
    analysis = Analysis(replace(trace, activities=nodes))
    found = {share.family: share.time_ns for share in shares(analysis, VERIFY, 80 * NS)}
    assert found == {"products": pytest.approx(40 * NS), "attention": pytest.approx(40 * NS), BETWEEN: pytest.approx(0)}
    assert analysis.overlapped_ns(VERIFY) == 10 * NS
    assert analysis.busy().upper_bound, "a kernel may have been started early, and waited"
    assert Analysis(trace).overlapped_ns(VERIFY) == 0
    touching = [replace(node, end=node.end + 10_050) if "norm" in node.name else node for node in trace.activities]
    assert not Analysis(replace(trace, activities=touching)).busy().upper_bound, "50 ns of 80 us are the clock's"


def test_gaps_inside_a_replay_are_told_by_the_operations_around_them() -> None:
    (gap,) = inner_gaps(Analysis(node_trace(slowed=3)), VERIFY, VERIFY_US * NS)
    assert (gap.before, gap.after, gap.count) == ("norm_project", "attend", 1.0)
    assert (gap.share, gap.time_ns, gap.median_ns) == (pytest.approx(10 / 80), pytest.approx(10 * NS), 30 * NS)
    assert inner_gaps(Analysis(node_trace()), PROPOSE, 10 * NS) == []


def test_gaps_inside_a_replay_begin_behind_the_node_that_ended_last() -> None:
    """A product of 60 us starts first; one of 10 beside it ends earlier, so the gap of 5 lies behind the longer one."""
    trace, nodes = node_trace(slowed=1), []
    for row in trace.activities:
        if row.graph == 11 and "attend" in row.name:
            start = row.start - 50 * NS
            nodes += [
                replace(row, name="nvjet_sm90_tst_64x8", start=start, end=start + 60 * NS),
                replace(row, start=start + 10 * NS, end=start + 20 * NS),
                replace(row, name="void cublasLt::splitKreduce_kernel<32, 16>(int)", start=start + 65 * NS, end=start + 80 * NS),
            ]
        elif row.graph != 11:
            nodes.append(row)
    analysis = Analysis(replace(trace, activities=nodes))
    (gap,) = inner_gaps(analysis, VERIFY, 80 * NS)
    assert (gap.before, gap.after, gap.median_ns) == (LIBRARY, LIBRARY, 5 * NS)
    between = next(share for share in shares(analysis, VERIFY, 80 * NS) if share.family == BETWEEN)
    assert gap.share == pytest.approx(between.share)


def test_gaps_inside_a_replay_are_asked_of_a_node_trace_alone() -> None:
    with pytest.raises(TraceRefusedError, match="does not look inside"):
        inner_gaps(Analysis(graph_trace()), VERIFY, 80 * NS)
    with pytest.raises(TraceRefusedError, match="no replay of it"):
        inner_gaps(Analysis(node_trace()), "decode[R=1,T=1,q=1]", 80 * NS)


def test_busy_of_a_node_trace_sees_the_gaps_inside_replays() -> None:
    busy = Analysis(node_trace(slowed=1)).busy()
    assert busy.percent == pytest.approx(80.0)
    assert not busy.upper_bound


# --- refusals


def refused(trace: Trace, reason: str) -> None:
    with pytest.raises(TraceRefusedError, match=reason):
        Analysis(trace)


def test_step_time_of_a_node_trace_is_refused() -> None:
    analysis = Analysis(node_trace())
    with pytest.raises(TraceRefusedError, match="slows the run"):
        analysis.step_ns()
    assert analysis.slowed_step_ns() == 2 * STEP * NS


def test_busy_of_the_untraced_pass_is_refused() -> None:
    with pytest.raises(TraceRefusedError, match="no graph records"):
        Analysis(events_trace()).busy()


def test_a_graph_trace_that_has_only_kernel_rows_is_no_idle_device() -> None:
    trace = graph_trace()
    rows = [replace(row, kind=Kind.KERNEL, graph=0) if row.kind is Kind.GRAPH else row for row in trace.activities]
    refused(replace(trace, activities=rows), "0 graph records, but our own counters have 12 replays")


@pytest.mark.parametrize("make", [graph_trace, node_trace])
def test_a_missing_replay_is_refused(make) -> None:  # type: ignore[no-untyped-def]
    trace = make()
    lost = trace.activities[-2].launch or trace.activities[-3].launch
    refused(replace(trace, activities=[row for row in trace.activities if row.launch != lost]), "11 .* 12 replays")


def test_one_missing_node_is_refused() -> None:
    trace = node_trace()
    refused(replace(trace, activities=trace.activities[1:]), r"verify\[R=1,T=5,q=5\] have \[1, 2\] node records")


def test_a_replay_that_nobody_counted_is_refused() -> None:
    trace = graph_trace()
    refused(replace(trace, launches={VERIFY: 6, PROPOSE: 7}), "differ from the counters")
    refused(replace(trace, activities=[*trace.activities, trace.activities[0]]), "13 graph records")


@pytest.mark.parametrize("field", ["start", "end"])
def test_zero_timestamps_are_counted_and_refused(field: str) -> None:
    trace = graph_trace()
    rows = [replace(row, **{field: 0}) if number < 2 else row for number, row in enumerate(trace.activities)]
    refused(replace(trace, activities=rows), "2 of 18 records have a timestamp of 0")


def test_records_that_end_before_they_begin_are_refused() -> None:
    trace = graph_trace()
    rows = [replace(row, end=row.start - 1) if number == 3 else row for number, row in enumerate(trace.activities)]
    refused(replace(trace, activities=rows), "1 records end before they begin")


def test_dropped_records_and_lost_marks_are_refused() -> None:
    refused(graph_trace(dropped=3), "3 records were dropped")
    refused(graph_trace(lost_marks=1), "1 host phases were lost")


def test_replays_in_another_order_than_their_records_are_refused() -> None:
    trace = graph_trace()
    replays = [*trace.replays[:2], trace.replays[3], trace.replays[2], *trace.replays[4:]]
    refused(replace(trace, replays=replays), "not in the same order")


@pytest.mark.parametrize("window", [(0, 0), (2, 1), (1, 10), (0, 11), (0, 12), (-2, 4)])
def test_a_window_without_a_whole_step_is_refused(window: tuple[int, int]) -> None:
    refused(graph_trace(window=window), "must hold a whole step")


def test_a_device_without_a_clock_has_phases_and_neither_busy_nor_gaps() -> None:
    analysis = Analysis(graph_trace(mode=Mode.HOST))
    assert analysis.phase_ns()[Phase.STAGE] == 5 * NS
    for question in (analysis.busy, analysis.gaps):
        with pytest.raises(TraceRefusedError, match="needs a GPU"):
            question()


def test_shares_are_read_off_node_traces_alone() -> None:
    with pytest.raises(TraceRefusedError, match="does not look inside"):
        shares(Analysis(graph_trace()), VERIFY, 1.0)
    with pytest.raises(TraceRefusedError, match="no replay of it"):
        shares(Analysis(node_trace()), "decode[R=1,T=1,q=1]", 1.0)


# --- names and files


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("_ZN7kernels7project12norm_projectB2v1B38c8tJTIcFHzwl2ILiXkcBV0KBSsNGHr9xK7Lt0AE", "norm_project"),
        ("void gemvx::kernel<int, int, __nv_bfloat16>(cublasGemvParams)", "kernel"),
        ("nvjet_tst_64x8_64x16_4x1_v_bz_TNT", "nvjet_tst_64x8_64x16_4x1_v_bz_TNT"),
    ],
)
def test_operations_are_found_in_kernel_names(name: str, expected: str) -> None:
    assert operation(name) == expected


@pytest.mark.parametrize(
    ("module", "family"),
    [
        ("kernels.attend_tile", "attention"), ("kernels.project", "products"),
        ("kernels.block_conv", "drafter"), ("kernels.clear_drafts", "drafter"), ("kernels.sampling_slots", "sampling"),
        ("kernels.new", "other"),
    ],
)
def test_a_family_is_known_by_the_file_of_a_kernel(module: str, family: str) -> None:
    assert family_of_module(module) == family


def test_every_kernel_of_a_step_has_a_family() -> None:
    """Only random weights are none: they are made before the first step."""
    files = sorted(Path(kernels.__file__).parent.glob("*.py"))
    of_kernels = [file.stem for file in files if "\n@kernel(" in file.read_text(encoding="utf-8")]
    assert [stem for stem in of_kernels if family_of_module(f"kernels.{stem}") == OTHER] == ["fill_random"]


@pytest.mark.parametrize("trace", [graph_trace(), node_trace(), events_trace()])
def test_a_trace_survives_its_file(trace: Trace) -> None:
    assert Trace.from_dict(trace.as_dict()) == replace(trace, launches=dict(trace.launches))
