"""How each known GGUF pre-tokenizer splits text before byte-level BPE.

A GGUF names its rule (`tokenizer.ggml.pre`) and does not carry it. The patterns are those of the models' own
tokenizer.json files; llama.cpp (src/llama-vocab.cpp) holds the same list by the same names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

from runtime.errors import CheckpointError
from runtime.shown_value import shown

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORDS_AND_SPACES = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{%s}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3_PATTERN = CONTRACTIONS + "|" + WORDS_AND_SPACES % "1,3"
QWEN2_PATTERN = CONTRACTIONS + "|" + WORDS_AND_SPACES % "1"


@dataclass(frozen=True)
class BytePairRules:
    """pre_tokenizer: builds the splitter; ignore_merges: a whole word found in the vocabulary is taken as it is;
    nfc: text is brought to Unicode NFC first."""

    pre_tokenizer: Callable[[], pre_tokenizers.PreTokenizer]
    ignore_merges: bool = False
    nfc: bool = False


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _single_digits() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _pattern(pattern: str) -> Callable[[], pre_tokenizers.PreTokenizer]:
    def build() -> pre_tokenizers.PreTokenizer:
        split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
        return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    return build


_GPT2 = BytePairRules(_gpt2)
_LLAMA3 = BytePairRules(_pattern(LLAMA3_PATTERN), ignore_merges=True)
RULES: dict[str, BytePairRules] = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "gpt2": _GPT2,
    "smollm": BytePairRules(_single_digits),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": BytePairRules(_pattern(QWEN2_PATTERN), nfc=True),
}


def rules_for(name: str) -> BytePairRules:
    """The rules of a GGUF pre-tokenizer name. Raises CheckpointError that lists the known ones."""
    # Old files carry no name at all; llama.cpp treats them as "default".
    rules = RULES.get(name or "default")
    if rules is None:
        raise CheckpointError(
            f"tokenizer.ggml.pre = {shown(name)}: unknown pre-tokenizer; use a model of {', '.join(sorted(RULES))}"
        )
    return rules
