"""`python -m runtime.speculators.train CONFIG`: trains a drafter for any target that this program reads.

stdout carries one line, or one JSON object with --json; log lines and progress go to stderr. Exit codes as those of `draftgraph`.
"""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from runtime.cli_session import Overrides, Quiet, exits
from runtime.cli_usage import exit_code_of
from runtime.console import progress_bar, silent_bar, start_logging
from runtime.errors import ConfigError
from runtime.speculators.train.settings import load_settings

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def train(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="YAML file, see configs/train-smollm2.yaml.")],
    set_: Overrides = None,
    prompts: Annotated[str | None, typer.Option("--prompts", metavar="FILE", help="Prompts of your own (data.prompts).")] = None,
    output: Annotated[str | None, typer.Option("--output", metavar="DIR", help="Where everything goes (output.folder).")] = None,
    text_only: Annotated[bool, typer.Option("--text-only", help="Writes the training text and stops.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Prints the summary as one JSON object.")] = False,
    quiet: Quiet = False,
) -> None:
    """Trains a DFlash or DFlash2 drafter on text that its target writes. An interrupted run of the same folder goes on."""
    start_logging(quiet=quiet)
    with exits():
        given = [f"data.prompts={json.dumps(prompts)}"] if prompts is not None else []
        given += [f"output.folder={json.dumps(output)}"] if output is not None else []
        settings = load_settings(config, [*(set_ or []), *given])
        _require_torch()
        from runtime.speculators.train.run import TrainingRun

        run = TrainingRun(settings, silent_bar if quiet else progress_bar)
        summary = run.write_text() if text_only else run.run()
    if as_json or text_only:
        print(json.dumps(summary), flush=True)
    else:
        found = "".join(f"; {k}: {value['mean_acceptance_length']:.3f} tokens a step" for k, value in summary["acceptance"].items())
        size = f"{summary['parameters'] / 1e6:.1f} M parameters"
        print(f"{run.folder / 'drafter'}: {summary['steps']} steps, {size}{found}", flush=True)


def _require_torch() -> None:
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"training needs PyTorch ({error}): pip install 'draftgraph[train]', or pip install torch") from error


if __name__ == "__main__":
    sys.exit(exit_code_of(app, sys.argv[1:]))
