"""All mutations, in the order of a step."""

from __future__ import annotations

from tests.mutants import (
    asking,
    backlog,
    drafting,
    drawing,
    early,
    flow,
    graphing,
    inputs,
    measuring,
    mirrors,
    nothing,
    opening,
    overlap,
    picking,
    planning,
    prompts,
    rings,
    slots,
    stepping,
    verify,
    waiting,
    wide,
)
from tests.mutants.mutation import Mutation

MUTATIONS: tuple[Mutation, ...] = (
    *slots.MUTATIONS,
    *inputs.MUTATIONS,
    *verify.MUTATIONS,
    *nothing.MUTATIONS,
    *stepping.MUTATIONS,
    *graphing.MUTATIONS,
    *overlap.MUTATIONS,
    *rings.MUTATIONS,
    *mirrors.MUTATIONS,
    *planning.MUTATIONS,
    *measuring.MUTATIONS,
    *drafting.MUTATIONS,
    *backlog.MUTATIONS,
    *picking.MUTATIONS,
    *drawing.MUTATIONS,
    *asking.MUTATIONS,
    *early.MUTATIONS,
    *opening.MUTATIONS,
    *wide.MUTATIONS,
    *flow.MUTATIONS,
    *prompts.MUTATIONS,
    *waiting.MUTATIONS,
)
