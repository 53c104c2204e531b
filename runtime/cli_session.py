"""What the commands of the command line share: their options, reading settings and prompts, opening the engine, exit codes.

stdout carries answers or one JSON object; log lines, progress and statistics go to stderr. Exit codes: 0 done, 1 a gate is not
SATISFIED, 2 a mistake of the user (the message says which), 130 interrupted (what was produced is shown), 141 stdout was closed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from runtime.config import MAX_NUM_SEQS, RunConfig, load_config
from runtime.console import progress_bar, silent_bar, start_logging
from runtime.errors import ConfigError, DeviceError, DraftgraphError, PromptError
from runtime.interrupts import noted_interrupts
from runtime.prompts import Prompt, check_prompt
from runtime.request_file import FileRequest, read_prompt_file, read_request_file
from runtime.sampling import SamplingParams
from runtime.settled_heap import settle_heap

if TYPE_CHECKING:
    from runtime.engine import Engine
    from runtime.intake import Expects

OPEN_GATE, USER_ERROR, INTERRUPTED, CLOSED_PIPE = 1, 2, 130, 141

ConfigPath = Annotated[str, typer.Argument(metavar="CONFIG", help="YAML file, see configs/reference.yaml.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="A.B=C", help="Sets a configuration key; the value is YAML.")
]
Prompts = Annotated[list[str] | None, typer.Option("--prompt", "-p", metavar="TEXT", help="A prompt; may be repeated.")]
PromptFile = Annotated[
    str | None,
    typer.Option(
        "--prompt-file",
        metavar="FILE",
        help='One prompt a line, or a JSON or YAML list of texts, chats, id lists; {"prompt": ..., "top_p": ...} sets parameters.',
    ),
]
MaxTokens = Annotated[int | None, typer.Option("--max-tokens", metavar="N", help="Tokens to produce at most.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No log lines and no progress on stderr.")]


def settings_of(path: str, overrides: list[str] | None, max_tokens: int | None = None) -> RunConfig:
    extra = [] if max_tokens is None else [f"sampling.max_tokens={max_tokens}"]
    settings = load_config(path, [*(overrides or []), *extra])
    _choose_simulator(settings)
    return settings


def prompts_of(settings: RunConfig, texts: list[str] | None, file: str | None) -> list[Prompt]:
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


def requests_of(
    settings: RunConfig, texts: list[str] | None, file: str | None
) -> tuple[list[Prompt], list[SamplingParams], list[str]]:
    """Prompts as `prompts_of` has them, the parameters of each (those of the configuration, but for what a file says of one), and
    what messages call each."""
    requests = [FileRequest(f"prompt {number}", text) for number, text in enumerate(texts or [], start=1)]
    if file is not None:
        requests += read_request_file(file)
    if not requests:
        prompts = prompts_of(settings, None, None)
        requests = [FileRequest(f"run.prompts[{number}]", prompt) for number, prompt in enumerate(prompts)]
    for request in requests:
        check_prompt(request.prompt, request.where)
    defaults = settings.sampling.params()
    names = [request.where for request in requests]
    return [request.prompt for request in requests], [request.params(defaults) for request in requests], names


def open_engine(settings: RunConfig, quiet: bool, expects: Expects | None = None) -> Engine:
    """Loads the model, once `expects` has seen that the requests to come can be taken (runtime/intake.py).

    The engine is imported here and not above: numba reads the environment when it is imported.
    """
    start_logging(quiet=quiet)
    _choose_simulator(settings)
    from runtime.engine import Engine

    engine = Engine.from_config(settings, progress=silent_bar if quiet else progress_bar, expects=expects)
    settle_heap()
    return engine


def _choose_simulator(settings: RunConfig) -> None:
    """Numba reads the environment when it is imported, which a command does once its configuration is read."""
    if settings.device != "simulator":
        return
    if "numba" in sys.modules and os.environ.get("NUMBA_ENABLE_CUDASIM") != "1":
        raise DeviceError("device = simulator: numba was imported before without its simulator; set NUMBA_ENABLE_CUDASIM=1")
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"


@contextmanager
def exits() -> Iterator[None]:
    """Turns what a command may end with into a message and an exit code."""
    with noted_interrupts() as interrupted, _exit_codes(interrupted):
        yield


@contextmanager
def _exit_codes(interrupted: Callable[[], bool]) -> Iterator[None]:
    try:
        yield
    except typer.Exit:
        raise
    except DraftgraphError as error:
        # Where Ctrl-C was pressed it is no mistake of the user's: cleaning up behind the interrupt failed.
        typer.echo("interrupted" if interrupted() else f"error: {error}", err=True)
        raise typer.Exit(INTERRUPTED if interrupted() else USER_ERROR) from error
    except KeyboardInterrupt as error:
        typer.echo("interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from error
    except BrokenPipeError as error:
        # The reader went away, as `| head` does. What is still buffered must not fail again when Python exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(CLOSED_PIPE) from error
    except MemoryError as error:
        why = f": {error}" if str(error) else ""
        typer.echo(f"error: out of memory{why}; lower scheduler.max_num_seqs, max_model_len or num_blocks", err=True)
        raise typer.Exit(USER_ERROR) from error
    except OSError as error:
        # A full disk under stdout, a device that went away. Python flushes once more at exit, which must not fail again.
        typer.echo(f"error: {system_reason(error)}", err=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(USER_ERROR) from error
    except Exception as error:
        if not interrupted():
            raise
        typer.echo("interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from error


def system_reason(error: OSError) -> str:
    """What the system refused: a file that it names, or else what is written to stdout."""
    what = "cannot write the output" if error.filename is None else error.filename
    return f"{what}: {error.strerror or error}"


def refuse_waiting(concurrency: int, configs: Iterable[RunConfig]) -> None:
    """Raises ConfigError: some of so many requests at a time would wait in line, and the figure would be of fewer."""
    slots = min(config.scheduler.max_num_seqs for config in configs)
    if concurrency > slots:
        remedy = f"lower it, or add --set scheduler.max_num_seqs={concurrency}"
        if concurrency > MAX_NUM_SEQS:
            remedy = f"lower it, at most {MAX_NUM_SEQS} run at a time"
        raise ConfigError(
            f"--concurrency {concurrency}: above scheduler.max_num_seqs = {slots}, so requests would wait in line; {remedy}"
        )


def shortest_limit(configs: Iterable[RunConfig]) -> int | None:
    """Tokens of a request at most, as far as configurations name it: a limit of `auto` is known once the model is."""
    limits = [config.scheduler.max_model_len for config in configs]
    return min((limit for limit in limits if limit != "auto"), default=None)
