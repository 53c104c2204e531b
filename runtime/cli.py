"""The command line: `draftgraph run | info | bench CONFIG` and `draftgraph gates`. Exit codes: runtime/cli_session.py."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import nullcontext
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runtime.cli_bench import bench
from runtime.cli_cache import cache
from runtime.cli_compare import compare
from runtime.cli_gates import gates
from runtime.cli_profile import profile
from runtime.cli_records import records
from runtime.cli_sampling import Logprobs, MinP, Seed, Sequences, Stop, Temperature, TopK, TopP, sampling_overrides
from runtime.cli_session import (
    INTERRUPTED,
    USER_ERROR,
    ConfigPath,
    MaxTokens,
    Overrides,
    PromptFile,
    Prompts,
    Quiet,
    exits,
    open_engine,
    requests_of,
    settings_of,
)
from runtime.cli_usage import exit_code_of
from runtime.config import RunConfig
from runtime.prompts import Prompt
from runtime.report import RunRecord, lengths_line, render_info, stats_line
from runtime.sampling import SamplingParams
from runtime.text_printer import TextPrinter
from runtime.watch import Watch

if TYPE_CHECKING:
    from runtime.engine import Engine

app = typer.Typer(
    name="draftgraph",
    help="LLM inference with speculative decoding, every GPU step the replay of a captured graph.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # paragraphs of docstrings are wrapped to the terminal
)


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
    temperature: Temperature = None,
    top_p: TopP = None,
    top_k: TopK = None,
    min_p: MinP = None,
    seed: Seed = None,
    stop: Stop = None,
    logprobs: Logprobs = None,
    n: Sequences = None,
    set_: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="Prints one JSON object instead of text.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Shows on stderr what the engine does; text follows at the end.")] = False,
    quiet: Quiet = False,
) -> None:
    """Answers prompts: text as it is produced, at the end a line of statistics."""
    given: dict[str, Any] = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p, "seed": seed}
    given |= {"stop": stop or None, "logprobs": logprobs, "n": n}
    with exits():
        settings = settings_of(config, [*(set_ or []), *sampling_overrides(given)], max_tokens)
        requests = requests_of(settings, prompt, prompt_file)
        with open_engine(settings, quiet, lambda intake: intake.requests(*requests)) as engine:
            code = _answer(engine, settings, *requests, as_json=as_json, watch=watch)
    if code:
        raise typer.Exit(code)


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


app.command()(bench)
app.command()(cache)
app.command()(compare)
app.command()(gates)
app.command()(profile)
app.command()(records)


def main() -> None:
    """Entry point of the `draftgraph` command."""
    # A stream that the caller closed is None here. Messages may go nowhere; answers that do are a mistake, told before any work.
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for as long as the process lives
    if sys.stdout is None:
        print("error: stdout is closed: what is asked for would go nowhere; give it a place, e.g. > /dev/null", file=sys.stderr)
        sys.exit(USER_ERROR)
    sys.exit(exit_code_of(app, sys.argv[1:]))


def _answer(
    engine: Engine,
    settings: RunConfig,
    prompts: list[Prompt],
    params: list[SamplingParams],
    names: list[str],
    *,
    as_json: bool,
    watch: bool,
) -> int:
    """Prints the answers and the statistics, also of what an interrupt left. Returns the exit code."""
    # A terminal that cannot show a character gets a question mark instead of an error in mid-answer.
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    # A prompt with n answers is n requests, one behind the other.
    asked = [prompt for prompt, each in zip(prompts, params, strict=True) for _ in range(each.n)]
    asked_by = [
        f"{name}, sample {sample}" if each.n > 1 else name
        for name, each in zip(names, params, strict=True)
        for sample in range(each.n)
    ]
    printer = None if as_json else TextPrinter(sys.stdout, asked, live=settings.run.stream)
    record = RunRecord(asked, time.perf_counter())
    interrupted = False
    with Watch(engine, printer) if watch else nullcontext() as view:
        try:
            for event in engine.stream(prompts, params, names=names):
                record.add(event, time.perf_counter())
                if view is not None:
                    view.add(event)
                elif printer is not None:
                    printer.add(event.index, event.text, ended=event.output is not None)
        except KeyboardInterrupt:
            interrupted = True
    if interrupted and printer is not None:
        printer.interrupt()
    info = engine.info()
    lengths = info.get("speculator", {}).get("draft_lengths")
    if as_json:
        values = record.as_dict() | {"paths": info.get("paths", {})} | ({"draft_lengths": lengths} if lengths else {})
        print(json.dumps(values, ensure_ascii=False), flush=True)
    note = f" | {lengths_line(lengths)}" if lengths else ""
    note += " | interrupted" if interrupted else ""
    print(stats_line(record.totals(), len(prompts)) + note, file=sys.stderr, flush=True)
    stuck = [(name, output) for name, output in zip(asked_by, record.outputs(), strict=True) if output.finish_reason == "error"]
    for name, output in stuck:
        reason = "every logit there is NaN or masked; allowed_token_ids, bad_words and min_tokens must leave a token to choose"
        print(f"error: {name}: ended behind {len(output.token_ids)} tokens: {reason}", file=sys.stderr, flush=True)
    return INTERRUPTED if interrupted else USER_ERROR if stuck else 0


if __name__ == "__main__":
    main()
