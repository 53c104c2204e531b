"""Mutations of what is checked when checkpoints and drafters are read: what passes there costs acceptance, or the text."""

from __future__ import annotations

from tests.mutants.mutation import mutation

_STORAGE, _FOLDER, _GGUF = (f"runtime/checkpoint/{name}.py" for name in ("storage", "safetensors_folder", "gguf"))
_CONFIG, _WEIGHTS = "runtime/speculators/dflash_config.py", "runtime/speculators/dflash_weights.py"
_FINITE, _MISMATCH = "tests/test_finite_weights.py::test_", "tests/test_dflash_mismatch.py::test_"

_REFUSED = "DID NOT RAISE"
_FEWER = "fewer drafts are accepted, and every text is right"

MUTATIONS = (
    mutation(
        "infinity-passes-for-a-weight",
        "D10",
        _STORAGE,
        "finite = bool(np.isfinite(stored).all())",
        "finite = not bool(np.isnan(stored).any())",
        test=_FINITE + "every_finite_pattern_passes_and_no_other[float32]",
        text="in a drafter " + _FEWER,
        expects=_REFUSED,
    ),
    mutation(
        "sixteen-bits-by-another-exponent",
        "D10",
        _STORAGE,
        '0x7C00 if dtype == "float16" else 0x7F80',
        '0x7F80 if dtype == "float16" else 0x7F80',
        test=_FINITE + "every_finite_pattern_passes_and_no_other[float16]",
        text="infinity of float16 has other bits than that of bfloat16",
        expects=_REFUSED,
    ),
    mutation(
        "copied-weights-not-looked-at",
        "D10",
        _FOLDER,
        "                check_finite(target[rows], dtype, origin)\n",
        "                if _SAME_STORAGE[tensor.dtype] != dtype:\n                    check_finite(target[rows], dtype, origin)\n",
        test=_FINITE + "every_tensor_of_a_drafter[float32-2]",
        text=_FEWER,
        expects=_REFUSED,
    ),
    mutation(
        "first-chunk-of-a-tensor-looked-at",
        "D10",
        _FOLDER,
        "                check_finite(target[rows], dtype, origin)\n",
        "                if rows.start == 0:\n                    check_finite(target[rows], dtype, origin)\n",
        test=_FINITE + "a_hugging_face_target[float32-bfloat16-inf]",
        text="only a tensor of more than 65536 weights has a second chunk",
        expects=_REFUSED,
    ),
    mutation(
        "dequantised-weights-not-looked-at",
        "D10",
        _GGUF,
        "                check_finite(flat[rows], dtype, origin)\n",
        "",
        test=_FINITE + "a_gguf_target[Q8_0]",
        text="the text shows it: every token of it is id 0",
        expects=_REFUSED,
    ),
    mutation(
        "one-size-of-chunk-for-all-tests",
        "D10",
        _STORAGE,
        "(elements or CHUNK_ELEMENTS) // width",
        "(elements or 1 << 16) // width",
        test="tests/test_stored_weight.py::test_chunks_are_of_the_size_that_is_set",
        text="about tests: tiny tensors were read in one chunk, whatever size the tests asked for",
    ),
    mutation(
        "dflash-under-the-name-of-the-other",
        "D10",
        _WEIGHTS,
        "if (spec.version == 2) == bool(second):",
        "if (spec.version == 2) >= bool(second):",
        test=_MISMATCH + "dflash_and_dflash2_under_each_others_name[1]",
        text="it is refused all the same, by a list of tensors that are missing",
    ),
    mutation(
        "a-block-tapped-twice",
        "D10",
        _CONFIG,
        "taps.count(layer) > 1",
        "taps.count(layer) > 2",
        test=_MISMATCH + "a_block_that_is_tapped_twice",
        text=_FEWER,
        expects=_REFUSED,
    ),
    mutation(
        "taps-below-the-first-block",
        "D10",
        _CONFIG,
        "if not 0 <= layer < last]",
        "if layer >= last]",
        test=_MISMATCH + "taps_outside_the_target",
        text="nobody writes the columns of that tap: " + _FEWER,
        expects=_REFUSED,
    ),
    mutation(
        "taps-of-the-last-block",
        "D10",
        _CONFIG,
        "if not 0 <= layer < last]",
        "if not 0 <= layer <= last]",
        test=_MISMATCH + "taps_outside_the_target",
        text=_FEWER,
        expects=_REFUSED,
    ),
    mutation(
        "longer-than-the-drafter-was-made-for",
        "D10",
        "runtime/assembly.py",
        "if max_model_len > drafted:",
        "if max_model_len > longest:",
        test=_MISMATCH + "a_drafter_of_shorter_sequences",
        text="behind the last position that it was trained on " + _FEWER,
        expects=_REFUSED,
    ),
    mutation(
        "auto-longer-than-the-drafter-was-made-for",
        "D10",
        "runtime/assembly.py",
        'drafted if scheduler.max_model_len == "auto"',
        'longest if scheduler.max_model_len == "auto"',
        test=_MISMATCH + "a_drafter_of_shorter_sequences",
        text="a configuration that leaves the length open is refused, and it is not the user's mistake",
        expects="ConfigError",
    ),
    mutation(
        "length-of-a-drafter-before-it-is-stretched",
        "D10",
        _CONFIG,
        "max_position_embeddings=stretched_positions(rope, positions),",
        "max_position_embeddings=positions,",
        test=_MISMATCH + "what_a_drafter_says_of_its_length",
        text="no text is wrong: a length that the drafter was made for is refused",
    ),
)
