"""The drafter in PyTorch, DFlash and DFlash2. Its parameters carry the names of z-lab's checkpoints.

Master weights are float32; a layer computes in the dtype of what it is given. Embedding and head are the target's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from runtime.models.rope import rope_table
from runtime.speculators.dflash_config import DraftSpec, read_draft_config
from runtime.speculators.train.target import Tensor, angles, attention, rms_norm, rotate

INITIAL_STD = 0.02
TRAINING_ONLY = ("predecessor_map", "successor_map")


def linear(x: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x, weight.to(x.dtype))


class Weight(nn.Module):
    """A bare parameter called `weight`, for names such as `fc.weight`. std None: ones."""

    def __init__(self, *shape: int, std: float | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape) if std is None else torch.randn(shape) * std)


class DynamicConv(nn.Module):
    """Grouped dynamic causal convolution over the slots of a block; the identity when it is new."""

    def __init__(self, spec: DraftSpec) -> None:
        super().__init__()
        self.taps, self.group = spec.conv_kernel_size, spec.conv_group_size
        base = torch.zeros(2, self.taps, spec.hidden_size)
        base[:, 0] = 1.0
        self.base_kernel = nn.Parameter(base)
        self.kernel_projection = Weight(2 * self.taps * spec.hidden_size // self.group, spec.hidden_size, std=0.0)

    def kernels(self, y: Tensor) -> tuple[Tensor, ...]:
        """One [N, b, H] for each tap of side 0, then of side 1, for the normed input y [N, b, H] of a sublayer.

        The projection is widened from groups to channels before the product and not after it: a larger product costs less than the
        sums over sixteen neighbours that the gradient would need.
        """
        wide = self.kernel_projection.weight.repeat_interleave(self.group, 0)
        kernels = F.linear(y, wide.to(y.dtype), self.base_kernel.flatten().to(y.dtype))
        return kernels.split(y.shape[-1], -1)

    def apply_side(self, kernels: tuple[Tensor, ...], side: int, z: Tensor) -> Tensor:
        """z [N, b, H] convolved by one side; slots before the anchor count as zero."""
        own = kernels[side * self.taps : (side + 1) * self.taps]
        out = own[0] * z
        for tap in range(1, min(self.taps, z.shape[1])):
            out = out + own[tap] * F.pad(z, (0, 0, tap, 0))[:, :-tap]
        return out


class Attention(nn.Module):
    """Projections of a layer's attention, and the gains of its heads; without biases."""

    def __init__(self, spec: DraftSpec, out_std: float) -> None:
        super().__init__()
        hidden, q, kv = spec.hidden_size, spec.q_size, spec.kv_size
        self.q_proj, self.k_proj, self.v_proj = (Weight(rows, hidden, std=INITIAL_STD) for rows in (q, kv, kv))
        self.o_proj = Weight(hidden, q, std=out_std)
        self.q_norm, self.k_norm = Weight(spec.head_dim), Weight(spec.head_dim)


class FeedForward(nn.Module):
    """Gate, up and down: the SwiGLU of a layer."""

    def __init__(self, spec: DraftSpec, out_std: float) -> None:
        super().__init__()
        hidden, inter = spec.hidden_size, spec.intermediate_size
        self.gate_proj, self.up_proj = Weight(inter, hidden, std=INITIAL_STD), Weight(inter, hidden, std=INITIAL_STD)
        self.down_proj = Weight(hidden, inter, std=out_std)


class Layer(nn.Module):
    """One layer of the drafter; version 2 has a convolution around each sublayer."""

    def __init__(self, spec: DraftSpec) -> None:
        super().__init__()
        out_std = INITIAL_STD / (2 * spec.num_layers) ** 0.5
        self.input_layernorm, self.post_attention_layernorm = Weight(spec.hidden_size), Weight(spec.hidden_size)
        self.self_attn, self.mlp = Attention(spec, out_std), FeedForward(spec, out_std)
        if spec.version == 2:
            self.attention_conv, self.mlp_conv = DynamicConv(spec), DynamicConv(spec)


class Selector(nn.Module):
    """DFlash2's candidate selector. While training, a codebook is (embedding of unit variance) @ map + a free part, so that rare
    tokens learn from common ones; the sum is what is exported, and what a later run begins from as its free part."""

    def __init__(self, spec: DraftSpec) -> None:
        super().__init__()
        vocab, hidden, rank = spec.vocab_size, spec.hidden_size, spec.selector_rank
        self.predecessor_codebook = nn.Parameter(torch.zeros(vocab, rank))
        self.successor_codebook = nn.Parameter(torch.zeros(vocab, rank))
        self.hidden_projection = Weight(rank, hidden, std=hidden**-0.5)
        self.predecessor_map = nn.Parameter(torch.randn(hidden, rank) * hidden**-0.5)
        self.successor_map = nn.Parameter(torch.zeros(hidden, rank))

    def codebooks(self, table: Tensor) -> tuple[Tensor, Tensor]:
        """Predecessors and successors [V, rank]; table: the target's embedding [V, H] scaled to unit variance."""
        return (
            table @ self.predecessor_map.to(table.dtype) + self.predecessor_codebook,
            table @ self.successor_map.to(table.dtype) + self.successor_codebook,
        )


class TorchDrafter(nn.Module):
    """Args: config, the config.json to be exported; max_len, positions that are prepared."""

    def __init__(self, config: Mapping[str, Any], max_len: int) -> None:
        super().__init__()
        self.config = dict(config)
        self.spec = spec = read_draft_config(config)
        self.fc = Weight(spec.hidden_size, spec.feature_size, std=INITIAL_STD)
        self.hidden_norm, self.norm = Weight(spec.hidden_size), Weight(spec.hidden_size)
        self.layers = nn.ModuleList(Layer(spec) for _ in range(spec.num_layers))
        if spec.version == 2:
            self.candidate_selector = Selector(spec)
        cos, sin = angles(rope_table(spec.rope, spec.head_dim, max_len), torch.device("cpu"))
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def _heads(self, x: Tensor, weight: Tensor) -> Tensor:
        return linear(x, weight).view(*x.shape[:-1], -1, self.spec.head_dim).transpose(1, 2)

    def context(self, features: Tensor, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """features [B, n, taps * H], positions [B, n] -> (K, V) [B, nkv, n, hd] of each layer: one vector a token for all layers,
        without layer norm and without convolution."""
        eps = self.spec.rms_norm_eps
        fused = rms_norm(linear(features, self.fc.weight), self.hidden_norm.weight, eps)
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        result = []
        for layer in self.layers:
            attn = layer.self_attn
            keys = rms_norm(self._heads(fused, attn.k_proj.weight), attn.k_norm.weight, eps)
            result.append((rotate(keys, cos, sin), self._heads(fused, attn.v_proj.weight)))
        return result

    def forward(self, x: Tensor, positions: Tensor, context: list[tuple[Tensor, Tensor]], bias: Tensor, block: int) -> Tensor:
        """Final-normed hidden states [B, Q, H] of Q / block blocks side by side.

        x [B, Q, H] embeddings of anchors and masks, positions [B, Q], bias [B, 1, Q, n + Q] over context and blocks.
        """
        eps, (batch, rows, _) = self.spec.rms_norm_eps, x.shape
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        for layer, (context_keys, context_values) in zip(self.layers, context, strict=True):
            attn, mlp = layer.self_attn, layer.mlp
            y = rms_norm(x, layer.input_layernorm.weight, eps)
            before, after = self._convolution(layer, "attention_conv", y, block)
            y = before(y)
            q = rotate(rms_norm(self._heads(y, attn.q_proj.weight), attn.q_norm.weight, eps), cos, sin)
            k = rotate(rms_norm(self._heads(y, attn.k_proj.weight), attn.k_norm.weight, eps), cos, sin)
            v = self._heads(y, attn.v_proj.weight)
            out = attention(q, torch.cat([context_keys, k], 2), torch.cat([context_values, v], 2), bias)
            x = x + after(linear(out.transpose(1, 2).reshape(batch, rows, -1), attn.o_proj.weight))
            y = rms_norm(x, layer.post_attention_layernorm.weight, eps)
            before, after = self._convolution(layer, "mlp_conv", y, block)
            y = before(y)
            y = linear(F.silu(linear(y, mlp.gate_proj.weight)) * linear(y, mlp.up_proj.weight), mlp.down_proj.weight)
            x = x + after(y)
        return rms_norm(x, self.norm.weight, eps)

    @staticmethod
    def _convolution(layer: Any, name: str, y: Tensor, block: int) -> tuple[Any, Any]:
        """What stands before and behind a sublayer: both sides' kernels come from y, its normed input."""
        conv = getattr(layer, name, None)
        if conv is None:
            return (lambda z: z), (lambda z: z)
        by_block = (y.shape[0] * y.shape[1] // block, block, y.shape[2])
        kernels = conv.kernels(y.view(by_block))

        def side(index: int) -> Any:
            return lambda z: conv.apply_side(kernels, index, z.view(by_block)).view(z.shape)

        return side(0), side(1)

    def exported(self, table: Tensor | None) -> dict[str, Tensor]:
        """Tensors of model.safetensors: bfloat16 on the CPU. table: as Selector.codebooks takes it."""
        tensors = {name: p.detach() for name, p in self.named_parameters() if name.rpartition(".")[2] not in TRAINING_ONLY}
        if self.spec.version == 2 and table is not None:
            with torch.no_grad():
                predecessors, successors = self.candidate_selector.codebooks(table.float())
            tensors["candidate_selector.predecessor_codebook"] = predecessors
            tensors["candidate_selector.successor_codebook"] = successors
        return {name: tensor.to(torch.bfloat16).cpu().contiguous() for name, tensor in tensors.items()}

    @torch.no_grad()
    def begin_from(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over an exported drafter. A layer that it lacks begins as the identity; of a selector of higher rank the components
        that weigh most are kept; codebooks arrive whole, so the maps begin at zero.
        """
        own = dict(self.named_parameters())
        given = {name: tensor.to(torch.float32) for name, tensor in tensors.items()}
        for layer in self.layers[1 + max(int(name.split(".")[1]) for name in given if name.startswith("layers.")) :]:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        if self.spec.version == 2 and "candidate_selector.predecessor_codebook" in given:
            names = ("predecessor_codebook", "successor_codebook", "hidden_projection.weight")
            a, b, w = (given["candidate_selector." + name] for name in names)
            kept = (a.norm(dim=0) * b.norm(dim=0) * w.norm(dim=1)).argsort(descending=True)[: self.spec.selector_rank].sort()[0]
            for name, part in zip(names, (a[:, kept], b[:, kept], w[kept]), strict=True):
                given["candidate_selector." + name] = part
            self.candidate_selector.predecessor_map.zero_()
        for name, tensor in given.items():
            if name in own and own[name].shape == tensor.shape:
                own[name].copy_(tensor)
