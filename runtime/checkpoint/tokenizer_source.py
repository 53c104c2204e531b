"""What a checkpoint knows about its tokenizer, before anybody builds one from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class TokenizerSource:
    """The tokenizer data of a checkpoint; runtime/tokenizer.py builds the tokenizer.

    kind "gguf": `vocabulary`, `merges`, `token_types` and `pre` come from the file's metadata (byte-level BPE, the
    only tokenizer model read from GGUF), `tokenizer_json` is None.
    kind "json": `tokenizer_json` is the path of a Hugging Face tokenizer.json, the lists are empty and `pre` is "".
    """

    kind: Literal["gguf", "json"]
    vocabulary: list[str] = field(default_factory=list)  # [vocab_size] text of each id, byte-level alphabet
    merges: list[str] = field(default_factory=list)  # "left right", most frequent first
    token_types: list[int] = field(default_factory=list)  # [vocab_size] gguf.TokenType: 1 normal, 3 control, 4 user
    pre: str = ""  # name of the pre-tokenizer, e.g. "smollm", "llama-bpe", "qwen2"
    chat_template: str | None = None  # jinja2 source
    tokenizer_json: Path | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()  # every id that ends a generation
    add_bos: bool = False  # "gguf": prepend bos_token_id; "json": informative, the file's post-processor decides
