"""The target in PyTorch: a dense Llama, Qwen2 or Qwen3 decoder whose attention is left to its caller.

One code path so serves packed rows, a growing cache and CUDA graphs. Nothing in it has a gradient: the target is frozen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F  # noqa: N812 - its customary name

from runtime.checkpoint.weights import ModelWeights
from runtime.models.rope import rope_table
from runtime.models.spec import ModelSpec

Tensor: TypeAlias = torch.Tensor
Attend: TypeAlias = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""attend(layer, q [B, nh, Q, hd], k, v [B, nkv, Q, hd]) -> [B, nh, Q, hd]."""

HIDDEN_FROM = float("-inf")


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), eps)


def angles(table: Any, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines, each [L, hd] with both halves filled, of the table [L, hd] that the runtime's kernels read.

    The first half of the sines is negated: the second half of a head enters the first with a minus.
    """
    cos, sin = torch.from_numpy(table).to(device).chunk(2, -1)
    return torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate-half embedding in float32. x [B, heads, Q, hd]; cos, sin [B, 1, Q, hd] of `angles`."""
    y = x.float()
    return torch.addcmul(y * cos, y.roll(x.shape[-1] // 2, -1), sin).to(x.dtype)


def attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Grouped-query attention. q [B, nh, Q, hd], k and v [B, nkv, S, hd], additive bias [B, 1, Q, S]."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.expand(-1, q.shape[1], -1, -1))


def bias_of(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """Additive mask: 0 where `visible`, minus infinity elsewhere."""
    return torch.zeros(visible.shape, device=visible.device, dtype=dtype).masked_fill_(~visible, HIDDEN_FROM)


class TorchTarget:
    """Weights of a checkpoint on one device, with the forward pass. embed, head [V, H]."""

    def __init__(self, spec: ModelSpec, weights: ModelWeights, device: torch.device, dtype: torch.dtype, max_len: int) -> None:
        """`weights` are float32 host arrays; `max_len` positions are prepared."""

        def put(values: Any) -> Any:
            return None if values is None else torch.from_numpy(values).to(device=device, dtype=dtype)

        self.spec, self.device, self.dtype, self.max_len = spec, device, dtype, max_len
        self.embed = put(weights.embed)
        self.head = self.embed if weights.head is weights.embed else put(weights.head)
        self.final_norm = put(weights.final_norm)
        names = ("input_norm", "qkv", "qkv_bias", "q_norm", "k_norm", "out", "post_norm", "gate_up", "down")
        self.layers = [{name: put(getattr(layer, name)) for name in names} for layer in weights.layers]
        self.cos, self.sin = angles(rope_table(spec.rope, spec.head_dim, max_len), device)

    @torch.no_grad()
    def run(self, ids: Tensor, positions: Tensor, attend: Attend, taps: Sequence[int] = (), depth: int | None = None) -> Any:
        """ids, positions [B, Q] -> the residual stream [B, Q, H] behind the last block that was run (`depth` of them), and the
        residual streams behind the blocks `taps`, side by side [B, Q, taps * H], None without taps.
        """
        spec, (batch, rows) = self.spec, ids.shape
        x, kept = F.embedding(ids, self.embed), {}
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        for index, w in enumerate(self.layers[:depth]):
            qkv = F.linear(rms_norm(x, w["input_norm"], spec.rms_norm_eps), w["qkv"], w["qkv_bias"])
            heads = qkv.view(batch, rows, -1, spec.head_dim).transpose(1, 2)
            rotated, v = heads.split([spec.num_heads + spec.num_kv_heads, spec.num_kv_heads], 1)
            if w["q_norm"] is not None:
                q, k = rotated.split([spec.num_heads, spec.num_kv_heads], 1)
                q, k = rms_norm(q, w["q_norm"], spec.rms_norm_eps), rms_norm(k, w["k_norm"], spec.rms_norm_eps)
                rotated = torch.cat([q, k], 1)
            q, k = rotate(rotated, cos, sin).split([spec.num_heads, spec.num_kv_heads], 1)
            out = attend(index, q, k, v)
            x = x + F.linear(out.transpose(1, 2).reshape(batch, rows, -1), w["out"])
            gate, up = F.linear(rms_norm(x, w["post_norm"], spec.rms_norm_eps), w["gate_up"]).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, w["down"])
            if index in taps:
                kept[index] = x
        return x, torch.cat([kept[tap] for tap in taps], -1) if taps else None

    def logits(self, x: Tensor) -> Tensor:
        """[..., V] of a residual stream [..., H] behind the last block."""
        return F.linear(rms_norm(x, self.final_norm, self.spec.rms_norm_eps), self.head)
