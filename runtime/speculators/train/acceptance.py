"""`python -m runtime.speculators.train.acceptance CONFIG PROMPTS`: what the engine accepts, by kind of prompt.

Needs no PyTorch: it is the program that serves which is measured, with any speculator. PROMPTS is YAML, {kind: [prompt, ...]}.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated, Any

import typer

from runtime.cli_session import ConfigPath, MaxTokens, Overrides, Quiet, exits, open_engine, settings_of
from runtime.cli_usage import exit_code_of
from runtime.errors import ConfigError
from runtime.metrics import AcceptanceStats
from runtime.speculators.train.held_out import read_kinds

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def acceptance(
    config: ConfigPath,
    prompts: Annotated[str, typer.Argument(metavar="PROMPTS", help="YAML file: {kind: [prompt, ...]}.")],
    max_tokens: MaxTokens = None,
    set_: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="Prints one JSON object instead of lines.")] = False,
    quiet: Quiet = False,
) -> None:
    """Answers the prompts and prints the mean acceptance length of all of them and of each kind."""
    with exits():
        settings = settings_of(config, set_, max_tokens)
        if not settings.speculator.k:
            raise ConfigError(f"speculator.method = {settings.speculator.method}: nothing is drafted, so nothing is accepted")
        kinds = read_kinds(prompts)
        texts = [(kind, text) for kind, group in kinds.items() for text in group]
        asked, params = [text for _, text in texts], settings.sampling.params()
        with open_engine(settings, quiet, lambda intake: intake.requests(asked, params)) as engine:
            start = time.perf_counter()
            outputs = engine.generate(asked, params)
            seconds = time.perf_counter() - start
    by_kind: dict[str, AcceptanceStats] = {}
    for (kind, _), output in zip(texts, outputs, strict=True):
        if output.acceptance is not None:
            by_kind.setdefault(kind, AcceptanceStats(output.acceptance.num_speculative_tokens)).merge(output.acceptance)
    num_tokens = sum(len(output.token_ids) for output in outputs)
    result = _summary(by_kind) | {"prompts": len(texts), "output_tokens": num_tokens, "seconds": round(seconds, 1)}
    if as_json:
        print(json.dumps(result), flush=True)
        return
    print(f"all: {result['mean_acceptance_length']:.3f} tokens a step, {result['num_spec_steps']} steps")
    print("by position: " + " ".join(f"{rate:.3f}" for rate in result["per_position_acceptance"]))
    for kind, length in result["by_kind"].items():
        print(f"{kind}: {length:.3f}", flush=True)


def _summary(by_kind: dict[str, AcceptanceStats]) -> dict[str, Any]:
    every = list(by_kind.values())
    whole = AcceptanceStats(every[0].num_speculative_tokens) if every else AcceptanceStats(0)
    for stats in every:
        whole.merge(stats)
    return whole.as_dict() | {"by_kind": {kind: round(stats.mean_acceptance_length, 4) for kind, stats in by_kind.items()}}


if __name__ == "__main__":
    sys.exit(exit_code_of(app, sys.argv[1:]))
