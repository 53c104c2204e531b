"""min_p, top_k and top_p: the four kernels in their order against sorting, under njit and in the simulator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import oracle_process as oracle
from kernels.process_buckets import FOUND, MEMBERS, find_buckets
from kernels.process_histogram import BUCKETS, count_logits
from kernels.process_members import list_members, rank_members
from tests.kernel_cases import Launch, floats, guarded, launches, live, untouched

VOCAB = 70
STRIPED = launches((1, 1), ((2, 2), 3), ((7, 4), 8))
NJIT = Launch("cpu")
SHARED = "processed", "best", "temperature", "top_k", "top_p", "min_p", "slot_of_row", "num_rows"
Setting = tuple[float, int, float, float]  # temperature, top_k, top_p, min_p


@dataclass
class Filter:
    """The arguments of all four kernels, by name; row j belongs to slot j % len(settings)."""

    arrays: dict[str, Any]

    @classmethod
    def of(cls, logits: np.ndarray, settings: list[Setting], rows: int | None = None, stripes: int = 3) -> Filter:
        slots, count = np.array(settings, np.float64), len(logits)
        best = oracle.stripe_maxima(logits, untouched(stripes, count), list(range(count)))
        return cls(
            {
                "histogram": np.zeros((count, 2, BUCKETS), np.int32),
                "found": untouched(count, FOUND, dtype=np.int64),
                "threshold": untouched(count),
                "members": untouched(count, MEMBERS),
                "num_members": untouched(count, dtype=np.int32),
                "processed": logits.copy(),
                "best": best,
                "temperature": slots[:, 0].astype(np.float32),
                "top_k": slots[:, 1].astype(np.int32),
                "top_p": slots[:, 2].astype(np.float32),
                "min_p": slots[:, 3].astype(np.float32),
                "slot_of_row": (np.arange(count) % len(settings)).astype(np.int32),
                "num_rows": live(count if rows is None else rows),
            }
        )

    def run(self, launch: Launch) -> np.ndarray:
        for kernel in (count_logits, find_buckets, list_members, rank_members):
            held = {name: value.copy() for name, value in self.arrays.items()}
            launch.run(kernel, *(self.arrays[name] for name in kernel.params))
            changed = {name for name, value in held.items() if value.tobytes() != self.arrays[name].tobytes()}
            assert changed <= kernel.writes
        assert not self.arrays["histogram"].any()
        kept: np.ndarray = self.arrays["processed"].copy()
        rows = kept[: self.arrays["num_rows"][0]]
        rows[rows < self.arrays["threshold"][: len(rows), None]] = -np.inf
        return kept

    def expected(self) -> np.ndarray:
        names = ("processed", "temperature", "top_k", "top_p", "min_p", "slot_of_row", "num_rows")
        return oracle.filter_logits(**{name: self.arrays[name] for name in names})


MIXED: list[Setting] = [
    (1, 0, 0.9, 0), (0, 3, 0.5, 0.5), (0.7, 5, 1, 0), (1, 0, 1, 0.05), (1.5, 20, 0.8, 0.01), (1, 0, 1, 0), (1, 1, 1, 0),
    (1, 30, 0.99, 0), (1, 6, 0.3, 0.3),
]  # fmt: skip


@STRIPED
@pytest.mark.parametrize("spread", [0.01, 1.0, 8.0])
@pytest.mark.parametrize("rows", [0, 17])
def test_filter(launch: Launch, spread: float, rows: int) -> None:
    logits = spread * floats(3, 19, VOCAB)
    logits[3, ::2] = -np.inf
    case = Filter.of(logits, MIXED, rows)
    expected = case.expected()
    np.testing.assert_array_equal(case.run(launch), expected)


@STRIPED
@pytest.mark.parametrize("setting", [(1, 2, 1, 0), (1, 0, 0.5, 0), (1, 0, 1, 0.5), (1, 2, 0.01, 0.5)], ids=str)
def test_equals_are_kept_and_rows_of_one_value_survive(launch: Launch, setting: Setting) -> None:
    logits = np.zeros((6, VOCAB), np.float32)
    logits[1, :4] = 5, 3, 3, 3
    logits[2] = -np.inf
    logits[3] = -np.inf
    logits[3, 17] = -40
    logits[4] = -1e30
    logits[4, 2] = 1e30
    logits[5] = -30 - np.arange(VOCAB)  # every logit negative: blocks of more threads than columns must not answer for a zero
    case = Filter.of(logits, [setting])
    expected = case.expected()
    kept = case.run(launch)
    np.testing.assert_array_equal(kept, expected)
    assert (kept[3] == logits[3]).all()
    if setting == (1, 2, 1, 0):
        assert np.flatnonzero(kept[1] > -np.inf).tolist() == [0, 1, 2, 3]  # the third and fourth equal the second
        assert (kept[0] == 0).all()


@STRIPED
@pytest.mark.parametrize("vocab", [1, 3])
def test_a_vocabulary_smaller_than_the_block(launch: Launch, vocab: int) -> None:
    case = Filter.of(floats(5, 4, vocab) - 50, [(1, 2, 1, 0), (1, 0, 0.5, 0), (1, 0, 1, 0.3)], stripes=1)
    expected = case.expected()
    np.testing.assert_array_equal(case.run(launch), expected)


@STRIPED
def test_histogram(launch: Launch) -> None:
    """Losses are rounded logit by logit, and a GPU fuses products: each may be off by one."""
    logits = np.concatenate([4 * floats(1, 3, VOCAB), 60 * floats(2, 3, VOCAB)])
    logits[1, ::3] = -np.inf
    case = Filter.of(logits, [(1, 3, 1, 0), (1, 0, 0.5, 0), (1, 0, 1, 0.1), (0, 3, 1, 0)], rows=5)
    names = ("processed", "best", "temperature", "top_k", "top_p", "slot_of_row", "num_rows")
    expected = oracle.count_logits(case.arrays["histogram"], *(case.arrays[name] for name in names))
    launch.run(count_logits, *(case.arrays[name] for name in count_logits.params))
    found = case.arrays["histogram"]
    np.testing.assert_array_equal(found[:, 0], expected[:, 0])
    assert (np.abs(found[:, 1] - expected[:, 1]) <= expected[:, 0]).all()


@pytest.mark.parametrize("setting", MIXED, ids=str)
def test_the_buckets_in_question_are_listed(setting: Setting) -> None:
    logits = 4 * floats(9, 1, 3000)
    case = Filter.of(logits, [setting])
    for kernel in (count_logits, find_buckets, list_members):
        NJIT.run(kernel, *(case.arrays[name] for name in kernel.params))
    listed, of_k, _, first, _, p_from, p_to, _ = case.arrays["found"][0]
    if setting[0] == 0 or (setting[1] == 0 and setting[2] == 1):
        assert listed == 0
        return
    assert listed == 1
    k_bucket, first_bucket, p_bucket = oracle.find_buckets(logits[0], *setting[1:])
    assert (of_k, first) == (k_bucket, first_bucket)
    assert p_from <= p_bucket <= p_to
    threshold = case.arrays["threshold"].copy()
    NJIT.run(rank_members, threshold, *(case.arrays[name] for name in rank_members.params[1:]))
    assert threshold[0] == oracle.rank_members(logits[0], *setting[1:])
    buckets = {bucket for bucket in (of_k, first, *range(p_from, p_to + 1)) if bucket >= 0}
    count = case.arrays["num_members"][0]
    np.testing.assert_array_equal(np.sort(case.arrays["members"][0, :count]), oracle.list_members(logits[0], buckets))


@pytest.mark.parametrize("vocab", [100, 8193, 49152, 151936])
@pytest.mark.parametrize("kind", ["normal", "peaked", "flat", "stairs", "clusters", "equal"])
def test_whole_vocabularies(vocab: int, kind: str) -> None:
    """Rows whose threshold lies among few logits, in the last bucket, and among thousands of near equals."""
    noise = floats(vocab, 2, vocab)
    logits = {
        "normal": 2.5 * noise,
        "peaked": noise + np.where(np.arange(vocab) == vocab // 3, 45, 0).astype(np.float32),
        "flat": 1e-3 * noise,
        "stairs": np.floor(3 * noise),
        "clusters": np.where(noise > 0, 1e-6 * noise, -20 + 1e-5 * noise).astype(np.float32),
        "equal": np.full((2, vocab), 1.5, np.float32),
    }[kind].astype(np.float32)
    for setting in [(1, 50, 1, 0), (1, vocab - 3, 1, 0), (1, 0, 0.9, 0), (1, 0, 0.999, 0), (1, 0, 0.05, 0), (1, 40, 0.9, 1e-3)]:
        case = Filter.of(logits, [setting])
        expected = case.expected()
        np.testing.assert_array_equal(case.run(NJIT), expected, err_msg=str(setting))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_row(data: st.DataObject) -> None:
    width = data.draw(st.integers(1, 40))
    values = st.one_of(
        st.floats(-30, 30, width=32), st.sampled_from([0.0, -0.0, 1.0, -np.inf, 1e30, -1e30, 1e-38, -1e-38, 1e-45])
    )
    row = np.array(data.draw(st.lists(values, min_size=width, max_size=width)), np.float32)[None]
    case = Filter.of(row, [(1.0, data.draw(st.integers(0, width + 2)), 1.0, data.draw(st.sampled_from([0.0, 0.01, 0.5, 1.0])))])
    expected = case.expected()
    np.testing.assert_array_equal(case.run(NJIT), expected)
    # By weight, sums of another order decide an equal share in another way: kept is what the exact sum, give or take, keeps.
    share, top_k = data.draw(st.floats(0.01, 0.99)), data.draw(st.integers(0, width))
    kept = Filter.of(row, [(1.0, top_k, share, 0.0)]).run(NJIT)[0] > -np.inf
    least = oracle.filtered(row[0], top_k, max(share - 1e-5, 1e-6), 0.0)
    most = oracle.filtered(row[0], top_k, min(share + 1e-5, 1 - 1e-7), 0.0)
    assert (kept >= (least > -np.inf)).all()
    assert (kept <= (most > -np.inf)).all()


def test_pads_are_left_alone() -> None:
    logits = guarded(floats(4, 5, VOCAB), 3)
    case = Filter.of(logits, [(1, 2, 0.9, 0)], rows=3)
    assert (case.run(NJIT)[3:] == -7).all()
    assert (case.arrays["threshold"][3:] == -7).all()
    assert (case.arrays["num_members"][3:] == -7).all()
