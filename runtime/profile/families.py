"""Kernel families: what part of a step an operation is, and which share of the step each family takes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from runtime.profile.analysis import Analysis
from runtime.profile.intervals import exclusive
from runtime.profile.trace import Activity, Kind, Mode, TraceRefusedError

PRODUCTS, ATTENTION, ELEMENTWISE, SAMPLING, STEP, DRAFTER, COPIES, OTHER = (
    "products", "attention", "elementwise", "sampling", "step", "drafter", "copies", "other",
)  # fmt: skip

_MODULES = {
    PRODUCTS: "project head held tile flow slab wide",
    ATTENTION: "attend attention rotate rope kv_store head_norm",
    ELEMENTWISE: "add rmsnorm swiglu bias embed gather behind",
    SAMPLING: "argmax sample sampling random reject process penalties logprobs",
    DRAFTER: "ngram block context candidates selector draft tap keep_taps logit_scale clear_drafts",
    STEP: "accept advance begin_step combine end_step prepare prefill_inputs publish expand slots request_lists tape toy",
}
_BY_MODULE = {module: family for family, modules in _MODULES.items() for module in modules.split()}
_LIBRARY_PRODUCT = re.compile(r"gemm|gemv|cutlass|nvjet|splitk|cublas|matmul|xmma", re.IGNORECASE)
_LENGTH = re.compile(r"\d+")


def family_of_module(module: str) -> str:
    """`kernels.attend_tile` -> attention: by the first words of the file's name, because a part of a kernel lies beside it."""
    words = module.rpartition(".")[2].split("_")
    for length in range(len(words), 0, -1):
        if (family := _BY_MODULE.get("_".join(words[:length]))) is not None:
            return family
    return OTHER


def operation(kernel_name: str) -> str:
    """`_ZN7kernels7project12norm_projectB2v1...` -> norm_project; of a name that is not mangled, what precedes its template."""
    if not kernel_name.startswith("_ZN"):
        return kernel_name.partition("<")[0].rpartition("::")[2].removeprefix("void ").strip() or kernel_name
    at, parts = 3, []
    while (match := _LENGTH.match(kernel_name, at)) is not None:
        end = match.end() + int(match.group())
        parts.append(kernel_name[match.end() : end])
        at = end
    return parts[-1] if parts else kernel_name


def family_of(activity: Activity, families: Mapping[str, str]) -> str:
    """families: operation -> family, of the kernels that our own graphs launch."""
    if activity.kind in (Kind.MEMCPY, Kind.MEMSET):
        return COPIES
    if (family := families.get(operation(activity.name))) is not None:
        return family
    return PRODUCTS if _LIBRARY_PRODUCT.search(activity.name) else OTHER


@dataclass(frozen=True)
class Share:
    """One family in one graph.

    Attributes:
        share: of the replay's span. time_ns: the same share of the span that the graph pass measured.
        kernels: records of one replay. nbytes: that it has to read: weights, or keys and values.
    """

    family: str
    share: float
    time_ns: float
    kernels: float
    nbytes: int

    @property
    def gigabytes_per_s(self) -> float | None:
        """Bytes over the time of the family; None where nobody counted them."""
        return self.nbytes / self.time_ns if self.nbytes and self.time_ns else None


BETWEEN = "between nodes"


def shares(node: Analysis, key: str, span_ns: float) -> list[Share]:
    """How one replay of `key` divides, largest family first, and BETWEEN: the time in which none of its nodes ran.

    Args:
        node: of a node trace: its proportions are used and its times are not.
        span_ns: time of one replay, from the graph pass; the shares are scaled to it.

    Raises:
        TraceRefusedError: not a node trace, or no replay of `key` in its window.
    """
    chosen = node.replays_inside(key, "shares")
    times: dict[str, int] = defaultdict(int)
    counts: dict[str, int] = defaultdict(int)
    whole = 0
    for i in chosen:
        nodes = sorted(node.nodes[i], key=lambda activity: activity.interval)
        for activity, length in zip(nodes, exclusive(activity.interval for activity in nodes), strict=True):
            family = family_of(activity, node.trace.families)
            times[family] += length
            counts[family] += 1
        whole += node.spans[i][1] - node.spans[i][0]
    times[BETWEEN] = whole - sum(times.values())
    nbytes = node.trace.family_bytes.get(key, {})
    found = [
        Share(family, time / whole, time / whole * span_ns, counts[family] / len(chosen), nbytes.get(family, 0))
        for family, time in times.items()
    ]
    return sorted(found, key=lambda share: (share.family == BETWEEN, -share.share))


def host_shares(analysis: Analysis) -> list[Share]:
    """What a step does on a device that runs on the host: time of each family, per step, largest first. Replays that were recorded
    as a whole count under the name of their graph.

    Raises TraceRefusedError: the trace comes from a device with a clock of its own.
    """
    trace = analysis.trace
    if trace.mode is not Mode.HOST:
        raise TraceRefusedError(f"shares of the host: a {trace.mode.value} trace has a device beside the host")
    first, last = trace.window
    keys = {number: trace.replays[number - 1].key for number in range(first + 1, last + 1)}
    times: dict[str, int] = defaultdict(int)
    counts: dict[str, int] = defaultdict(int)
    for activity in trace.activities:
        if activity.launch in keys:
            whole = activity.kind is Kind.GRAPH
            family = f"{keys[activity.launch].partition('[')[0]} replay" if whole else family_of(activity, trace.families)
            times[family] += activity.end - activity.start
            counts[family] += 1
    total = sum(times.values())
    found = [Share(name, time / total, time / trace.steps, counts[name] / trace.steps, 0) for name, time in times.items()]
    return sorted(found, key=lambda share: -share.share)
