"""open_checkpoint: one door to every format; behind it a Checkpoint that says nothing of how it is stored."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from runtime.checkpoint.gguf import GgufCheckpoint
from runtime.checkpoint.safetensors import SafetensorsCheckpoint
from runtime.checkpoint.tokenizer_source import TokenizerSource
from runtime.checkpoint.weights import ModelWeights, Progress, WeightDtype
from runtime.errors import CheckpointError
from runtime.models.spec import ModelSpec


class Checkpoint(Protocol):
    """An opened checkpoint: shape and tokenizer known and checked, weights not yet read."""

    path: Path
    spec: ModelSpec
    tokenizer: TokenizerSource

    def load_weights(self, progress: Progress | None = None, dtype: WeightDtype = "float32") -> ModelWeights:
        """Read every weight into host memory. `progress(done, total)` counts bytes of the files.

        Raises CheckpointError for an unknown dtype, and for values that are not finite or overflow float16.
        """
        ...

    def stored_weights(self, progress: Progress | None = None, dtype: WeightDtype = "float32") -> ModelWeights:
        """The same without reading: matrices are read one by one where they are wanted (runtime/checkpoint/stored_weight.py), and
        `progress` goes on then. Raises as load_weights does, there."""
        ...


def open_checkpoint(path: Path | str) -> Checkpoint:
    """Open a .gguf file, a Hugging Face folder (config.json beside safetensors), or a folder with one .gguf file.

    Raises CheckpointError that says what is missing, corrupt, unsupported or misshapen.
    """
    path = Path(path)
    if path.is_file():
        if path.suffix == ".safetensors":
            raise CheckpointError(f"{path}: give the folder that holds it with its config.json, {path.parent}")
        return GgufCheckpoint(path)
    if not path.is_dir():
        raise CheckpointError(f"{path}: {'neither a file nor a folder' if path.exists() else 'no such file or folder'}; give one")
    files = sorted(path.glob("*.gguf"))
    if (path / "config.json").is_file() or not files:
        return SafetensorsCheckpoint(path)
    if len(files) > 1:
        raise CheckpointError(f"{path}: holds several GGUF files, give one of them: {', '.join(f.name for f in files)}")
    return GgufCheckpoint(files[0])
