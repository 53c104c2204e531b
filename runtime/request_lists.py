"""The lists of a request (bias, bad words, allowed ids): device memory by slot, and the staged form that reaches it."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import numpy.typing as npt

from graphs.sampling_state import RequestLists
from runtime.device import Device
from runtime.sampling import SamplingParams
from runtime.sampling_checks import MAX_BAD_WORD_TOKENS, MAX_BAD_WORDS, MAX_LOGIT_BIAS


def allocate_request_lists(device: Device, slots: int, vocab_size: int) -> RequestLists:
    """4 V bytes a slot for counts, V / 8 for allowed ids, and 17 KB. Zeroed: unused memory is never read, but stays defined."""
    shapes = {
        "counts": (slots, vocab_size),
        "bias_ids": (slots, MAX_LOGIT_BIAS),
        "bias_values": (slots, MAX_LOGIT_BIAS),
        "bad_starts": (slots, MAX_BAD_WORDS + 1),
        "bad_tokens": (slots, MAX_BAD_WORD_TOKENS),
        "allowed": (slots, words_of(vocab_size)),
    }
    arrays = {}
    for name, shape in shapes.items():
        dtype = np.float32 if name == "bias_values" else np.int32
        arrays[name] = device.array(f"request_{name}", shape, dtype)
        device.upload(arrays[name], np.zeros(shape, dtype))
    return RequestLists(**arrays)


def words_of(vocab_size: int) -> int:
    """W: int32 words of a set of ids."""
    return -(-vocab_size // 32)


def staged_shapes(vocab_size: int) -> dict[str, tuple[int, ...]]:
    """Fields of the pack that carries the lists of one request: the staged arguments of kernels.request_lists.admit_lists."""
    return {
        "staged_bias_ids": (MAX_LOGIT_BIAS,),
        "staged_bias_bits": (MAX_LOGIT_BIAS,),
        "staged_bad_starts": (MAX_BAD_WORDS + 1,),
        "staged_bad_tokens": (MAX_BAD_WORD_TOKENS,),
        "staged_allowed": (words_of(vocab_size),),
    }


def has_lists(params: SamplingParams) -> bool:
    return bool(params.logit_bias or params.bad_words) or params.allowed_token_ids is not None


def staged_lists(params: SamplingParams, vocab_size: int) -> dict[str, npt.NDArray[np.int32]]:
    """int32 arrays of `staged_shapes`. Bad words are lists of ids by now (runtime/resolve_sampling.py)."""
    staged = {name: np.zeros(shape, np.int32) for name, shape in staged_shapes(vocab_size).items()}
    for place, (token, bias) in enumerate(params.logit_bias):
        staged["staged_bias_ids"][place] = token
        staged["staged_bias_bits"].view(np.float32)[place] = bias
    words = [word for word in params.bad_words if not isinstance(word, str)]
    assert len(words) == len(params.bad_words), "bad words reach the device as token ids"
    starts = list(accumulate(map(len, words), initial=0))
    staged["staged_bad_starts"][: len(starts)] = starts
    staged["staged_bad_tokens"][: starts[-1]] = [token for word in words for token in word]
    if params.allowed_token_ids is not None:
        flags = np.zeros(words_of(vocab_size) * 32, np.uint8)
        flags[list(params.allowed_token_ids)] = 1
        staged["staged_allowed"][:] = np.packbits(flags, bitorder="little").view(np.int32)
    return staged
