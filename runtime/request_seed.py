"""Seeds of sampled requests that name none: reproducible, and different for each request of an engine."""

from __future__ import annotations

from dataclasses import replace

from runtime.sampling import SamplingParams

_MASK = 2**64 - 1


def with_seed(params: SamplingParams, engine_seed: int, number: int) -> SamplingParams:
    """The same parameters, with a seed where they sample and have none.

    Args:
        engine_seed: `seed` of the configuration.
        number: 0, 1, 2, ... of the request in its engine: the same calls in the same order get the same seeds.
    """
    if params.seed is not None or params.temperature == 0:
        return params
    return replace(params, seed=derived_seed(engine_seed, number))


def samples_of(params: SamplingParams) -> list[SamplingParams]:
    """Parameters of each of the n sequences, with n = 1. A seed that was given is the first one's; the others are made of it."""
    if params.n == 1:
        return [params]
    seed = params.seed
    seeds = [None if seed is None else seed if sample == 0 else derived_seed(seed, sample) for sample in range(params.n)]
    return [replace(params, n=1, seed=seed) for seed in seeds]


def derived_seed(base: int, number: int) -> int:
    """A seed in 0..2**63 - 1 (SplitMix64 of the two numbers: neighbours share nothing)."""
    value = (base * 0xD1342543DE82EF95 + (number + 1) * 0x9E3779B97F4A7C15) & _MASK
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return (value ^ (value >> 31)) >> 1
