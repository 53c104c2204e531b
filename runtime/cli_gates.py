"""`draftgraph gates`: G1 and G2 prove the runtime with a toy model, G3 and G4 measure a real one on a GPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from runtime.cli_session import OPEN_GATE, Overrides, Quiet, exits, open_engine, prompts_of, settings_of
from runtime.console import progress_bar, silent_bar, start_logging
from runtime.errors import ConfigError, DraftgraphError
from runtime.output_path import writable_folder

if TYPE_CHECKING:
    from runtime.gates.measured import Measured
    from runtime.gates.verdict import GateReport

PROVED, MEASURED = ("G1", "G2"), ("G3", "G4")
DEFAULT_CONFIG = "configs/random-qwen3-8b.yaml"


def gates(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[G1 G2 G3 G4]", help="Which gates; default: G1 and G2, which need no GPU.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="The whole matrix instead of a sample of it: many minutes.")] = False,
    schedules: Annotated[
        bool,
        typer.Option(
            "--schedules",
            help="Every speculator with its k under eager, lazy and 20 random schedules, in batches and policies that change; "
            "with --full in every batch and policy.",
        ),
    ] = False,
    case: Annotated[
        list[str] | None, typer.Option("--case", metavar="CASE", help="One case, as a report writes it; may be repeated.")
    ] = None,
    device: Annotated[
        Literal["cpu", "cuda"], typer.Option(help="Of G1 and G2. cuda: on the first GPU, whose order of work no schedule decides.")
    ] = "cpu",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes that play the cases on a CPU; default: as many as there are usable cores.")
    ] = None,
    config: Annotated[str, typer.Option(metavar="CONFIG", help="What G3 and G4 measure.")] = DEFAULT_CONFIG,
    set_: Overrides = None,
    record: Annotated[
        str | None, typer.Option("--record", metavar="DIR", help="Writes what G3 and G4 measured, for `draftgraph records`.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Prints one JSON object instead of a table.")] = False,
    quiet: Quiet = False,
) -> None:
    """Proves the runtime with a toy model (G1, G2), and measures a real one on a GPU (G3, G4).

    On a CPU or a GPU: G1 routing and token identity, G2 drafts compared by id. On a GPU: G3 asynchronous against synchronous, G4
    how busy the device is; without one they are NOT MEASURED, which is no pass. Exit code 1 when a gate that was asked for is not
    SATISFIED.
    """
    with exits():
        start_logging(quiet=True)
        from runtime.gates.measured import Measured
        from runtime.gates.table import render_reports
        from runtime.gates.verdict import Verdict

        chosen = list(dict.fromkeys(name.upper() for name in names or PROVED))
        if unknown := [name for name in chosen if name not in PROVED + MEASURED]:
            flag = " (--schedules and --full take no value)" if schedules or full else ""
            raise ConfigError(f"gate = {unknown[0]}: must be one of {', '.join(PROVED + MEASURED)}{flag}")
        if case and (full or schedules):
            raise ConfigError("gates: --case names what to run; --full and --schedules cannot choose beside it")
        if not set(chosen) & set(MEASURED) and (record is not None or set_ or config != DEFAULT_CONFIG):
            raise ConfigError("gates: --config, --set and --record belong to what is measured; name G3 or G4")
        records = None if record is None else writable_folder(f"--record {record}", record)
        measured = [name for name in chosen if name in MEASURED]
        _refuse_unmeasurable(measured, config, set_)
        reports: list[GateReport] = []
        proved = [name for name in chosen if name in PROVED]
        if proved:
            reports += _prove(proved, full=full, schedules=schedules, case=case, device=device, workers=workers, quiet=quiet)
        try:
            for name in measured:
                found = _measure(name, config, set_, quiet)
                reports.append(found.report if isinstance(found, Measured) else found)
                if records is not None and isinstance(found, Measured):
                    sets = "".join(f" --set {text}" for text in set_ or [])
                    _keep(found, records, f"draftgraph gates {name} --config {config}{sets}")
        except DraftgraphError:
            # What took minutes is not lost with the gate behind it; stdout is for whole answers.
            if reports:
                typer.echo(render_reports(reports), err=True)
            raise
        satisfied = all(report.verdict is Verdict.SATISFIED for report in reports)
        # Whoever asks for one of them has chosen; whoever does not is told that there is more.
        left = [] if measured else list(MEASURED)
        values = {"satisfied": satisfied, "gates": [report.as_dict() for report in reports], "not_measured": left}
        print(json.dumps(values, indent=2) if as_json else render_reports(reports), flush=True)
        if left and not as_json:
            asked = f"draftgraph gates {' '.join(left)}"
            typer.echo(f"{' and '.join(left)}: NOT MEASURED here, and that is no pass; on a GPU: {asked}", err=True)
    if not satisfied:
        raise typer.Exit(OPEN_GATE)


def _prove(
    names: list[str],
    *,
    full: bool,
    schedules: bool,
    case: list[str] | None,
    device: str,
    workers: int | None,
    quiet: bool,
) -> list[GateReport]:
    from graphs.cpu_executor import CpuExecutor
    from graphs.cpu_matmul import use_threads
    from runtime.device import open_device, refuse_disabled_compiler
    from runtime.gates.case import Case
    from runtime.gates.gates import run_gate
    from runtime.gates.matrix import covering, scheduled
    from runtime.gates.toy_engine import OnGpu, Venue

    cases = [Case.parse(text) for text in case] if case else None
    if schedules:
        cases = list(scheduled() if full else covering())
    venue: Venue
    if device == "cuda":
        # Opened before the first case: a machine without a usable GPU is one error, not one for each case.
        open_device("cuda").close()
        venue = OnGpu()
    else:
        refuse_disabled_compiler()
        venue = CpuExecutor()
        use_threads(1)
    bars, reports = silent_bar if quiet else progress_bar, []
    for name in names:
        with bars(name, "cases") as advance:
            reports.append(run_gate(name, venue, cases=cases, everything=full, progress=advance, workers=workers))
    return reports


def _refuse_unmeasurable(names: list[str], config: str, overrides: list[str] | None) -> None:
    """What one gate needs of the configuration is asked before another takes minutes. Raises ConfigError, PromptError."""
    from runtime.cuda_probe import cuda_unavailable
    from runtime.profile.session import refuse_unprofiled

    if not names or cuda_unavailable() is not None:
        return
    settings = settings_of(config, overrides)
    if "G4" in names:
        prompts_of(settings, None, None)
        refuse_unprofiled(settings)


def _measure(name: str, config: str, overrides: list[str] | None, quiet: bool) -> Measured | GateReport:
    """On a GPU; without one every axis is NOT MEASURED, and the configuration is not even looked at."""
    from runtime.cuda_probe import cuda_unavailable
    from runtime.gates import g3, g4

    if (reason := cuda_unavailable()) is not None:
        return (g3 if name == "G3" else g4).without_gpu(f"needs a GPU: {reason}")
    settings = settings_of(config, overrides)
    if name == "G4":
        return g4.check_g4(settings, prompts_of(settings, None, None), quiet=True)
    with (silent_bar if quiet else progress_bar)(name, "runs") as advance:
        return g3.check_g3(settings, lambda arm: open_engine(arm.config, True, g3.expects), advance)


def _keep(found: Measured, folder: Path, command: str) -> None:
    from runtime.config import load_config
    from runtime.records import Record, sources_of

    sources = sources_of(load_config(found.workload["config"]))
    path = Record.of(found.report, found.workload, found.facts, command, sources).write(folder)
    print(f"wrote {path}", file=sys.stderr, flush=True)
