"""Activations of the largest step, and the sets of operations that work on them (graphs/ops.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from graphs.arrays import Scratch
from graphs.fused_ops import FusedOps, FusedScratch, why_not_fused
from graphs.held_ops import head_layout_of
from graphs.launch import Array
from graphs.ops import OpTable
from graphs.plain_ops import PagedAttention, PlainOps, Stripes
from graphs.product_forms import has_own_form
from graphs.step_attention import StepAttention
from graphs.tile_layouts import stripes_of
from graphs.wide_head_ops import wide_head_of
from kernels.tile import TILE_ROWS
from runtime.checkpoint.weights import STORAGE, WeightDtype
from runtime.errors import ConfigError
from runtime.models.spec import ModelSpec
from runtime.models.upload import decoder_shape
from runtime.step_buffers import StepSizes

OpsChoice: TypeAlias = Literal["auto", "plain", "fused"]
Numerics: TypeAlias = Literal["fast", "batch_invariant"]

COLUMNS_A_STRIPE = 1024
"""Columns of the logits that one block of a shared argmax looks at."""

MOST_FUSED_ROWS = 64
"""Rows up to which `graphs.ops: fused` takes it."""

AUTO_FUSED_ROWS = 8
"""Rows up to which `graphs.ops: auto` takes the fused set where nothing was measured: those that read the weights once."""

Chooser: TypeAlias = Callable[[FusedOps, PlainOps, StepSizes], tuple[OpTable, str]]
"""From the fused set, the library's, and the sizes of a step to the sets by rows, and a line that says which."""


def allocate_scratch(device: Any, spec: ModelSpec, sizes: StepSizes, dtype: WeightDtype) -> Scratch:
    """What products read is held in `dtype`, what they yield in float32; so is the residual stream."""
    tokens, rows, storage = sizes.max_num_batched_tokens, sizes.num_logits, STORAGE[dtype]

    def array(name: str, *shape: int, of: npt.DTypeLike = np.float32) -> Array:
        allocated: Array = device.array(name, shape, of)
        return allocated

    return Scratch(
        residual=array("residual", tokens, spec.hidden_size),
        normed=array("normed", tokens, spec.hidden_size, of=storage),
        qkv=array("qkv", tokens, spec.qkv_size),
        attention=array("attention", tokens, spec.q_size, of=storage),
        projected=array("projected", tokens, spec.hidden_size),
        gate_up=array("gate_up", tokens, 2 * spec.intermediate_size),
        activated=array("activated", tokens, spec.intermediate_size, of=storage),
        logit_rows=array("logit_rows", rows, spec.hidden_size, of=storage),
        logits=array("logits", rows, spec.vocab_size),
        row_argmax=array("row_argmax", rows, of=np.int32),
    )


def build_ops(
    device: Any,
    spec: ModelSpec,
    sizes: StepSizes,
    dtype: WeightDtype,
    *,
    on_gpu: bool,
    choice: OpsChoice = "auto",
    numerics: Numerics = "fast",
    chooser: Chooser | None = None,
) -> tuple[OpTable, str]:
    """The sets that record the steps of an engine, with the scratch they need, and what was chosen, for the description.

    auto: on a GPU with a 16-bit model whichever set `chooser` finds faster for so many rows (None: fused up to `AUTO_FUSED_ROWS`);
    else the plain set. batch_invariant: the fused set for every step, so that the order of a row's sums never depends on the batch.

    Raises:
        ConfigError: the fused set was asked for and cannot take this model, or `plain` together with batch_invariant.
    """
    invariant = numerics == "batch_invariant"
    if invariant and choice == "plain":
        raise ConfigError("graphs.ops = plain: numerics = batch_invariant needs the fused set; set graphs.ops to auto or fused")
    refusal = why_not_fused(decoder_shape(spec), STORAGE[dtype])
    if refusal is not None and (invariant or choice == "fused"):
        asked = "numerics = batch_invariant" if invariant else "graphs.ops = fused"
        raise ConfigError(f"{asked}: {refusal}; set numerics = fast and graphs.ops = plain")
    if choice == "plain" or (choice == "auto" and not invariant and (refusal or not on_gpu or dtype == "float32")):
        return OpTable(PlainOps(PagedAttention(), _stripes(device, spec, sizes) if on_gpu else None)), "plain"
    query = device.array("attend_query", (sizes.max_num_batched_tokens, spec.q_size), STORAGE[dtype])
    attention = StepAttention(query, batch_invariant=invariant)
    stripes = _stripes(device, spec, sizes) if on_gpu else None
    library = PlainOps(attention, stripes)
    fused = FusedOps(_fused_scratch(device, spec, sizes), attention)
    if invariant:
        return OpTable(fused), "fused for every step: batch_invariant"
    if choice == "auto" and chooser is not None:
        return chooser(with_fast_heads(fused, spec, device), library, sizes)
    rows = MOST_FUSED_ROWS if choice == "fused" else AUTO_FUSED_ROWS
    return OpTable(library, ((rows, fused),)), f"fused up to {rows} token rows, library products above"


def with_fast_heads(fused: FusedOps, spec: ModelSpec, device: Any) -> FusedOps:
    """The set with the heads that compete with the library's, where its shape has some and the GPU what they need: of few rows
    (graphs/held_ops.py), and of many (graphs/wide_head_ops.py)."""
    shape, capability = (spec.vocab_size, spec.hidden_size), device.facts.compute_capability
    heads = {"head": head_layout_of(*shape), "wide_head": wide_head_of(*shape)}
    return replace(fused, layouts={name: head for name, head in heads.items() if head and has_own_form(head, capability)})


def _stripes(device: Any, spec: ModelSpec, sizes: StepSizes) -> Stripes:
    """Scratch of an argmax that several blocks share a row of."""
    shape = (-(-spec.vocab_size // COLUMNS_A_STRIPE), sizes.num_logits)
    return Stripes(device.array("stripe_value", shape, np.float32), device.array("stripe_column", shape, np.int32))


def _fused_scratch(device: Any, spec: ModelSpec, sizes: StepSizes) -> FusedScratch:
    tiles = -(-spec.hidden_size // TILE_ROWS)
    stripes = stripes_of(spec.vocab_size)
    return FusedScratch(
        squares=device.array("squares", (sizes.max_num_batched_tokens, tiles), np.float32),
        best_value=device.array("best_value", (stripes, sizes.num_logits), np.float32),
        best_column=device.array("best_column", (stripes, sizes.num_logits), np.int32),
    )
