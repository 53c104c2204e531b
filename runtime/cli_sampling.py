"""Request parameters on the command line: the frequent ones as options, all of them through `--set sampling.NAME=VALUE`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any

import typer

Temperature = Annotated[float | None, typer.Option("--temperature", metavar="T", help="0: greedy; else tokens are drawn.")]
TopP = Annotated[float | None, typer.Option("--top-p", metavar="P", help="Draws from the most likely tokens, P together.")]
TopK = Annotated[int | None, typer.Option("--top-k", metavar="K", help="Draws from the K most likely tokens; 0: from all.")]
MinP = Annotated[float | None, typer.Option("--min-p", metavar="P", help="Drops tokens less than P times as likely as the best.")]
Seed = Annotated[int | None, typer.Option("--seed", metavar="N", help="Seed of each sampled request.")]
Stop = Annotated[list[str] | None, typer.Option("--stop", metavar="TEXT", help="Ends the answer before TEXT; may be repeated.")]
Logprobs = Annotated[int | None, typer.Option("--logprobs", metavar="N", help="In --json: log probabilities, and N best tokens.")]
Sequences = Annotated[int | None, typer.Option("-n", metavar="N", help="Answers to each prompt.")]


def sampling_overrides(values: Mapping[str, Any]) -> list[str]:
    """Overrides of the section `sampling`, of options that were given: {"top_p": 0.9} -> ["sampling.top_p=0.9"]."""
    return [f"sampling.{name}={_as_yaml(value)}" for name, value in values.items() if value is not None]


def _as_yaml(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    # Anything else: JSON is YAML, and quotes what a text may hold, but for YAML a pair of surrogates is two characters.
    return re.sub(r"[^ -~]", lambda match: f"\\U{ord(match[0]):08x}", json.dumps(value, ensure_ascii=False))
