"""DFlash and DFlash2 written once more, in PyTorch, against every stage of the product: features in, drafts out.

Written from the method's description with the tools of PyTorch (scaled_dot_product_attention under a mask over context and block
together, padding for the convolution), so that it shares no way of computing with the product nor with tests/reference_dflash.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from tests.dflash_rig import Rig, random_requests
from tests.test_dflash_stages import SHAPES, TARGET, K
from tests.tiny_checkpoint import VOCAB_SIZE, TinyModel, write_tiny_checkpoint
from tests.tiny_drafter import write_tiny_drafter

pytestmark = pytest.mark.parity

NAMES = [name for name in SHAPES if not name.startswith("yarn")]
"""YaRN tables are compared with transformers' own in test_parity."""


@dataclass
class Proposal:
    """fused [n, H]; keys, values [L, n, kv heads, hd] of the context; layers [L, Q, H]; logits [Q - 1, V]; scores of the walk."""

    fused: torch.Tensor
    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    layers: list[torch.Tensor]
    logits: torch.Tensor
    candidates: list[torch.Tensor]
    scores: list[torch.Tensor]
    drafts: list[int]


class TorchDrafter:
    """One drafter beside the tables of its target, in float32."""

    def __init__(self, config: Mapping[str, Any], tensors: Mapping[str, np.ndarray], embed: np.ndarray, head: np.ndarray) -> None:
        self.field = {**config, **{name: value for name, value in config.get("dflash_config", {}).items() if value is not None}}
        self.weight = {name: torch.from_numpy(values.copy()) for name, values in tensors.items()}
        self.embed, self.head = torch.from_numpy(embed.copy()), torch.from_numpy(head.copy())

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return F.rms_norm(x, x.shape[-1:], self.weight[name + ".weight"], self.field["rms_norm_eps"])

    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return F.linear(x, self.weight[name + ".weight"], self.weight.get(name + ".bias"))

    def heads(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return self.linear(x, name).unflatten(-1, (-1, self.field["head_dim"]))

    def turn(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Rotary embedding as a product of complex numbers: halves are real and imaginary parts."""
        half, rope = self.field["head_dim"] // 2, self.field.get("rope_parameters") or self.field
        rates = rope["rope_theta"] ** (-torch.arange(half, dtype=torch.float64) / half)
        turns = torch.polar(torch.ones(1, dtype=torch.float64), positions[:, None].double() * rates)[:, None]
        turned = torch.complex(x[..., :half].double(), x[..., half:].double()) * turns
        return torch.cat([turned.real, turned.imag], dim=-1).float()

    def sees(self, layer: int, positions: torch.Tensor, count: int) -> torch.Tensor:
        kinds = self.field.get("layer_types") or ["full_attention"] * self.field["num_hidden_layers"]
        slides = kinds[layer] == "sliding_attention"
        given = self.field.get("is_causal")
        distance = positions[:, None] - torch.arange(count)[None]
        seen = torch.ones_like(distance, dtype=torch.bool)
        if slides:
            seen &= distance.abs() < self.field["sliding_window"]
        if slides if given is None else given:
            seen &= distance >= 0
        return seen

    def convolution(self, name: str, y: torch.Tensor) -> torch.Tensor | None:
        """Kernels [Q, 2, taps, H], all of them from the sublayer's normed input."""
        base = self.weight.get(name + ".base_kernel")
        if base is None:
            return None
        delta = self.linear(y, name + ".kernel_projection").unflatten(-1, (*base.shape[:2], -1))
        return base + delta.repeat_interleave(self.field["conv_group_size"], dim=-1)

    @staticmethod
    def convolve(kernels: torch.Tensor | None, side: int, z: torch.Tensor) -> torch.Tensor:
        if kernels is None:
            return z
        shifted = [F.pad(z, (0, 0, tap, 0))[: len(z)] for tap in range(kernels.shape[2])]
        return (kernels[:, side] * torch.stack(shifted, dim=1)).sum(dim=1)

    def propose(self, features: torch.Tensor, anchor: int, slots: int) -> Proposal:
        """A block of `slots` rows behind the context that has these features."""
        count, layers = len(features), self.field["num_hidden_layers"]
        fused = self.norm(self.linear(features, "fc"), "hidden_norm")
        positions, block = torch.arange(count), torch.arange(count, count + slots)
        ids = torch.tensor([anchor] + [self.field["mask_token_id"]] * (slots - 1))
        x = self.embed[ids] * self.field.get("input_embedding_scale", 1.0)
        result = Proposal(fused, [], [], [], torch.empty(0), [], [], [])
        for layer in range(layers):
            at = f"layers.{layer}."
            y = self.norm(x, at + "input_layernorm")
            kernels = self.convolution(at + "attention_conv", y)
            z = self.convolve(kernels, 0, y)
            both, where = torch.cat([fused, z]), torch.cat([positions, block])
            keys = self.turn(self.norm(self.heads(both, at + "self_attn.k_proj"), at + "self_attn.k_norm"), where)
            values = self.heads(both, at + "self_attn.v_proj")
            queries = self.turn(self.norm(self.heads(z, at + "self_attn.q_proj"), at + "self_attn.q_norm"), block)
            result.keys.append(keys[:count])
            result.values.append(values[:count])
            mask = self.sees(layer, block, count + slots)
            attended = F.scaled_dot_product_attention(
                *(part.transpose(0, 1)[None] for part in (queries, keys, values)), attn_mask=mask[None, None], enable_gqa=True
            )
            out = self.linear(attended[0].transpose(0, 1).flatten(1), at + "self_attn.o_proj")
            x = x + self.convolve(kernels, 1, out)
            y = self.norm(x, at + "post_attention_layernorm")
            kernels = self.convolution(at + "mlp_conv", y)
            z = self.convolve(kernels, 0, y)
            inner = F.silu(self.linear(z, at + "mlp.gate_proj")) * self.linear(z, at + "mlp.up_proj")
            x = x + self.convolve(kernels, 1, self.linear(inner, at + "mlp.down_proj"))
            result.layers.append(x)
        hidden = self.norm(x, "norm")[1:]
        result.logits = F.linear(hidden, self.head) * self.field.get("output_multiplier", 1.0)
        if cap := self.field.get("final_logit_softcapping"):
            result.logits = cap * torch.tanh(result.logits / cap)
        self.walk(result, hidden, anchor)
        return result

    def walk(self, result: Proposal, hidden: torch.Tensor, anchor: int) -> None:
        if "candidate_selector.hidden_projection.weight" not in self.weight:
            result.drafts = result.logits.argmax(dim=-1).tolist()
            return
        before, codes = anchor, "candidate_selector.{}_codebook"
        predecessors, successors = (self.weight[codes.format(name)] for name in ("predecessor", "successor"))
        for state, line in zip(self.linear(hidden, "candidate_selector.hidden_projection"), result.logits, strict=True):
            values, ids = line.topk(self.field["selector_top_k"])
            scores = values + torch.einsum("r,r,kr->k", predecessors[before], state, successors[ids])
            before = int(ids[scores.argmax()])
            result.candidates.append(ids)
            result.scores.append(scores)
            result.drafts.append(before)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("target"), TARGET)


def check(now: np.ndarray, expected: torch.Tensor, what: str) -> None:
    np.testing.assert_allclose(now, expected.numpy(), rtol=1e-4, atol=1e-5, err_msg=what)


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
@pytest.mark.parametrize("name", NAMES)
def test_every_stage(model: TinyModel, tmp_path: Path, name: str, fused: bool) -> None:
    drafter = write_tiny_drafter(tmp_path, TARGET, SHAPES[name])
    subject = Rig(model, drafter, random_requests(VOCAB_SIZE), k=K, fused=fused)
    subject.append_all()
    embed = model.tensors["model.embed_tokens.weight"]
    peer = TorchDrafter(drafter.config, drafter.tensors, embed, model.tensors.get("lm_head.weight", embed))
    expected = [
        peer.propose(torch.from_numpy(values[: request.anchor_at].astype(np.float32)), request.tokens[-1], 1 + K)
        for request, values in zip(subject.requests, subject.features, strict=True)
    ]
    for row, wanted in enumerate(expected):
        for layer, (keys, values) in enumerate(subject.pages(row)):
            check(keys, wanted.keys[layer], f"keys of the context, layer {layer}, request {row}")
            check(values, wanted.values[layer], f"values of the context, layer {layer}, request {row}")
    for row, start in ((0, 0), (1, 3), (2, 4)):  # the rows of the last chunk
        check(subject.read("context")[start], expected[row].fused[-1], f"normed output of fc, request {row}")
    if not fused:
        for count in range(1, len(subject.arrays.layers) + 1):
            subject.proposer(count).record_block(subject.stream, subject.key, subject.state, subject.step)
            for row, wanted in enumerate(expected):
                check(subject.block_rows("residual", row), wanted.layers[count - 1], f"layer {count - 1}, request {row}")
    subject.proposer().record(subject.stream, subject.key, subject.state, subject.step)
    drafts = subject.read("draft_tokens")
    for row, wanted in enumerate(expected):
        picks = slice(row * K, (row + 1) * K)
        check(subject.read("logits")[picks], wanted.logits, f"logits of request {row}")
        selector = subject.scratch.selector
        if selector is not None:
            ids, scores = subject.device.download(selector.ids)[picks], subject.device.download(selector.scores)[picks]
            np.testing.assert_array_equal(ids, torch.stack(wanted.candidates).numpy())
            walked = [0, *(int(np.flatnonzero(ids[i] == wanted.drafts[i])[0]) for i in range(K - 1))]
            check(scores[np.arange(K), walked], torch.stack(wanted.scores), f"scores of the walk, request {row}")
        assert drafts[subject.requests[row].slot].tolist() == wanted.drafts
