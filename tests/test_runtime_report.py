"""What a run reports: totals, the line of statistics, interrupted requests, the values of info."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.metrics import AcceptanceStats
from runtime.report import RequestOutput, RunRecord, StreamEvent, render_info, stats_line, totals


def output(tokens: int, accepted: list[int], **changes: Any) -> RequestOutput:
    stats = AcceptanceStats(3)
    for count in accepted:
        stats.add_step(3, count)
    fields: dict[str, Any] = {"ttft_s": 0.1, "tpot_s": 0.02, **changes}
    return RequestOutput("r", "p", (1, 2), tuple(range(tokens)), "t", "length", acceptance=stats, **fields)


def test_totals_sum_counts_and_not_rates() -> None:
    # A mean of the two requests' lengths would be 2.5; drafts 1 and 3 weigh 1 to 3.
    values = totals([output(5, [3]), output(3, [0, 0, 0], ttft_s=0.3, tpot_s=None)], 2.0)
    assert values["mean_acceptance_length"] == 1 + 3 / 4
    assert values["per_position_acceptance"] == [0.25, 0.25, 0.25]
    assert values["num_drafts"] == 4
    assert values["output_tokens_per_s"] == 4.0
    assert values["mean_ttft_s"] == pytest.approx(0.2)
    assert values["mean_tpot_s"] == pytest.approx(0.02)


def test_the_stats_line_without_a_token() -> None:
    line = stats_line(totals([RequestOutput("r", "p", (), (), "", "cancelled")], 0.0))
    assert line == "1 prompt, 0 prompt + 0 new tokens in 0.00 s | TTFT - | TPOT -"


def test_a_record_times_an_interrupted_request_itself() -> None:
    record = RunRecord(["a", "b"], 10.0)
    record.add(StreamEvent(1, "x", (1,)), 10.5)
    record.add(StreamEvent(1, "y", (2, 3)), 11.5)
    assert not record.finished
    first, second = record.outputs()
    assert (first.text, first.ttft_s, first.tpot_s, first.finish_reason) == ("", None, None, "cancelled")
    assert (second.text, second.token_ids, second.ttft_s, second.tpot_s) == ("xy", (1, 2, 3), 0.5, 0.5)
    assert record.totals()["duration_s"] == 1.5


def test_info_renders_empty_and_nested_values() -> None:
    info = {"a": [], "b": {}, "c": [{}, {"d": {"e": 1}}, "f"], "g": (1, 2)}
    assert render_info(info) == "a: none\nb: none\nc:\n  -\n  - d:\n      e: 1\n  - f\ng: 1, 2"


def test_info_breaks_a_list_that_is_longer_than_a_line() -> None:
    graphs = [f"verify[R={rows},T={8 * rows},q=8]: 313 nodes" for rows in (1, 2, 4, 8)]
    assert render_info({"captured": graphs}) == "captured:\n" + "\n".join(f"  - {graph}" for graph in graphs)
    assert render_info({"captured": graphs[:2]}) == f"captured: {graphs[0]}, {graphs[1]}"
