"""Ops of the JSON form that are host functions of the runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from runtime.batch import QueryRow, RowShape, dummy_batch, order_rows, uniform_query_length
from runtime.metrics import AcceptanceStats, conditional_rates, mean_length, rates_from_mean_length
from tests.vectors.fields import Inputs

Outputs = dict[str, Any]


def order(inputs: Inputs) -> Outputs:
    rows = order_rows(inputs["requests"], int(inputs["query_len"]), lambda row: RowShape(int(row[1]), bool(row[2])))
    return {"order": [row[0] for row in rows]}


def uniform(inputs: Inputs) -> Outputs:
    rows = [QueryRow(*(int(value) for value in row[:3]), *(bool(value) for value in row[3:4])) for row in inputs["rows"]]
    return {"query_len": uniform_query_length(rows, int(inputs["query_len"]))}


def dummy_batch_op(inputs: Inputs) -> Outputs:
    return {"lengths": dummy_batch(int(inputs["num_requests"]), int(inputs["num_tokens"]))}


def acceptance(inputs: Inputs) -> Outputs:
    steps = inputs.get("steps") or []
    k = inputs.get("num_speculative_tokens")
    stats = AcceptanceStats(int(k) if k is not None else max((drafted for drafted, _ in steps), default=0))
    for drafted, accepted in steps:
        stats.add_step(drafted, accepted)
    return {
        "histogram": stats.histogram,
        "num_drafts": stats.num_drafts,
        "num_draft_tokens": stats.num_draft_tokens,
        "num_accepted": stats.num_accepted_tokens,
        "mean_acceptance_length": stats.mean_acceptance_length,
        "draft_acceptance_rate": stats.draft_acceptance_rate,
        "per_position_acceptance": stats.per_position_acceptance,
    }


def synthetic_rates(inputs: Inputs) -> Outputs:
    rates = inputs.get("unconditional")
    if rates is None:
        rates = rates_from_mean_length(float(inputs["mean_length"]), int(inputs["num_speculative_tokens"]))
    return {"unconditional": rates, "conditional": conditional_rates(rates), "mean_length": mean_length(rates)}


HOST_OPS: dict[str, Callable[[Inputs], Outputs]] = {
    "order": order,
    "uniform": uniform,
    "dummy_batch": dummy_batch_op,
    "acceptance": acceptance,
    "synthetic_rates": synthetic_rates,
}
