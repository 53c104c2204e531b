"""A drafter on a device without an engine: requests of a test's choice, one proposal, and every stage of it to look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from graphs.drafter_arrays import DraftArrays
from graphs.key import GraphKey
from graphs.propose_dflash import DFlashProposer
from runtime.speculators.dflash_ops import build_draft_ops
from runtime.speculators.dflash_upload import allocate_draft_scratch, upload_drafter
from runtime.speculators.dflash_weights import DraftCheckpoint
from runtime.step_buffers import StepSizes
from runtime.virtual_device import VirtualDevice
from tests.reference_dflash import ReferenceDrafter, Stages
from tests.reference_forward import reference_residuals
from tests.tiny_checkpoint import TinyModel
from tests.tiny_drafter import TinyDrafter
from tests.tiny_engine import EXECUTOR

Array = npt.NDArray[Any]
BLOCK_SIZE = 4
SLOTS = 5
MAX_MODEL_LEN = 64
UNWRITTEN = np.float32(-777.0)
"""What every cell of the draft cache holds before anything is appended."""


@dataclass(frozen=True)
class Request:
    """`tokens`: the committed ones, the last of which is the anchor. Its features come in `chunks` of rows, the last one with
    `rejected` rows behind those that count."""

    slot: int
    tokens: tuple[int, ...]
    chunks: tuple[int, ...]
    rejected: int = 0

    @property
    def anchor_at(self) -> int:
        return len(self.tokens) - 1


def random_requests(vocab_size: int) -> tuple[Request, ...]:
    """Ragged contexts in scattered slots; the last one of a single token."""
    rng = np.random.default_rng(1)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(rng.integers(3, vocab_size, count).tolist())

    return (Request(3, tokens(14), (8, 4, 1), 2), Request(0, tokens(7), (3, 2, 1), 0), Request(2, tokens(2), (0, 0, 1), 5))


class Rig:
    """Target features from the reference, everything behind them from the product.

    Args:
        k: drafts.
        fused: take the fused forms where they fit.
    """

    def __init__(
        self, model: TinyModel, drafter: TinyDrafter, requests: Sequence[Request], *, k: int, fused: bool = False
    ) -> None:
        self.requests, self.k = requests, k
        tensors = model.tensors
        embed = tensors["model.embed_tokens.weight"]
        head = embed if model.shape.tied else tensors["lm_head.weight"]
        self.reference = ReferenceDrafter(drafter.config, drafter.tensors, embed, head)
        self.features = [
            self.reference.features(reference_residuals(model.config, tensors, request.tokens)) for request in requests
        ]
        self.device = VirtualDevice(EXECUTOR, schedule="eager", poison=True)
        self.stream = self.device.stream("compute")
        checkpoint = DraftCheckpoint(drafter.path)
        self.spec = checkpoint.spec
        target: Any = SimpleNamespace(embed=self.device.constant("embed", embed), head=self.device.constant("head", head))
        self.sizes = StepSizes(SLOTS, k, MAX_MODEL_LEN, 40, BLOCK_SIZE, 1)
        self.arrays: DraftArrays = upload_drafter(
            self.device,
            self.spec,
            checkpoint.load_weights(),
            target,
            max_model_len=MAX_MODEL_LEN,
            num_blocks=SLOTS * self.sizes.blocks_per_slot,
            block_size=BLOCK_SIZE,
        )
        # A store of NaN (the features of rejected rows) must show as well.
        self.device.upload(self.arrays.cache, np.full(self.arrays.cache.shape, UNWRITTEN, np.float32))
        self.scratch = allocate_draft_scratch(self.device, self.spec, self.sizes)
        self.ops = build_draft_ops(
            self.device,
            self.spec,
            self.sizes,
            self.scratch,
            "float32",
            on_gpu=False,
            choice="fused" if fused else "plain",
        )
        rng = np.random.default_rng(2)
        self.tables = rng.permutation(SLOTS * self.sizes.blocks_per_slot).reshape(SLOTS, -1).astype(np.int32)
        self.state, self.step = self._arrays()
        self.key = GraphKey.propose(4, 40)

    def _arrays(self) -> tuple[Any, Any]:
        shapes = {"finished": SLOTS, "num_computed": SLOTS, "last_sampled": SLOTS, "num_draft": SLOTS}
        steps = {"slot_mapping": 40, "positions": 40, "token_slot": 40, "num_rejected": SLOTS, "num_sampled": SLOTS}
        inputs = {"live": 3, "idx_mapping": SLOTS, "query_start_loc": SLOTS + 1}
        made = {name: self.device.array(name, (size,), np.int32) for name, size in (shapes | steps | inputs).items()}
        made["draft_tokens"] = self.device.array("draft_tokens", (SLOTS, self.k), np.int32)
        made["block_tables"] = self.device.constant("block_tables", self.tables)
        for array in ("finished", "num_computed", "last_sampled"):
            self.device.upload(made[array], np.zeros(SLOTS, np.int32))
        step_inputs = SimpleNamespace(
            idx_mapping=made["idx_mapping"],
            query_start_loc=made["query_start_loc"],
            num_tokens=made["live"][0:1],
            num_requests=made["live"][1:2],
        )
        sampling = SimpleNamespace(
            temperature=self.device.constant("temperature", np.zeros(SLOTS, np.float32)),
            seed=self.device.constant("seed", np.zeros((SLOTS, 2), np.int32)),
        )
        step = SimpleNamespace(inputs=step_inputs, **{name: made[name] for name in steps})
        return SimpleNamespace(**made, sampling=sampling), step

    def proposer(self, num_layers: int | None = None, **changes: Any) -> DFlashProposer:
        """The recorder, over the first `num_layers` draft layers alone."""
        arrays = replace(self.arrays, layers=self.arrays.layers[:num_layers], **changes)
        return DFlashProposer(
            arrays,
            self.scratch,
            self.spec.target_layer_ids,
            num_speculative_tokens=self.k,
            max_model_len=MAX_MODEL_LEN,
            ops=self.ops,
        )

    def append(self, chunk: int) -> None:
        """Stage chunk number `chunk` of every request, rejected rows of NaN included, and run the context part."""
        features = np.full((40, self.spec.feature_size), np.nan, np.float32)
        positions, cells, slots_of = (np.full(40, -7, np.int32) for _ in range(3))
        starts, rejected, computed = [0], np.zeros(SLOTS, np.int32), self.read("num_computed")
        for row, (request, values) in enumerate(zip(self.requests, self.features, strict=True)):
            first = sum(request.chunks[:chunk])
            count = request.chunks[chunk]
            if chunk == len(request.chunks) - 1:
                rejected[row] = request.rejected
            rows = np.arange(starts[-1], starts[-1] + count)
            features[rows] = values[first : first + count]
            every = np.arange(starts[-1], starts[-1] + count + rejected[row])
            positions[every] = first + np.arange(len(every))
            cells[every] = self.tables[request.slot, positions[every] // BLOCK_SIZE] * BLOCK_SIZE + positions[every] % BLOCK_SIZE
            slots_of[every] = request.slot
            starts.append(starts[-1] + len(every))
            computed[request.slot] = first + count
        write = self.device.upload
        write(self.scratch.features, features)
        write(self.step.positions, positions)
        write(self.step.slot_mapping, cells)
        write(self.step.token_slot, slots_of)
        write(self.step.num_rejected, rejected)
        write(self.state.query_start_loc, np.array(starts + starts[-1:] * (SLOTS + 1 - len(starts)), np.int32))
        write(self.state.live, np.array([starts[-1], len(self.requests), 0], np.int32))
        slots = [request.slot for request in self.requests]
        write(self.state.idx_mapping, np.array(slots + [-1] * (SLOTS - len(slots)), np.int32))
        write(self.state.num_computed, computed)
        self.proposer().record_context(self.stream, self.key, self.state, self.step)

    def append_all(self) -> None:
        for chunk in range(len(self.requests[0].chunks)):
            self.append(chunk)
        anchors = np.zeros(SLOTS, np.int32)
        for request in self.requests:
            anchors[request.slot] = request.tokens[-1]
        self.device.upload(self.state.last_sampled, anchors)
        self.device.upload(self.step.num_sampled, np.ones(SLOTS, np.int32))

    def read(self, name: str) -> Array:
        """An array of the state, or of the drafter's scratch."""
        found = getattr(self.state, name, None)
        return self.device.download(getattr(self.scratch, name) if found is None else found)

    def block_rows(self, name: str, row: int) -> Array:
        """The query rows of request `row` in an activation."""
        return self.read(name)[row * (1 + self.k) : (row + 1) * (1 + self.k)]

    def pages(self, row: int) -> list[tuple[Array, Array]]:
        """(K, V) [n, kv heads, head size] of each layer that the cache holds for the context of request `row`."""
        request, cache = self.requests[row], self.device.download(self.arrays.cache)
        at = np.arange(request.anchor_at)
        blocks, offsets = self.tables[request.slot, at // BLOCK_SIZE], at % BLOCK_SIZE
        return [(layer[0, blocks, offsets], layer[1, blocks, offsets]) for layer in cache]

    def expected(self, row: int) -> Stages:
        """The reference's query pass for request `row`."""
        request = self.requests[row]
        context = self.reference.context(self.features[row][: request.anchor_at])
        return self.reference.propose(context, request.tokens[-1], 1 + self.k)
