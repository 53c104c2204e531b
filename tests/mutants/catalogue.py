"""All mutations, in the order of a step."""

from __future__ import annotations

from tests.mutants import inputs, slots, verify
from tests.mutants.mutation import Mutation

MUTATIONS: tuple[Mutation, ...] = (
    *slots.MUTATIONS,
    *inputs.MUTATIONS,
    *verify.MUTATIONS,
)
