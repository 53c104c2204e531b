"""Mistakes in a command line itself, in one line like every other: option, value, what it must be."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import typer

from runtime.cli_session import CLOSED_PIPE, INTERRUPTED, USER_ERROR, exits, system_reason
from runtime.config import RunConfig
from runtime.errors import SamplingError
from runtime.lossy_stderr import tolerate_lost_stderr
from runtime.sampling import SamplingParams


def exit_code_of(app: Callable[..., Any], arguments: Sequence[str]) -> int:
    """Run a Typer application without its boxes around errors; the exit code, its error printed to stderr."""
    tolerate_lost_stderr()
    try:
        code = app(arguments, standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED_PIPE
    except OSError as error:
        print(f"error: {system_reason(error)}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return USER_ERROR
    except Exception as error:
        # Typer brings the exceptions of Click under one name or the other, as its version has it.
        if not hasattr(error, "format_message"):
            raise
        if not error.format_message():  # no arguments at all: the help was shown
            return USER_ERROR
        path = getattr(getattr(error, "ctx", None), "command_path", "draftgraph")
        print(f"error: {usage_line(error, arguments)}; see {path} --help", file=sys.stderr, flush=True)
        return USER_ERROR
    return code if isinstance(code, int) else 0


def tool_exit_code(main: Callable[[], int]) -> int:
    """Run a module that is a command of its own, beside `draftgraph`: the same messages and exit codes."""
    try:
        with exits():
            return main()
    except typer.Exit as error:
        return error.exit_code


def usage_line(error: Any, arguments: Sequence[str]) -> str:
    """What is wrong with the command line, from an exception of Click's."""
    message = " ".join(error.format_message().split()).rstrip(".")
    param = getattr(error, "param", None)
    given = _given(getattr(param, "opts", ()), arguments)
    if param is None or not given:
        return message[:1].lower() + message[1:] + _as_key(error, arguments)
    # Of an option that is written several times the last counts; where all of them do, the first that was refused is meant.
    meant = given if getattr(param, "multiple", False) else []
    option, value = next((pair for pair in meant if _was_refused(error, pair[1])), given[-1])
    return f"{option} = {value}: {_wanted(param.name, value, str(error.message))}"


def _as_key(error: Any, arguments: Sequence[str]) -> str:
    """Of an option that a command has not, and whose name is that of a configuration key: how the key is set."""
    wanted = getattr(error, "option_name", "").removeprefix("--").replace("-", "_")
    command = getattr(getattr(error, "ctx", None), "command", None)
    if not any("--set" in getattr(param, "opts", ()) for param in getattr(command, "params", ())):
        return ""
    for name, field in RunConfig.model_fields.items():
        section = getattr(field.annotation, "model_fields", {})
        inside = [key for key in (of.alias or own for own, of in section.items()) if key == wanted]
        if inside or (name == wanted and not section):
            key = ".".join([name, *inside])
            values = [value for _, value in _given([error.option_name], arguments) if not value.startswith("-")]
            return f"; a configuration key is set by --set {key}={values[-1] if values else 'VALUE'}"
    return ""


def _given(options: Sequence[str], arguments: Sequence[str]) -> list[tuple[str, str]]:
    """The option as it was written, and its value, each time that it was."""
    found = []
    for place, argument in enumerate(arguments):
        for option in options:
            if argument == option and place + 1 < len(arguments):
                found.append((option, arguments[place + 1]))
            if argument.startswith(f"{option}=") and option.startswith("--"):
                found.append((option, argument[len(option) + 1 :]))
    return found


def _was_refused(error: Any, value: str) -> bool:
    """Typer's later versions keep what pydantic says of it; in the earlier ones Click's message begins with the value."""
    details = getattr(error.__cause__, "errors", None)
    if details is None:
        return str(error.message).startswith((f"{value} ", f"{value!r} "))
    return value in [str(detail["input"]) for detail in details()]


def _wanted(name: str, value: str, message: str) -> str:
    if name in {field.name for field in fields(SamplingParams)}:
        try:
            SamplingParams(**{name: value})  # type: ignore[arg-type]
        except SamplingError as error:
            return str(error).partition(": ")[2]
    for kind, text in (("integer", "must be an integer"), ("number", "must be a number"), ("float", "must be a number")):
        if kind in message:
            return text
    message = message.removeprefix("Value error, ").rstrip(".").replace(f"{value!r} is not one of", "must be one of")
    # Typer's earlier versions say what Click says of a range; every one here has a lower end alone.
    message = re.sub(rf"^{re.escape(value)} is not in the range x>=(\d+)$", r"must be greater than or equal to \1", message)
    return message.replace("Input should be", "must be")
