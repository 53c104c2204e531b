"""`make gpu`: every GPU test, a process for each file and several at a time, then the benches alone on the GPU; one table last.

A process for each file, because CUDA takes no more work in one that has seen a fault. Benches run when the tests have ended:
nothing else may be on the GPU while a step is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conftest import has_gpu
from tests.gpu_report import merged, table, totals

ROOT = Path(__file__).resolve().parents[1]
FILE_LIMIT_S, BENCH_LIMIT_S = 300, 100
PROCESSES = max(4, min(12, (os.cpu_count() or 8) // 2))
"""At a time. They share one GPU: what they wait for is the compiler."""

LONGEST_FIRST = (
    "test_long_prompts",
    "test_gpu_dflash",
    "test_gpu_smollm2",
    "test_gpu_engine",
    "test_gpu_waits",
    "test_kernels_block_attention",
    "test_kernels_block_conv",
    "test_kernels_dflash",
    "test_kernels_selector",
    "test_gpu_params",
    "test_kernels_fused",
    "test_gpu_gates",
    "test_kernels_attend",
)
NO_TESTS = 5  # pytest's exit code
SHAPE = ["--concurrency", "1", "8", "--input-len", "128", "--output-len", "128"]
DRAFTED = ["--set", "speculator.method=dflash", "--set", "speculator.draft_source=random:dflash"]
DRAFTED += ["--set", "speculator.num_speculative_tokens=7", "--acceptance", "synthetic:0.6"]


@dataclass(frozen=True)
class BenchRun:
    """One call of `draftgraph bench`."""

    name: str
    arguments: list[str]


BENCHES = (
    BenchRun("SmolLM2-135M shape, bf16", ["configs/random-smollm2-135m.yaml", *SHAPE]),
    BenchRun("Qwen3-8B shape, bf16", ["configs/random-qwen3-8b.yaml", *SHAPE]),
    BenchRun("Qwen3-8B shape, DFlash k=7, acceptance synthetic:0.6", ["configs/random-qwen3-8b.yaml", *SHAPE, *DRAFTED]),
)


def gpu_test_files() -> tuple[list[Path], list[str]]:
    """(files with tests of the GPU, those that take longest first; files that cannot be collected). pytest is asked, because a mark
    can come from anywhere."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "gpu", "-p", "no:cacheprovider"]
    command += ["--continue-on-collection-errors", "tests"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=FILE_LIMIT_S, check=False)
    lines = done.stdout.splitlines()
    files = {ROOT / line.partition("::")[0] for line in lines if "::" in line and not line.startswith("ERROR")}
    failures = [f"{line.split()[1]}: cannot be collected" for line in lines if line.startswith("ERROR ")]
    if failures:
        print("\n".join(line for line in lines if "::" not in line), file=sys.stderr, flush=True)
    order = {name: place for place, name in enumerate(LONGEST_FIRST)}
    return sorted(files, key=lambda path: (order.get(path.stem, len(order)), path)), failures


def run_file(path: Path, folder: Path, limit_s: float = FILE_LIMIT_S) -> dict[str, Any]:
    """Its report; a process that dies or takes too long is a failure of the file."""
    report, log = folder / f"{path.stem}.json", folder / f"{path.stem}.log"
    name = str(path.relative_to(ROOT))
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-p", "tests.gpu_report", "-p", "no:cacheprovider", name]
    environment = {**os.environ, "DRAFTGRAPH_GPU_REPORT": str(report)}
    began = time.perf_counter()
    with log.open("w", encoding="utf-8") as output:
        try:
            code = subprocess.run(
                command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, timeout=limit_s, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            code = -1
    spent = time.perf_counter() - began
    outcome = "passed" if code == 0 else "no GPU tests" if code == NO_TESTS else "FAILED"
    print(f"{name}: {outcome} in {spent:.0f} s", file=sys.stderr, flush=True)
    values: dict[str, Any] = json.loads(report.read_text()) if report.exists() else merged([])
    if outcome == "FAILED":
        print("\n".join(log.read_text(errors="replace").splitlines()[-40:]), file=sys.stderr, flush=True)
        if not values["failures"]:
            values["failures"].append(f"{name}: " + ("took too long" if code == -1 else f"the process ended with code {code}"))
    return values


def run_bench(bench: BenchRun, folder: Path) -> tuple[list[str], list[str]]:
    """(lines of the table, failures)."""
    file = folder / "bench.json"
    file.unlink(missing_ok=True)
    code = "from runtime.cli import main; main()"
    command = [sys.executable, "-c", code, "bench", *bench.arguments, "--quiet", "--json", str(file)]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=BENCH_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return [], [f"bench of {bench.name}: took more than {BENCH_LIMIT_S} s"]
    if done.returncode != 0:
        # Who was killed, for memory say, has said nothing.
        said = done.stderr.strip().splitlines() or [f"the process ended with code {done.returncode}"]
        return [], [f"bench of {bench.name}: {said[-1]}"]
    print(done.stdout, file=sys.stderr, flush=True)
    return [_bench_line(bench.name, run) for run in json.loads(file.read_text())["runs"]], []


def _bench_line(name: str, run: dict[str, Any]) -> str:
    steps = run["steps"]
    length = f", acceptance length {run['spec_decode_acceptance_length']:.2f}" if "spec_decode_acceptance_length" in run else ""
    device = f"device {steps['device_step_ms']['median']:.3f} ms a step" if "device_step_ms" in steps else "no device clock"
    copy = f" of {steps['copy_gb_s']:.0f}" if "copy_gb_s" in steps else ""
    share = f", {steps['achieved_gb_s']:.0f}{copy} GB/s" if "achieved_gb_s" in steps else ""
    tpot = f"TPOT {run['median_tpot_ms']:.3f} ms (spread {run['tpot_spread'] * 100:.1f} %)"
    host = f"host {steps['host_step_ms']['work']:.3f} ms"
    return f"{name}, c={run['max_concurrency']}: {tpot}, {device}, {host}{share}{length}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.run_gpu", description=__doc__)
    parser.add_argument("--without-benches", action="store_true", help="the tests only, as where the GPU is not alone")
    parser.add_argument("--limit", type=float, default=FILE_LIMIT_S, metavar="S", help=f"seconds of a file ({FILE_LIMIT_S})")
    options = parser.parse_args(arguments)
    if not has_gpu():
        print("make gpu: no CUDA device on this machine", file=sys.stderr)
        return 1
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files, uncollected = gpu_test_files()
        with ThreadPoolExecutor(PROCESSES) as pool:
            report = merged(list(pool.map(lambda path: run_file(path, folder, options.limit), files)))
        report["failures"] += uncollected
        tested = time.perf_counter() - began
        lines: list[str] = []
        for bench in () if options.without_benches else BENCHES:
            rows, failures = run_bench(bench, folder)
            lines += rows
            report["failures"] += failures
    print("\n".join(["", *lines, *table(report)]))
    total = time.perf_counter() - began
    print(f"{totals(report)}; tests {tested:.0f} s, everything {total:.0f} s")
    passed = any(count.get("passed") for count in report["files"].values())
    return 1 if report["failures"] or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
