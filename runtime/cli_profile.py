"""`draftgraph profile CONFIG`: where the time of a step goes, as a table, a picture, a page and a trace file."""

from __future__ import annotations

import json
from itertools import cycle, islice
from typing import Annotated, Literal

import typer

from runtime.cli_session import (
    OPEN_GATE,
    ConfigPath,
    Overrides,
    PromptFile,
    Prompts,
    Quiet,
    exits,
    open_engine,
    prompts_of,
    refuse_waiting,
    settings_of,
)
from runtime.console import progress_bar, silent_bar
from runtime.output_path import writable_folder


def profile(
    config: ConfigPath,
    trace: Annotated[
        Literal["graph", "node"],
        typer.Option(help="graph: replays as a whole, at hardly any cost; node: what is inside them as well, by a slowed pass."),
    ] = "node",
    steps: Annotated[
        int | None, typer.Option(min=1, help="Decode steps to look at; default 200 on a GPU, 16 on a CPU, or what fits.")
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests that decode side by side.")] = 1,
    out: Annotated[
        str, typer.Option(metavar="DIR", help="Receives profile.json, profile.html, trace.json and timeline.png.")
    ] = "profile",
    prompt: Prompts = None,
    prompt_file: PromptFile = None,
    set_: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="Prints the record instead of the table.")] = False,
    quiet: Quiet = False,
) -> None:
    """Shows where the time of a step goes: host phases, replays, gaps and kernels, with a picture.

    On a GPU each pass is a process of its own: one untraced, which says how long a step takes; one with a record a replay; with
    --trace node one with a record a kernel, and one with a record a call of the host. On a CPU there is one pass, and nothing
    overlaps. Exit code 1: the trace was refused.
    """
    with exits():
        settings = settings_of(config, set_)
        refuse_waiting(concurrency, [settings])
        prompts = list(islice(cycle(prompts_of(settings, prompt, prompt_file)), concurrency))
        # Imported once the command line is known to be right.
        from runtime.profile import session
        from runtime.profile.table import render_profile
        from runtime.profile.trace import Mode, TraceRefusedError

        folder = writable_folder(f"--out {out}", out, session.FILES)
        if steps is None:
            steps, usual = session.default_steps(settings, prompts, silent_bar if quiet else progress_bar)
            if steps < usual and not quiet:
                why = f"no more fit beside the prompt (scheduler.max_model_len); {usual} are usual"
                typer.echo(f"--steps = {steps}: {why}", err=True)
        try:
            result = session.profile(
                settings,
                prompts,
                Mode(trace),
                lambda expects: open_engine(settings, quiet, expects),
                steps=steps,
                calls=trace == "node",
                quiet=quiet,
            )
            record = result.as_dict()
        except TraceRefusedError as error:
            typer.echo(f"refused: {error}", err=True)
            raise typer.Exit(OPEN_GATE) from error
        print(json.dumps(record, indent=2) if as_json else render_profile(record), flush=True)
        files, no_picture = session.write_files(result, record, folder)
        if no_picture is not None:
            typer.echo(no_picture, err=True)
        typer.echo("wrote " + ", ".join(map(str, files)), err=True)
