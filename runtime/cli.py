"""The command line: `draftgraph run | info | bench CONFIG` and `draftgraph gates`.

stdout carries answers or one JSON object; log lines, progress and statistics go to stderr. Exit codes: 0 done, 1 a gate is not
SATISFIED, 2 a mistake of the user (the message says which), 130 interrupted (what was produced is shown), 141 stdout was closed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runtime.config import RunConfig, load_config
from runtime.console import progress_bar, silent_bar, start_logging
from runtime.errors import ConfigError, DeviceError, DraftgraphError, PromptError
from runtime.prompts import Prompt, check_prompt, read_prompt_file
from runtime.report import RunRecord, render_info, stats_line
from runtime.text_printer import TextPrinter

if TYPE_CHECKING:
    from runtime.engine import Engine

OPEN_GATE, USER_ERROR, INTERRUPTED, CLOSED_PIPE = 1, 2, 130, 141

app = typer.Typer(
    name="draftgraph",
    help="LLM inference with speculative decoding, every GPU step the replay of a captured graph.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

ConfigPath = Annotated[str, typer.Argument(metavar="CONFIG", help="YAML file, see configs/reference.yaml.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="A.B=C", help="Sets a configuration key; the value is YAML.")
]
Prompts = Annotated[list[str] | None, typer.Option("--prompt", "-p", metavar="TEXT", help="A prompt; may be repeated.")]
PromptFile = Annotated[
    str | None,
    typer.Option("--prompt-file", metavar="FILE", help="One prompt a line, or a JSON list of texts, chats or id lists."),
]
MaxTokens = Annotated[int | None, typer.Option("--max-tokens", metavar="N", help="Tokens to produce at most.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No log lines and no progress on stderr.")]


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
    with _exits():
        settings = _settings(config, set_, max_tokens)
        prompts = _prompts(settings, prompt, prompt_file)
        with _open_engine(settings, quiet) as engine:
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
    with _exits():
        with _open_engine(_settings(config, set_), quiet) as engine:
            values = engine.info()
        print(json.dumps(values, indent=2, default=str) if as_json else render_info(values), flush=True)


@app.command()
def bench(
    config: ConfigPath,
    prompt: Prompts = None,
    prompt_file: PromptFile = None,
    max_tokens: MaxTokens = None,
    set_: Overrides = None,
    num_warmups: Annotated[int, typer.Option(min=0, help="Runs of all prompts before the clock counts.")] = 1,
    repeats: Annotated[int, typer.Option(min=1, help="Timed runs of all prompts.")] = 3,
    max_concurrency: Annotated[
        int | None, typer.Option(min=1, help="Prompts in one call; default scheduler.max_num_seqs.")
    ] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Always produces max_tokens tokens.")] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Runs everything without speculation too: same tokens? how much faster?")
    ] = False,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Writes the result as JSON; - is stdout.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Times the prompts: warm-up, repetitions, median and spread; result keys as `vllm bench serve` names them."""
    from runtime.bench import Bench, compared, render_bench

    with _exits():
        settings = _settings(config, [*(set_ or []), *(["sampling.ignore_eos=true"] if ignore_eos else [])], max_tokens)
        prompts = _prompts(settings, prompt, prompt_file)
        plan = Bench(prompts, num_warmups, repeats, max_concurrency or settings.scheduler.max_num_seqs)
        result = plan.run(settings, lambda: _open_engine(settings, quiet))
        if compare:
            plain = load_config(settings, speculator__method="none")
            result = compared(result, plan.run(plain, lambda: _open_engine(plain, quiet)))
        text = json.dumps(result, indent=2)
        if json_file == "-":
            print(text, flush=True)
        else:
            print(render_bench(result), flush=True)
            if json_file:
                _write(Path(json_file), text)


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
    as_json: Annotated[bool, typer.Option("--json", help="Prints one JSON object instead of a table.")] = False,
    quiet: Quiet = False,
) -> None:
    """Proves the runtime on a CPU with a toy model: routing, token identity, and drafts compared by id. Exit code 1 when a gate is
    not SATISFIED."""
    with _exits():
        start_logging(quiet=True)
        from graphs.cpu_executor import CpuExecutor
        from runtime.gates.case import Case
        from runtime.gates.gates import GATES, run_gate
        from runtime.gates.matrix import scheduled
        from runtime.gates.table import render_reports
        from runtime.gates.verdict import Verdict

        chosen = list(dict.fromkeys(name.upper() for name in names or GATES))
        if unknown := [name for name in chosen if name not in GATES]:
            raise ConfigError(f"gate = {unknown[0]}: must be one of {', '.join(GATES)}")
        if sum((full, schedules, bool(case))) > 1:
            raise ConfigError("gates: --full, --schedules and --case exclude each other; give one of them")
        cases = [Case.parse(text) for text in case] if case else list(scheduled()) if schedules else None
        bars, executor, reports = silent_bar if quiet else progress_bar, CpuExecutor(), []
        for name in chosen:
            with bars(name, "cases") as advance:
                reports.append(run_gate(name, executor, cases=cases, everything=full, progress=advance))
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


def _settings(path: str, overrides: list[str] | None, max_tokens: int | None = None) -> RunConfig:
    extra = [] if max_tokens is None else [f"sampling.max_tokens={max_tokens}"]
    return load_config(path, [*(overrides or []), *extra])


def _prompts(settings: RunConfig, texts: list[str] | None, file: str | None) -> list[Prompt]:
    """Prompts of the command line (texts first), else of the configuration; shapes are checked before a model loads."""
    prompts: list[Prompt] = [*(texts or [])]
    if file is not None:
        prompts += read_prompt_file(file)
    prompts = prompts or list(settings.run.prompts)
    if not prompts:
        raise PromptError("no prompt: give --prompt TEXT or --prompt-file FILE, or set run.prompts in the configuration")
    for number, prompt in enumerate(prompts, start=1):
        check_prompt(prompt, f"prompt {number}")
    return prompts


def _open_engine(settings: RunConfig, quiet: bool) -> Engine:
    """Loads the model. The engine is imported here and not above: numba reads the environment when it is imported."""
    start_logging(quiet=quiet)
    if settings.device == "simulator":
        if "numba" in sys.modules and os.environ.get("NUMBA_ENABLE_CUDASIM") != "1":
            raise DeviceError(
                "device = simulator: numba was imported before without its simulator; set NUMBA_ENABLE_CUDASIM=1"
            )
        os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
    from runtime.engine import Engine

    return Engine.from_config(settings, progress=silent_bar if quiet else progress_bar)


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


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--json {path}: cannot be written: {error.strerror}") from error


@contextmanager
def _exits() -> Iterator[None]:
    """Turns what a command may end with into a message and an exit code."""
    try:
        yield
    except DraftgraphError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(USER_ERROR) from error
    except KeyboardInterrupt as error:
        typer.echo("interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from error
    except BrokenPipeError as error:
        # The reader went away, as `| head` does. What is still buffered must not fail again when Python exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(CLOSED_PIPE) from error
    except OSError as error:
        # A full disk under stdout, a device that went away. Python flushes once more at exit, which must not fail again.
        typer.echo(f"error: cannot write the output: {error.strerror or error}", err=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(USER_ERROR) from error


if __name__ == "__main__":
    main()
