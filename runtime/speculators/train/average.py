"""`python -m runtime.speculators.train.average FOLDER... --output FOLDER`: the mean of drafters that began from the same one.

Runs that began from one drafter and saw other text mostly end in one valley: their mean accepts more than any of them. Measure it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from runtime.cli_session import exits
from runtime.cli_usage import exit_code_of
from runtime.errors import ConfigError

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def average(
    folders: Annotated[list[str], typer.Argument(metavar="FOLDER...", help="Drafters of one shape, two or more.")],
    output: Annotated[str, typer.Option("--output", metavar="FOLDER", help="Where the mean goes.")],
) -> None:
    """Writes the mean of each tensor, with the first folder's config.json."""
    with exits():
        try:
            from runtime.speculators.train.export import read_config, read_tensors, save_drafter
        except ImportError as error:
            raise ConfigError(f"training needs PyTorch ({error}): pip install 'draftgraph[train]'") from error
        config = read_config(folders[0])
        drafters = [read_tensors(folder) for folder in folders]
        shapes = [{name: tensor.shape for name, tensor in tensors.items()} for tensors in drafters]
        for folder, own in zip(folders, shapes, strict=True):
            if own != shapes[0]:
                raise ConfigError(f"{folder}: its tensors are not those of {folders[0]}; only drafters of one shape have a mean")
        mean = {name: (sum(each[name].float() for each in drafters) / len(drafters)).bfloat16() for name in drafters[0]}
        save_drafter(Path(output), config, mean)
        print(f"{output}: the mean of {len(folders)} drafters", flush=True)


if __name__ == "__main__":
    sys.exit(exit_code_of(app, sys.argv[1:]))
