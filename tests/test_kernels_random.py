"""Random numbers against the published answers and their oracle, on every executor."""

from __future__ import annotations

import numpy as np
import pytest

from kernels import oracle_sampling as oracle
from kernels.lang import cuda, kernel
from kernels.random import (
    ROLE_ACCEPT,
    ROLE_DRAFT,
    ROLE_RESIDUAL,
    ROLE_TOKEN,
    column_gumbel,
    gumbel,
    gumbel_bound,
    open_uniform,
    philox,
    uniform,
    unsigned,
)
from tests.kernel_cases import EXECUTORS, Launch, launches

every_launch = launches((1, 3), (2, 32), ((3, 2), 8))


@kernel(writes=("out",))
def write_words(out, counters, keys):
    for i in range(cuda.grid(1), counters.shape[0], cuda.gridsize(1)):
        c, k = counters[i], keys[i]
        w0, w1, w2, w3 = philox(unsigned(c[0]), unsigned(c[1]), unsigned(c[2]), unsigned(c[3]), unsigned(k[0]), unsigned(k[1]))
        out[i, 0] = w0
        out[i, 1] = w1
        out[i, 2] = w2
        out[i, 3] = w3


@every_launch
def test_philox_gives_the_published_answers(launch: Launch) -> None:
    """kat_vectors of Random123 1.14 (philox4x32, 10 rounds)."""
    known = [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ]
    counters, keys, words = (np.array(column, np.uint32) for column in zip(*known, strict=True))
    out = np.zeros((3, 4), np.uint32)
    launch.run(write_words, out, counters.view(np.int32), keys.view(np.int32))
    np.testing.assert_array_equal(out, words)
    for i in range(3):
        key = int(keys[i, 0]), int(keys[i, 1])
        np.testing.assert_array_equal(oracle.philox(counters[i : i + 1].astype(np.uint64), key)[0], words[i])


@kernel(writes=("out",))
def write_uniforms(out, seeds, positions, role):
    for i in range(cuda.grid(1), out.shape[0], cuda.gridsize(1)):
        out[i] = uniform(seeds[i, 0], seeds[i, 1], positions[i], role, i)


@every_launch
def test_uniforms_are_those_of_the_oracle(launch: Launch) -> None:
    seeds = np.array([[1, 2], [-1, -(2**31)], [0, 0]], np.int32)
    positions = np.array([0, 1, 2**31 - 1], np.int32)
    for role in (ROLE_TOKEN, ROLE_DRAFT, ROLE_ACCEPT, ROLE_RESIDUAL):
        out = np.zeros(3, np.float32)
        launch.run(write_uniforms, out, seeds, positions, role)
        expected = [oracle.uniform(tuple(seeds[i]), int(positions[i]), role, i) for i in range(3)]
        np.testing.assert_allclose(out, expected, rtol=1e-6)


def test_roles_positions_seeds_and_indices_share_no_number() -> None:
    """One bit of difference anywhere is another number: what is drawn for one purpose says nothing of another."""
    draws = {
        oracle.uniform((low, high), position, role, index)
        for low in (0, 1)
        for high in (0, 1)
        for position in (5, 6)
        for role in (ROLE_TOKEN, ROLE_DRAFT, ROLE_ACCEPT, ROLE_RESIDUAL)
        for index in (0, 1)
    }
    assert len(draws) == 2 * 2 * 2 * 4 * 2
    assert len({ROLE_TOKEN, ROLE_DRAFT, ROLE_ACCEPT, ROLE_RESIDUAL}) == 4


@kernel(writes=("uniforms", "gumbels", "bounds"))
def write_numbers(uniforms, gumbels, bounds, words):
    for i in range(cuda.grid(1), words.shape[0], cuda.gridsize(1)):
        high, low = unsigned(words[i, 0]), unsigned(words[i, 1])
        uniforms[i] = open_uniform(high, low)
        gumbels[i] = gumbel(high, low)
        bounds[i] = gumbel_bound(high)


@every_launch
def test_numbers_reach_into_both_tails_and_bounds_hold(launch: Launch) -> None:
    """Words from all scales: 24 random bits would end the upper tail at 17."""
    rng = np.random.default_rng(0)
    scales = [rng.integers(0, 2**bits, 40, dtype=np.uint64) for bits in range(1, 33)]
    edges = np.array([0, 1, 255, 256, 2**24 - 1, 2**24, 2**31, 2**32 - 1], np.uint64)
    high = np.concatenate([*scales, edges]).astype(np.uint32)
    words = np.stack([high, rng.permutation(high)], axis=1)
    words[0] = 0
    uniforms, gumbels, bounds = (np.zeros(len(high), np.float32) for _ in range(3))
    launch.run(write_numbers, uniforms, gumbels, bounds, words.view(np.int32))
    expected = oracle.open_uniform(words[:, 0], words[:, 1])
    np.testing.assert_allclose(uniforms, expected, rtol=3e-7)
    assert uniforms.min() > 0
    assert uniforms.max() < 1
    # At u = 1 - 2**-24 the variate turns on the last bit of u.
    inside = expected < 1 - 2.0**-18
    np.testing.assert_allclose(gumbels[inside], -np.log(-np.log1p(-expected[inside])), rtol=2e-6, atol=2e-6)
    assert gumbels[0] == pytest.approx(45.05, abs=0.01)
    assert np.all(np.isfinite(gumbels))
    assert np.all(bounds >= gumbels)
    likely = (gumbels > 3) & (words[:, 0] > 2**16)
    assert np.all(bounds[likely] - gumbels[likely] < 0.1)


@pytest.mark.skipif("simulator" not in EXECUTORS, reason="needs the simulator")
def test_column_gumbel_is_that_of_the_race() -> None:
    out = np.zeros(6, np.float32)
    columns = np.array([0, 255, 256, 1023, 1024, 2000], np.int32)
    for name in ("cpu", "simulator"):
        Launch(name).run(write_column_gumbels, out, columns)
        np.testing.assert_allclose(out, oracle.column_gumbels((3, -4), 9, ROLE_DRAFT, 2001)[columns], rtol=1e-5)


@kernel(writes=("out",))
def write_column_gumbels(out, columns):
    for i in range(cuda.grid(1), columns.shape[0], cuda.gridsize(1)):
        out[i] = column_gumbel(3, -4, 9, ROLE_DRAFT, columns[i])
