"""Activations of the largest step, and the sets of operations that work on them (graphs/ops.py)."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from graphs.arrays import Scratch
from graphs.fused_ops import FusedOps, FusedScratch, stripes_of, why_not_fused
from graphs.launch import Array
from graphs.ops import OpTable
from graphs.plain_ops import PagedAttention, PlainOps, Stripes
from graphs.split_attention import SplitAttention, SplitScratch, pair_tiles
from kernels.attend import CHUNK_KEYS
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

AUTO_FUSED_ROWS = 4
"""Rows up to which `graphs.ops: auto` takes the fused set for a model of small layers, with the library's product for the head.

Measured on an H200, SmolLM2-135M in bfloat16, context 256, us of a forward pass, fused against library: 1 row 1078, 1210; 2 rows
1094, 1218; 4 rows 1187, 1234; 8 rows 1445, 1282; the head alone 43 against 29. In float16 the fused set has norms of its own.
"""

SMALL_LAYER_BYTES = 16 << 20
"""Weights of a layer up to which launches cost more: SmolLM2-135M has 7 MB; Qwen3-8B has 386 MB, faster by library."""

SPLIT_ROWS = 128
"""Rows up to which attention splits the keys instead of the rows."""


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
) -> tuple[OpTable, str]:
    """The sets that record the steps of an engine, with the scratch they need, and what was chosen, for the description.

    auto: on a GPU with a 16-bit model the library's products and attention on tensor cores, but the fused set where it was measured
    faster (`AUTO_FUSED_ROWS`); else the plain set. batch_invariant: the fused set for every step, so that the order of a row's sums
    never depends on the batch.

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
        return OpTable.of(PlainOps(PagedAttention(), _stripes(device, spec, sizes) if on_gpu else None)), "plain"
    tokens = sizes.max_num_batched_tokens
    attention = SplitAttention(_split_scratch(device, spec, sizes, dtype, tokens if invariant else min(tokens, SPLIT_ROWS)))
    stripes = _stripes(device, spec, sizes) if on_gpu else None
    library = PlainOps(attention, stripes)
    if choice == "auto" and not invariant:
        if dtype != "bfloat16" or layer_bytes(spec, dtype) > SMALL_LAYER_BYTES:
            return OpTable.of(library), "library products, split attention"
        mixed = FusedOps(_fused_scratch(device, spec, sizes), attention, stripes=stripes)
        said = f"fused up to {AUTO_FUSED_ROWS} token rows with the library's head, library products above"
        return OpTable(library, mixed, AUTO_FUSED_ROWS), said
    fused = FusedOps(_fused_scratch(device, spec, sizes), attention, batch_invariant=invariant)
    if invariant:
        return OpTable.of(fused), "fused for every step: batch_invariant"
    return OpTable(library, fused, MOST_FUSED_ROWS), f"fused up to {MOST_FUSED_ROWS} token rows, library products above"


def layer_bytes(spec: ModelSpec, dtype: WeightDtype) -> int:
    """Bytes of the matrices of one layer."""
    elements = spec.hidden_size * (spec.qkv_size + spec.q_size + 3 * spec.intermediate_size)
    return elements * STORAGE[dtype].itemsize


def _stripes(device: Any, spec: ModelSpec, sizes: StepSizes) -> Stripes:
    """Scratch of an argmax that several blocks share a row of."""
    shape = (-(-spec.vocab_size // COLUMNS_A_STRIPE), sizes.num_logits)
    return Stripes(device.array("stripe_value", shape, np.float32), device.array("stripe_column", shape, np.int32))


def _split_scratch(device: Any, spec: ModelSpec, sizes: StepSizes, dtype: WeightDtype, rows: int) -> SplitScratch:
    chunks = -(-sizes.blocks_per_slot * sizes.block_size // CHUNK_KEYS)
    tiles = pair_tiles(rows, spec.num_heads, spec.num_kv_heads)
    arrivals = device.array("attend_arrivals", (sizes.max_num_seqs, spec.num_kv_heads, tiles), np.int32)
    device.upload(arrivals, np.zeros(arrivals.shape, np.int32))
    return SplitScratch(
        query=device.array("attend_query", (sizes.max_num_batched_tokens, spec.q_size), STORAGE[dtype]),
        totals=device.array("attend_totals", (chunks, rows, spec.num_heads, spec.head_dim), np.float32),
        stats=device.array("attend_stats", (chunks, rows, spec.num_heads, 2), np.float32),
        arrivals=arrivals,
    )


def _fused_scratch(device: Any, spec: ModelSpec, sizes: StepSizes) -> FusedScratch:
    tiles = -(-spec.hidden_size // TILE_ROWS)
    stripes = stripes_of(spec.vocab_size, spec.hidden_size)
    return FusedScratch(
        squares=device.array("squares", (sizes.max_num_batched_tokens, tiles), np.float32),
        best_value=device.array("best_value", (stripes, sizes.num_logits), np.float32),
        best_column=device.array("best_column", (stripes, sizes.num_logits), np.int32),
    )
