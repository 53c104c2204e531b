"""Reports of gates over one case, for their tests."""

from __future__ import annotations

from graphs.cpu_executor import CpuExecutor
from runtime.gates.case import Case
from runtime.gates.gates import run_gate
from runtime.gates.verdict import GateReport
from runtime.runner import Runner

EXECUTOR = CpuExecutor()
SPECULATIVE = Case(k=3, batch=3, accept="all", stop="max_tokens", event="reuse", seed=4)


def report_of(gate: str, case: Case, runner_type: type[Runner] = Runner) -> GateReport:
    return run_gate(gate, EXECUTOR, cases=[case], runner_type=runner_type)
