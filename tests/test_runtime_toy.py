"""Toy target, scripted proposer and tapes: kernels against their Python meaning, and what makes the toy a good witness."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.tape import TAPE_FIELDS, tape_drafts, tape_rows
from kernels.toy import ACCEPT, NO_DRAFT, REJECT, overrule_drafts, scripted_propose, toy_argmax, toy_residual, toy_store
from runtime.gates.tapes import drafts_record, rows_record
from runtime.gates.toy import (
    CHARACTERS,
    continuation,
    lookup_drafts,
    next_token,
    overruled_drafts,
    scripted_drafts,
    sequential_decode,
    text_of,
    toy_tokenizer_source,
)
from runtime.sampling import SamplingParams
from runtime.tokenizer import Tokenizer
from tests.kernel_cases import floats, ints, launches, live, poisoned, untouched

BLOCK_SIZE = 4
every_launch = launches((1, 1), (1, 3), (2, 4))
one_block = launches((1, 1), (1, 3), (1, 8))
prefixes = st.lists(st.integers(1, 31), min_size=1, max_size=30)


# --- the meaning ---------------------------------------------------------------------------------------------------------------


def test_the_formula_by_hand() -> None:
    # 7 * 2 + 3 * 2 + (1 * 5 + 2 * 2) = 29, and modulo 31 plus one
    assert next_token([5, 2], memory=True) == 30
    assert next_token([5, 2], memory=False) == 7 * 2 % 31 + 1


@given(prefixes, st.integers(0, 29), st.integers(1, 30))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_with_memory_every_cached_token_counts(prefix: list[int], place: int, change: int) -> None:
    """No two prefixes that differ in one token have the same next token, unless its weight is a multiple of 31."""
    place %= len(prefix)
    changed = list(prefix)
    changed[place] = (changed[place] - 1 + change) % 31 + 1
    weight = (place + 1) + (7 if place == len(prefix) - 1 else 0)
    assert (next_token(prefix, True) == next_token(changed, True)) == (weight % 31 == 0)


@given(prefixes, st.booleans())
@settings(max_examples=40, deadline=None, derandomize=True)
def test_zero_is_never_produced(prefix: list[int], memory: bool) -> None:
    assert 1 <= next_token(prefix, memory) <= 31


def test_without_memory_the_text_repeats_itself_soon() -> None:
    tokens = continuation([1], 60, memory=False)
    assert tokens[1:16] == tokens[16:31]
    assert lookup_drafts(tokens[:20], 5, min_n=1, max_n=3) == tokens[20:25]


def test_continuation_is_next_token_over_and_over() -> None:
    tokens = [3, 9]
    while len(tokens) < 12:
        tokens.append(next_token(tokens, True))
    assert continuation([3, 9], 12, True) == tokens


def test_sequential_decode_ends() -> None:
    text = continuation([4, 4], 40, True)[2:]
    plain = SamplingParams(max_tokens=9)
    assert sequential_decode([4, 4], plain, 64, True) == (text[:9], "length")
    assert sequential_decode([4, 4], plain, 7, True) == (text[:5], "length")
    stop = SamplingParams(max_tokens=30, stop_token_ids=(text[5],))
    assert sequential_decode([4, 4], stop, 64, True) == (text[: text.index(text[5]) + 1], "stop")
    late = SamplingParams(max_tokens=30, min_tokens=8, stop_token_ids=(text[0], text[9]))
    expected = next(i for i in range(7, 30) if text[i] in (text[0], text[9]))
    assert sequential_decode([4, 4], late, 64, True) == (text[: expected + 1], "stop")
    string = SamplingParams(max_tokens=30, stop=(text_of(text[3:5]),))
    assert sequential_decode([4, 4], string, 64, True) == (text[:5], "stop")
    eos = SamplingParams(max_tokens=9)
    end = text.index(text[5]) + 1
    assert sequential_decode([4, 4], eos, 64, True, (text[5],)) == (text[:end], "stop")
    assert sequential_decode([4, 4], SamplingParams(max_tokens=9, ignore_eos=True), 64, True, (text[5],)) == (text[:9], "length")


def test_scripted_drafts_by_position() -> None:
    prefix = [1, 2, 3]
    a, b, c = continuation(prefix, 6, True)[3:]
    wrong = b % 31 + 1
    script = [NO_DRAFT, NO_DRAFT, NO_DRAFT, ACCEPT, REJECT, ACCEPT]
    assert scripted_drafts(prefix, script, 3, True) == [a, wrong, c]
    assert scripted_drafts(prefix, script, 5, True) == [a, wrong, c, -1, -1]
    assert scripted_drafts(prefix, [ACCEPT, NO_DRAFT], 3, True) == [-1, -1, -1]


def test_lookup_drafts() -> None:
    assert lookup_drafts([1, 2, 3, 1, 2], 3, min_n=1, max_n=3) == [3, 1, 2]
    assert lookup_drafts([1, 2, 9, 2], 3, min_n=1, max_n=3) == [9, 2, -1]
    assert lookup_drafts([1, 2, 3], 2, min_n=1, max_n=3) == [-1, -1]
    assert lookup_drafts([5], 2, min_n=1, max_n=3) == [-1, -1]


def test_the_tokenizer_spells_one_character_a_token() -> None:
    tokenizer = Tokenizer.from_source(toy_tokenizer_source())
    assert tokenizer.decode(range(32)) == CHARACTERS == text_of(range(32))


# --- the target ----------------------------------------------------------------------------------------------------------------


@every_launch
def test_store_puts_ids_into_cells_and_skips_pads(launch: Any) -> None:
    cache = untouched(12, dtype=np.int32)
    expected = cache.copy()
    expected[[8, 3]] = 5, 30
    args = {"cache": cache, "input_ids": ints(5, 6, 30, 9), "slot_mapping": ints(8, -1, 3, 11), "num_tokens": live(3)}
    launch.check(toy_store, args, {"cache": expected})


@every_launch
@pytest.mark.parametrize("memory", [0, 1])
def test_argmax_reads_its_own_positions_through_the_block_table(launch: Any, memory: int) -> None:
    """Two slots whose blocks interleave; verify rows in the middle of a batch; a row whose slot lacks a block; pads."""
    first, second = list(range(1, 10)), [31, 7, 7, 12, 30]
    cache = untouched(24, dtype=np.int32)
    tables = ints([4, 0, 3], [5, 2, -1], [-1, -1, -1])
    for slot, tokens in ((0, first), (1, second)):
        for position, token in enumerate(tokens):
            cache[tables[slot, position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE] = token
    rows = [(0, 6), (0, 7), (0, 8), (1, 3), (1, 4), (2, 2)]
    texts = {0: first, 1: second, 2: [3, 3, 3]}
    input_ids = poisoned(ints(*(texts[slot][position] for slot, position in rows), 0, 0), 6)
    expected = [next_token(texts[slot][: position + 1], bool(memory)) for slot, position in rows]
    expected[5] = 0 if memory else expected[5]
    order = [2, 0, 5, 4, 3, 1]
    args = {
        "row_argmax": untouched(7, dtype=np.int32),
        "cache": cache,
        "block_tables": tables,
        "input_ids": input_ids,
        "positions": poisoned(ints(*(position for _, position in rows), 0, 0), 6),
        "token_slot": poisoned(ints(*(slot for slot, _ in rows), 0, 0), 6),
        "logits_indices": poisoned(ints(*order, 0), 6),
        "block_size": BLOCK_SIZE,
        "memory": memory,
        "num_rows": live(6),
    }
    launch.check(toy_argmax, args, {"row_argmax": ints(*(expected[row] for row in order), -7)})


# --- the proposer --------------------------------------------------------------------------------------------------------------


@every_launch
@pytest.mark.parametrize("memory", [0, 1])
def test_proposer_follows_its_script(launch: Any, memory: int) -> None:
    """Ragged drafts; a row that emitted nothing; a finished slot; a slot that is not in the batch; permuted slots."""
    draw = random.Random(7)
    k, length, slots = 4, 20, 6
    history = untouched(slots, length, dtype=np.int32)
    total_len = ints(3, 9, 1, 12, 16, 5)
    for slot in range(slots):
        history[slot, : total_len[slot]] = [draw.randint(1, 31) for _ in range(total_len[slot])]
    script = ints(*([draw.choice((ACCEPT, ACCEPT, REJECT, NO_DRAFT)) for _ in range(7)] for _ in range(slots)))
    finished, rows, sampled = ints(0, 0, 0, 2, 0, 0), [4, 0, 3, 1, 2], [3, 1, 2, 0, 1]
    drafts, counts = untouched(slots, k, dtype=np.int32), untouched(slots, dtype=np.int32)
    args = {
        "draft_tokens": drafts,
        "num_draft": counts,
        "history": history,
        "total_len": total_len,
        "finished": finished,
        "idx_mapping": poisoned(ints(*rows, 5), 5),
        "num_sampled": poisoned(ints(*sampled, 1), 5),
        "script": script,
        "memory": memory,
        "num_requests": live(5),
    }
    expected, expected_counts = drafts.copy(), counts.copy()
    for slot, emitted in zip(rows, sampled, strict=True):
        prefix = history[slot, : total_len[slot]].tolist()
        silent = emitted == 0 or finished[slot] > 0
        expected[slot] = [-1] * k if silent else scripted_drafts(prefix, script[slot].tolist(), k, bool(memory))
        expected_counts[slot] = (expected[slot] >= 0).sum()
    assert 0 < expected_counts[[4, 0, 2]].sum() < 3 * k, "some drafts and some that are missing"
    launch.check(scripted_propose, args, {"draft_tokens": expected, "num_draft": expected_counts})


# --- the tapes -----------------------------------------------------------------------------------------------------------------


@one_block
@pytest.mark.parametrize("cursor", [0, 1, 5])
def test_rows_tape(launch: Any, cursor: int) -> None:
    """A prompt chunk, a verify row, a decode row, a pad; the record that the cursor says, modulo the ring."""
    tape = untouched(3, 4, TAPE_FIELDS + 3, dtype=np.int32)
    ids, positions = ints(10, 11, 12, 20, 21, 22, 30), ints(0, 1, 2, 7, 8, 9, 4)
    indices, sums, slots = ints(2, 3, 4, 5, 6), ints(0, 1, 4, 5), [3, 0, 2]
    args = {
        "tape": tape,
        "cursor": ints(cursor),
        "ids": ids,
        "logits_indices": indices,
        "positions": positions,
        "cu_num_logits": sums,
        "idx_mapping": poisoned(ints(*slots, 1), 3),
        "num_requests": live(3),
    }
    expected = tape.copy()
    expected[cursor % 3] = rows_record(6, 4, ids.tolist(), indices.tolist(), positions.tolist(), sums.tolist(), slots)
    written = [[3, 2, 1, 12, -2, -2], [0, 7, 3, 20, 21, 22], [2, 4, 1, 30, -2, -2], [-1, -1, 0, -2, -2, -2]]
    assert expected[cursor % 3].tolist() == written
    launch.check(tape_rows, args, {"tape": expected, "cursor": ints(cursor + 1)})


@one_block
def test_drafts_tape(launch: Any) -> None:
    tape = untouched(2, 3, TAPE_FIELDS + 3, dtype=np.int32)
    drafts, total_len = ints([1, 2], [3, -1], [-1, -1]), ints(5, 6, 7)
    args = {
        "tape": tape,
        "cursor": ints(1),
        "draft_tokens": drafts,
        "total_len": total_len,
        "idx_mapping": ints(2, 1, 0),
        "num_requests": live(2),
    }
    expected = tape.copy()
    expected[1] = drafts_record(6, 3, drafts.tolist(), total_len.tolist(), [2, 1])
    assert expected[1].tolist() == [[2, 7, 2, -1, -1, -2], [1, 6, 2, 3, -1, -2], [-1, -1, 0, -2, -2, -2]]
    launch.check(tape_drafts, args, {"tape": expected, "cursor": ints(2)})


@launches((1, 1), (2, 3))
@pytest.mark.parametrize("block", [0, 3])
def test_residual_says_which_token_stands_where(launch: Any, block: int) -> None:
    table, tokens, positions = floats(1, 32, 5), np.array([3, -1, 31, 0, 9], np.int32), np.array([0, 1, 40, 7, 2], np.int32)
    args = {
        "residual": untouched(5, 5),
        "table": table,
        "input_ids": poisoned(tokens, 4),
        "positions": poisoned(positions, 4),
        "block": block,
        "num_tokens": live(4),
    }
    expected = untouched(5, 5)
    expected[:4] = table[(np.maximum(tokens[:4], 0) + 5 * block) % 32] + table[(positions[:4] + 11 * block) % 32] / 2
    launch.check(toy_residual, args, {"residual": expected})


@launches((1, 1), (2, 3))
@pytest.mark.parametrize("memory", [0, 1])
def test_overruled_drafts(launch: Any, memory: int) -> None:
    """Truth where the script accepts and there is a draft, in three slots; rows without drafts and pads keep what they have."""
    script = np.array([[ACCEPT, REJECT, NO_DRAFT, ACCEPT, REJECT]] * 4, np.int32)
    script[1] = np.roll(script[1], 2)
    prefixes = {0: [5, 6, 7], 1: [9], 3: [1, 2, 3, 4, 30, 31, 8]}
    history = np.full((4, 12), -7, np.int32)
    total_len, drafts = np.zeros(4, np.int32), np.arange(16, dtype=np.int32).reshape(4, 4)
    expected = drafts.copy()
    num_draft = np.array([4, 3, 4, 0], np.int32)
    for slot, prefix in prefixes.items():
        history[slot, : len(prefix)], total_len[slot] = prefix, len(prefix)
        count = num_draft[slot]
        padded = [*drafts[slot, :count].tolist(), *[-1] * (4 - count)]
        expected[slot, :count] = overruled_drafts(padded, prefix, script[slot].tolist(), bool(memory))[:count]
    args = {
        "draft_tokens": drafts,
        "num_draft": num_draft,
        "history": history,
        "total_len": total_len,
        "idx_mapping": np.array([1, 3, 0, -7], np.int32),
        "script": script,
        "memory": memory,
        "num_requests": live(3),
    }
    launch.check(overrule_drafts, args, {"draft_tokens": expected})
    assert (expected != drafts).any(axis=1).tolist() == [True, True, False, False]
