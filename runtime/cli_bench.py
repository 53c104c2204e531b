"""`draftgraph bench CONFIG`: times prompts, or a shape of prompts, at one concurrency or several."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from runtime.cli_session import (
    MaxTokens,
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
from runtime.config import load_config
from runtime.console import silent_bar, still_bar
from runtime.cut_short import refuse_too_long, refuse_untimed
from runtime.errors import ConfigError, DraftgraphError
from runtime.output_path import STDOUT, refuse_unwritable, write_text

if TYPE_CHECKING:
    from runtime.intake import Intake


def bench(
    arguments: Annotated[list[str], typer.Argument(metavar="CONFIG", help="YAML file, see configs/reference.yaml.")],
    prompt: Prompts = None,
    prompt_file: PromptFile = None,
    max_tokens: MaxTokens = None,
    set_: Overrides = None,
    concurrency: Annotated[
        list[int] | None,
        typer.Option(min=1, metavar="N [N]...", help="Requests at a time; several numbers are timed one after the other."),
    ] = None,
    input_len: Annotated[int | None, typer.Option(min=1, metavar="N", help="Random prompts of N tokens, one a request.")] = None,
    output_len: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="As --max-tokens N --ignore-eos: every answer has N tokens.")
    ] = None,
    acceptance: Annotated[
        str | None,
        typer.Option(metavar="synthetic:RATE", help="Accepts that share of drafts by a hash: for timing, the text means nothing."),
    ] = None,
    num_warmups: Annotated[int, typer.Option(min=0, help="Runs of all prompts before the clock counts.")] = 1,
    repeats: Annotated[int, typer.Option(min=1, help="Timed runs of all prompts.")] = 5,
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
    """Times prompts: medians with their spread, and what a step costs device and host.

    Warm-up, repetitions, result keys as `vllm bench serve` names them. Then one repetition more for what a step costs. Several
    concurrencies (`--concurrency 1 8`) give JSON with a list, `runs`.
    """
    with exits():
        config, levels = _config_and_levels(arguments, concurrency)
        refuse_unwritable(f"--json {json_file}", json_file)
        if output_len is not None and max_tokens is not None:
            raise ConfigError("--output-len and --max-tokens: both say how long answers are; give one of them")
        if levels and max_concurrency is not None:
            raise ConfigError("--concurrency and --max-concurrency: both say how many requests run at a time; give one of them")
        if input_len is not None and (prompt or prompt_file):
            raise ConfigError("--input-len makes prompts of its own; leave out --prompt and --prompt-file")
        extra = ["sampling.ignore_eos=true"] if ignore_eos or output_len is not None else []
        extra += [] if acceptance is None else [f"speculator.acceptance={acceptance}"]
        settings = settings_of(config, [*(set_ or []), *extra], output_len if output_len is not None else max_tokens)
        if levels:
            refuse_waiting(max(levels), [settings])
        params = settings.sampling.params_to_time()
        refuse_too_long(shortest_limit([settings]), input_len, output_len)
        # Imported once the command line is known to be right.
        from runtime.bench import Bench, compared
        from runtime.bench_report import render_bench

        prompts = [] if input_len is not None else prompts_of(settings, prompt, prompt_file)
        plan = Bench(prompts, num_warmups, repeats, levels or [max_concurrency or settings.scheduler.max_num_seqs], input_len)
        plan = plan.filled() if levels else plan

        def expects(intake: Intake) -> None:
            refuse_untimed(intake, plan.prompts, params, input_len)

        bars = silent_bar if quiet else still_bar
        results = plan.run(settings, lambda: open_engine(settings, quiet, expects), bars)
        if compare:
            plain = load_config(settings, speculator__method="none")
            try:
                without = plan.run(plain, lambda: open_engine(plain, quiet, expects), bars)
            except DraftgraphError:
                # What was timed is not lost with what it was to be compared with; stdout is for whole answers.
                typer.echo("\n\n".join(map(render_bench, results)), err=True)
                raise
            results = [compared(result, other) for result, other in zip(results, without, strict=True)]
        text = json.dumps(results[0] if len(results) == 1 else {"runs": results}, indent=2)
        if json_file == STDOUT:
            print(text, flush=True)
            return
        print("\n\n".join(map(render_bench, results)), flush=True)
        if json_file:
            write_text(f"--json {json_file}", json_file, text)


def _config_and_levels(arguments: list[str], concurrency: list[int] | None) -> tuple[str, list[int]]:
    """An option takes one value; the numbers behind `--concurrency 1` arrive among the arguments.

    Raises:
        ConfigError: no configuration or more than one, numbers without the option.
    """
    numbers = [int(word) for word in arguments if word.isdecimal()]
    configs = [word for word in arguments if not word.isdecimal()]
    if numbers and not concurrency:
        raise ConfigError(f"argument {numbers[0]}: a number of requests stands behind --concurrency")
    if 0 in numbers:
        raise ConfigError("--concurrency 0: must be at least 1")
    if len(configs) != 1:
        raise ConfigError(f"CONFIG: give one configuration file, got {', '.join(configs) or 'none'}")
    return configs[0], [*(concurrency or []), *numbers]
