"""`draftgraph records`: what was measured, whether it passed, and whether sources or the record have changed since."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from runtime.cli_session import exits
from runtime.errors import ConfigError
from runtime.user_path import user_path


def records(
    folder: Annotated[str | None, typer.Argument(metavar="[DIR]", help="Folder of records; default docs/records.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Prints one JSON object instead of the table.")] = False,
) -> None:
    """Prints the records of measurements: verdicts, figures with their floors, and which of them are stale or were edited."""
    with exits():
        from runtime.records import RECORDS, read_records, render_records

        found, refused = read_records(RECORDS if folder is None else _existing(folder))
        if as_json:
            values = [
                {
                    "file": path.name,
                    "record": record.name,
                    "date": record.date,
                    "verdict": record.verdict.value,
                    "stale": record.stale,
                    "edited": record.edited,
                    "axes": [axis.as_dict() for axis in record.axes],
                }
                for path, record in found
            ]
            unread = [{"file": path.name, "error": why} for path, why in refused]
            print(json.dumps({"records": values, "refused": unread}, indent=2), flush=True)
        else:
            print(render_records(found), flush=True)
        if refused:
            raise ConfigError("\nerror: ".join(why for _, why in refused))


def _existing(folder: str) -> Path:
    try:
        return user_path(folder)
    except ValueError as error:
        raise ConfigError(f"records = {folder}: {error}; name a folder of records, or none for docs/records") from error
