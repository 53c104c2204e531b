"""The command line: `draftgraph run | info | bench CONFIG` and `draftgraph gates`. Exit codes: runtime/cli_session.py."""

from __future__ import annotations

import json
import os
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from runtime.cli_bench import bench
from runtime.cli_compare import compare
from runtime.cli_profile import profile
from runtime.cli_records import records
from runtime.cli_session import (
    INTERRUPTED,
    OPEN_GATE,
    ConfigPath,
    MaxTokens,
    Overrides,
    PromptFile,
    Prompts,
    Quiet,
    exits,
    open_engine,
    prompts_of,
    settings_of,
)
from runtime.config import RunConfig
from runtime.console import progress_bar, silent_bar, start_logging
from runtime.errors import ConfigError
from runtime.prompts import Prompt
from runtime.report import RunRecord, render_info, stats_line
from runtime.text_printer import TextPrinter

if TYPE_CHECKING:
    from runtime.engine import Engine

app = typer.Typer(
    name="draftgraph",
    help="LLM inference with speculative decoding, every GPU step the replay of a captured graph.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(bench)
app.command()(compare)
app.command()(profile)
app.command()(records)


def _print_version(wanted: bool) -> None:
    if wanted:
        try:
            typer.echo(f"draftgraph {version('draftgraph')}")
        except PackageNotFoundError:
            typer.echo("draftgraph (not installed, run from its source)")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Prints the version.")
    ] = False,
) -> None:
    """LLM inference with speculative decoding, every GPU step the replay of a captured graph."""


@app.command()
def run(
    config: ConfigPath,
    prompt: Prompts = None,
    prompt_file: PromptFile = None,
    max_tokens: MaxTokens = None,
    set_: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="Prints one JSON object instead of text.")] = False,
    quiet: Quiet = False,
) -> None:
    """Answers prompts: text as it is produced, at the end a line of statistics."""
    with exits():
        settings = settings_of(config, set_, max_tokens)
        prompts = prompts_of(settings, prompt, prompt_file)
        with open_engine(settings, quiet) as engine:
            finished = _answer(engine, settings, prompts, as_json=as_json)
    if not finished:
        raise typer.Exit(INTERRUPTED)


@app.command()
def info(
    config: ConfigPath,
    set_: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="Prints one JSON object instead of text.")] = False,
    quiet: Quiet = False,
) -> None:
    """Prints what a configuration resolves to: device, policy and why, model, KV blocks, graphs, memory."""
    with exits():
        with open_engine(settings_of(config, set_), quiet) as engine:
            values = engine.info()
        print(json.dumps(values, indent=2, default=str) if as_json else render_info(values), flush=True)


@app.command()
def gates(
    names: Annotated[list[str] | None, typer.Argument(metavar="[G1 G2]", help="Which gates; default: all of them.")] = None,
    full: Annotated[bool, typer.Option("--full", help="The whole matrix instead of a sample of it: many minutes.")] = False,
    schedules: Annotated[
        bool, typer.Option("--schedules", help="Every speculator, k, batch and policy under eager, lazy and 20 random schedules.")
    ] = False,
    case: Annotated[
        list[str] | None, typer.Option("--case", metavar="CASE", help="One case, as a report writes it; may be repeated.")
    ] = None,
    device: Annotated[
        Literal["cpu", "cuda"], typer.Option(help="cuda: on the first GPU, whose order of work no schedule decides.")
    ] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Prints one JSON object instead of a table.")] = False,
    quiet: Quiet = False,
) -> None:
    """Proves the runtime on a CPU, or on a GPU, with a toy model: routing, token identity, and drafts compared by id. Exit code 1
    when a gate is not SATISFIED."""
    with exits():
        start_logging(quiet=True)
        from graphs.cpu_executor import CpuExecutor
        from runtime.device import open_device
        from runtime.gates.case import Case
        from runtime.gates.gates import GATES, run_gate
        from runtime.gates.matrix import scheduled
        from runtime.gates.table import render_reports
        from runtime.gates.toy_engine import OnGpu, Venue
        from runtime.gates.verdict import Verdict

        chosen = list(dict.fromkeys(name.upper() for name in names or GATES))
        if unknown := [name for name in chosen if name not in GATES]:
            raise ConfigError(f"gate = {unknown[0]}: must be one of {', '.join(GATES)}")
        if sum((full, schedules, bool(case))) > 1:
            raise ConfigError("gates: --full, --schedules and --case exclude each other; give one of them")
        cases = [Case.parse(text) for text in case] if case else list(scheduled()) if schedules else None
        venue: Venue = CpuExecutor()
        if device == "cuda":
            # Opened before the first case: a machine without a usable GPU is one error, not one for each case.
            open_device("cuda").close()
            venue = OnGpu()
        bars, reports = silent_bar if quiet else progress_bar, []
        for name in chosen:
            with bars(name, "cases") as advance:
                reports.append(run_gate(name, venue, cases=cases, everything=full, progress=advance))
        satisfied = all(report.verdict is Verdict.SATISFIED for report in reports)
        values = {"satisfied": satisfied, "gates": [report.as_dict() for report in reports]}
        print(json.dumps(values, indent=2) if as_json else render_reports(reports), flush=True)
    if not satisfied:
        raise typer.Exit(OPEN_GATE)


def main() -> None:
    """Entry point of the `draftgraph` command."""
    # A stream that the caller closed is None here: what would be written there goes nowhere.
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for as long as the process lives
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _answer(engine: Engine, settings: RunConfig, prompts: list[Prompt], *, as_json: bool) -> bool:
    """Prints the answers and the statistics. False when interrupted, with what there was printed all the same."""
    # A terminal that cannot show a character gets a question mark instead of an error in mid-answer.
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    printer = None if as_json else TextPrinter(sys.stdout, prompts, live=settings.run.stream)
    record = RunRecord(prompts, time.perf_counter())
    interrupted = False
    try:
        for event in engine.stream(prompts, settings.sampling.params()):
            record.add(event, time.perf_counter())
            if printer is not None:
                printer.add(event.index, event.text, ended=event.output is not None)
    except KeyboardInterrupt:
        interrupted = True
        if printer is not None:
            printer.interrupt()
    if as_json:
        values = record.as_dict() | {"paths": engine.info().get("paths", {})}
        print(json.dumps(values, ensure_ascii=False), flush=True)
    note = " | interrupted" if interrupted else ""
    print(stats_line(record.totals()) + note, file=sys.stderr, flush=True)
    return not interrupted


if __name__ == "__main__":
    main()
