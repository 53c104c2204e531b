"""The result of `draftgraph bench` for a reader."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from runtime.report import lengths_line
from runtime.shown_value import counted


def render_bench(result: dict[str, Any]) -> str:
    """The result for a reader."""
    lines = [
        f"{result['model_id']}: {result['num_prompts']} requests ({result['repeats']} repetitions after "
        f"{result['num_warmups']} warm-up), {result['max_concurrency']} at a time",
        f"load {result['load_s']:.2f} s, peak memory {result['peak_memory_bytes'] / 2**30:.2f} GiB",
        f"tokens: {result['total_input_tokens']} in, {result['total_output_tokens']} out",
        f"output: median {result['median_output_throughput']:.1f} tok/s, spread "
        f"{result['output_throughput_spread'] * 100:.1f} % over repetitions",
    ]
    if "prefill_tokens_per_s" in result:
        decode = result["decode_tokens_per_s"]
        decode = "-" if decode is None else f"{decode:.1f} tok/s"
        lines.append(f"one request: prefill {result['prefill_tokens_per_s']:.1f} tok/s, decode {decode}")
    if "tpot_spread" in result:
        tpots = result["repetition_tpots_ms"]
        lines.append(f"TPOT of a repetition: median {statistics.median(tpots):.3f} ms, spread {result['tpot_spread'] * 100:.1f} %")
    if "cores_busy_elsewhere" in result:
        spread = max(result["output_throughput_spread"], result.get("tpot_spread", 0.0))
        cores = result["usable_cores"]
        busy = f"{min(result['cores_busy_elsewhere'], cores)} of {counted(cores, 'core')}"
        lines.append(f"spread of {spread * 100:.0f} %: other work on this machine? behind the last repetition it kept {busy} busy")
    for name in ("ttft", "tpot", "itl", "e2el"):
        if f"median_{name}_ms" in result:
            lines.append(
                f"{name.upper()}: median {result[f'median_{name}_ms']:.2f} ms, mean {result[f'mean_{name}_ms']:.2f}, "
                f"std {result[f'std_{name}_ms']:.2f}, p99 {result[f'p99_{name}_ms']:.2f}"
            )
    if "spec_decode_acceptance_length" in result:
        rates = " ".join(f"{rate:.2f}" for rate in result["spec_decode_per_position_acceptance_rates"])
        synthetic = f"{result['acceptance']}: " if "acceptance" in result else ""
        lines.append(
            f"{synthetic}acceptance length {result['spec_decode_acceptance_length']:.2f}, rate "
            f"{result['spec_decode_acceptance_rate']:.1f} %, per position {rates}, "
            f"{result['spec_decode_num_drafts']} drafts"
        )
    if "draft_lengths" in result:
        lines.append(lengths_line(result["draft_lengths"]))
        lines += [f"  at {size}: {choice}" for size, choice in result["draft_lengths"].get("chosen", {}).items()]
    lines += _steps(result["steps"])
    if "speedup" in result:
        plain = result["without_speculation"]["median_output_throughput"]
        same = "the same tokens" if result["same_tokens"] else "DIFFERENT TOKENS"
        lines.append(f"without speculation: {plain:.1f} tok/s; speed-up {result['speedup']:.2f}, {same}")
    return "\n".join(lines)


def _steps(steps: dict[str, Any]) -> Iterator[str]:
    """What a step costs the host and the device, or why that is not known."""
    if host := steps["host_step_ms"]:
        phases = ", ".join(f"{name} {host[name]:.3f}" for name in ("schedule", "stage", "launch", "update", "detokenise"))
        yield f"host a step: {host['work']:.3f} ms ({phases}), then {host['collect']:.3f} ms of waiting for the device"
    if "device_absent" in steps:
        yield f"device a step: not measured, {steps['device_absent']}"
        return
    device = steps["device_step_ms"]
    yield (
        f"device a step: {device['median']:.3f} ms (p10 {device['p10']:.3f}, p90 {device['p90']:.3f}) in "
        f"{steps['steady_steps']} of {steps['steady_graph']}"
    )
    if gap := steps.get("replay_gap_ms"):
        yield f"between two steps: {gap['median'] * 1e3:.1f} us (p90 {gap['p90'] * 1e3:.1f}, largest {gap['max'] * 1e3:.1f})"
    read = f"{steps['weight_bytes'] / 1e9:.3f} GB of weights and {steps['kv_bytes'] / 1e9:.3f} GB of keys and values"
    copy = f"copy here {steps['copy_gb_s']:.0f} GB/s, {steps['share_of_copy'] * 100:.0f} % of it" if "copy_gb_s" in steps else ""
    yield f"a step reads {read}: {steps['achieved_gb_s']:.0f} GB/s; {copy or steps['copy_absent']}"
