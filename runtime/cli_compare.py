"""`draftgraph compare CONFIG --arms A B`: arms against each other, with the floor of the machine measured first."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runtime.cli_session import (
    Overrides,
    PromptFile,
    Prompts,
    Quiet,
    exits,
    open_engine,
    prompts_of,
    refuse_waiting,
    settings_of,
    shortest_limit,
)
from runtime.config import RunConfig, load_config
from runtime.console import progress_bar, silent_bar
from runtime.cut_short import refuse_too_long, room_beside
from runtime.errors import ConfigError
from runtime.output_path import STDOUT, refuse_unwritable, writable_folder, write_text

if TYPE_CHECKING:
    from runtime.compare import Plan


OUTPUT_LEN = 64


def compare(
    arguments: Annotated[list[str], typer.Argument(metavar="CONFIG", help="YAML file, see configs/reference.yaml.")],
    arms: Annotated[
        list[str] | None,
        typer.Option(
            metavar="A.B=C A.B=D...", help="The arms; the first is compared with each of the others. Quote several keys of one arm."
        ),
    ] = None,
    concurrency: Annotated[
        list[int] | None, typer.Option(min=1, metavar="N [N]...", help="Requests at a time; default 1.")
    ] = None,
    pairs: Annotated[int, typer.Option(min=4, help="Pairs of runs, an even number: of equal arms, and of each comparison.")] = 6,
    num_warmups: Annotated[int, typer.Option(min=0, help="Runs of each engine before the clock counts.")] = 2,
    output_len: Annotated[
        int | None, typer.Option(min=2, metavar="N", help="Tokens of every answer; default 64, or what fits.")
    ] = None,
    input_len: Annotated[int | None, typer.Option(min=1, metavar="N", help="Random prompts of N tokens instead of texts.")] = None,
    other_outputs: Annotated[
        bool, typer.Option("--other-outputs", help="Arms may produce other tokens, e.g. where rounding decides between two.")
    ] = False,
    prompt: Prompts = None,
    prompt_file: PromptFile = None,
    set_: Overrides = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Writes the result, every measurement included; - is stdout.")
    ] = None,
    record: Annotated[
        str | None, typer.Option("--record", metavar="DIR", help="Writes a record of each pair of arms, for `draftgraph records`.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Compares arms pair by pair: AB BA AB..., equal arms first. Their difference is the floor; below it no ratio is printed.

    Arms that took the same path, by our own counters, are TAUTOLOGICAL. SATISFIED: the first arm is better; OPEN GAP: it is worse.
    """
    with exits():
        if pairs % 2:
            raise ConfigError(f"--pairs {pairs}: must be even, or a drift of the machine does not cancel")
        config, names, levels = _sorted(arguments, arms or [], concurrency or [])
        refuse_unwritable(f"--json {json_file}", json_file)
        records = None if record is None else writable_folder(f"--record {record}", record)
        base = settings_of(config, [*(set_ or []), "sampling.ignore_eos=true"], output_len or OUTPUT_LEN)
        # Imported once the command line is known to be right.
        from runtime.blueprint import draw_up
        from runtime.compare import Plan
        from runtime.compare import compare as run_compare
        from runtime.compare_arms import Arm
        from runtime.compare_report import render_compare
        from runtime.device import refuse_absent_gpu

        parsed = [Arm.parse(name, base) for name in names]
        refuse_waiting(max(levels), [arm.config for arm in parsed])
        if several := [arm.config.sampling.n for arm in parsed if arm.config.sampling.n > 1]:
            raise ConfigError(f"sampling.n = {several[0]}: a prompt is answered once here; set it to 1")
        refuse_too_long(shortest_limit(arm.config for arm in parsed), input_len, output_len)
        texts = [] if input_len is not None else prompts_of(base, prompt, prompt_file)
        # All but the first are opened when it has been measured against itself: what is wrong with them is told before.
        for arm in parsed:
            refuse_absent_gpu(arm.config.device)
        bars = silent_bar if quiet else progress_bar
        intakes = [draw_up(arm.config, bars).intake for arm in parsed]
        if output_len is None:
            output_len = _fitting(min(room_beside(intake, texts, input_len) for intake in intakes), quiet)
            base = load_config(base, [f"sampling.max_tokens={output_len}"])
            parsed = [Arm.parse(name, base) for name in names]
        plan = Plan(levels, texts, base.sampling.params_to_time(), input_len, pairs, num_warmups, same_outputs=not other_outputs)
        for intake in intakes:
            plan.expects(intake)
        with bars("comparing", "runs") as advance:
            report = run_compare(parsed, plan, lambda arm: open_engine(arm.config, True, plan.expects), advance)
        values = report | {"results": [result.as_dict() for result in report["results"]]}
        text = json.dumps(values, indent=2)
        print(text if json_file == STDOUT else render_compare(values), flush=True)
        if json_file is not None and json_file != STDOUT:
            write_text(f"--json {json_file}", json_file, text)
        if records is not None:
            sets = [part for text in set_ or [] for part in ("--set", shlex.quote(text))]
            command = ["draftgraph compare", config, *sets, "--arms", *map(shlex.quote, names), "--concurrency", *map(str, levels)]
            given = {"--prompt-file": prompt_file, "--input-len": input_len, "--output-len": output_len, "--pairs": pairs}
            command += [part for name, value in given.items() if value is not None for part in (name, shlex.quote(str(value)))]
            command += [part for text in prompt or [] for part in ("--prompt", shlex.quote(text))]
            command += ["--num-warmups", str(num_warmups), *(["--other-outputs"] if other_outputs else [])]
            _keep(report, plan, base, " ".join(command), records)


def _fitting(room: int, quiet: bool) -> int:
    """Tokens of every answer where nobody said how many; where `room` is for less than two, the refusal comes from the plan."""
    fitting = OUTPUT_LEN if room < 2 else min(OUTPUT_LEN, room)
    if fitting < OUTPUT_LEN and not quiet:
        typer.echo(f"--output-len = {fitting}: no more fit beside the prompt (scheduler.max_model_len)", err=True)
    return fitting


def _sorted(arguments: list[str], arms: list[str], levels: list[int]) -> tuple[str, list[str], list[int]]:
    """Configuration, arms, concurrencies. An option takes one value; what stands behind the first arrives among the arguments.

    Raises ConfigError: no configuration or more than one, fewer than two arms, numbers without their option.
    """
    names = [*arms, *(word for word in arguments if "=" in word)]
    numbers = [int(word) for word in arguments if word.isdecimal()]
    configs = [word for word in arguments if "=" not in word and not word.isdecimal()]
    if len(configs) != 1:
        raise ConfigError(f"CONFIG: give one configuration file, got {', '.join(configs) or 'none'}")
    if not arms or len(names) < 2:
        raise ConfigError("--arms: give at least two, as in --arms runner.async=true runner.async=false")
    if len(set(names)) < len(names):
        raise ConfigError(f"--arms {' '.join(names)}: an arm stands there twice; equal arms are run anyway, to measure the floor")
    if numbers and not levels:
        raise ConfigError(f"argument {numbers[0]}: a number of requests stands behind --concurrency")
    if 0 in numbers:
        raise ConfigError("--concurrency 0: must be at least 1")
    return configs[0], names, [*levels, *numbers] or [1]


def _keep(report: dict[str, Any], plan: Plan, base: RunConfig, command: str, folder: Path) -> None:
    """A record for each opponent of the first arm."""
    from runtime.compare import axis_of
    from runtime.gates.verdict import GateReport
    from runtime.records import Record, sources_of

    for second in dict.fromkeys(result.second for result in report["results"]):
        results = [result for result in report["results"] if result.second == second]
        title = f"{results[0].first} against {second}"
        workload = {
            "model": base.model.source,
            "arms": [results[0].first, second],
            "concurrency": list(plan.levels),
            "input_len": plan.input_len,
            "prompts": len(plan.prompts) or None,
            "output_len": plan.params.max_tokens,
            "pairs": plan.num_pairs,
            "config": base.as_dict(),
        }
        gate = GateReport("compare", title, tuple(axis_of(result) for result in results), (), {})
        medians = {f"{result.metric} at {result.concurrency}": list(result.medians) for result in results if result.effect}
        path = Record.of(gate, workload, report["facts"] | {"medians": medians}, command, sources_of(base)).write(folder)
        print(f"wrote {path}", file=sys.stderr, flush=True)
