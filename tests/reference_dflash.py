"""DFlash and DFlash2 in plain NumPy, written from the method's description and sharing no code with the product.

It reads a drafter's config.json (a dict) and its tensors by their names in the file. The speculative loop runs the target anew over
the whole sequence at every step (tests/reference_forward): slow, and without a cache that could go stale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.reference_forward import logits_of, reference_residuals, rms_norm, rotate, rotation

Array = npt.NDArray[Any]


def look_up(config: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """A field of `dflash_config`, else of the top level."""
    for place in (config.get("dflash_config") or {}, config):
        if place.get(name) is not None:
            return place[name]
    return default


@dataclass
class Stages:
    """What a query pass computed on its way, by slot of the block: compared stage by stage with the product.

    layers: the residual stream [Q, H] behind each draft layer. hidden: [Q, H] behind the final norm. logits: [Q, V] of every slot.
    candidates, scores: of slots 1..Q-1, ids [K] and the row of the lattice [K] that the walk took. drafts: of slots 1..Q-1.
    margin: how far the best draft was ahead of the second, the least over the slots.
    """

    layers: list[Array] = field(default_factory=list)
    hidden: Array = field(default_factory=lambda: np.zeros(0))
    logits: Array = field(default_factory=lambda: np.zeros(0))
    candidates: list[Array] = field(default_factory=list)
    scores: list[Array] = field(default_factory=list)
    drafts: list[int] = field(default_factory=list)
    margin: float = np.inf


class ReferenceDrafter:
    """One drafter beside one target.

    Args:
        config, tensors: the drafter's.
        embed, head: [V, H] of the target; the drafter has neither.
        dtype: of all arithmetic.
        max_len: positions that the angles cover.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        tensors: Mapping[str, Array],
        embed: Array,
        head: Array,
        *,
        dtype: type = np.float64,
        max_len: int = 512,
    ) -> None:
        self.config, self.dtype = config, dtype
        self.tensors = {name: values.astype(dtype) for name, values in tensors.items()}
        self.embed, self.head = embed, head.astype(dtype)
        self.taps: list[int] = list(look_up(config, "target_layer_ids"))
        rope = {**config, "head_dim": config["head_dim"]}
        if config.get("rope_parameters"):
            nested = config["rope_parameters"]
            rope |= {"rope_theta": nested["rope_theta"], "rope_scaling": nested if nested["rope_type"] != "default" else None}
        angles, scale = rotation(rope, max_len)
        self.cos, self.sin = (np.cos(angles) * scale).astype(dtype), (np.sin(angles) * scale).astype(dtype)
        self.eps = config["rms_norm_eps"]

    # ---- context -----------------------------------------------------------------------------------------------

    def features(self, residuals: Sequence[Array]) -> Array:
        """[n, taps * H]: the residual stream behind each tapped block (0-based), side by side in the order of the list."""
        return np.concatenate([residuals[tap] for tap in self.taps], axis=1).astype(self.dtype)

    def fused(self, features: Array) -> Array:
        """[n, H]: one vector a token, the same for every layer."""
        return rms_norm(features @ self.tensors["fc.weight"].T, self.tensors["hidden_norm.weight"], self.eps)

    def context(self, features: Array, first: int = 0) -> list[tuple[Array, Array]]:
        """(K, V) [n, kv heads, head size] of each layer, for tokens at positions first, first + 1, ..."""
        fused = self.fused(features)
        positions = np.arange(first, first + len(features))
        return [self._keys_values(layer, fused, positions) for layer in range(self.num_layers)]

    def _keys_values(self, layer: int, x: Array, positions: Array) -> tuple[Array, Array]:
        keys = rms_norm(self._heads(layer, "k", x), self.tensors[f"layers.{layer}.self_attn.k_norm.weight"], self.eps)
        return rotate(keys, self.cos[positions], self.sin[positions]), self._heads(layer, "v", x)

    # ---- query pass --------------------------------------------------------------------------------------------

    def propose(self, context: Sequence[tuple[Array, Array]], anchor: int, num_slots: int) -> Stages:
        """Drafts of slots 1 .. num_slots - 1 behind the anchor, which stands at the position behind the context."""
        stages = Stages()
        if num_slots < 2:
            return stages
        anchor_at = len(context[0][0])
        positions = np.arange(anchor_at, anchor_at + num_slots)
        ids = [anchor] + [int(look_up(self.config, "mask_token_id"))] * (num_slots - 1)
        x = self.embed[ids].astype(self.dtype) * look_up(self.config, "input_embedding_scale", 1.0)
        for layer in range(self.num_layers):
            prefix = f"layers.{layer}."
            y = rms_norm(x, self.tensors[prefix + "input_layernorm.weight"], self.eps)
            before, after = self._convolutions(prefix + "attention_conv.", y)
            x = x + after(self._attend(layer, before(y), positions, context[layer]))
            y = rms_norm(x, self.tensors[prefix + "post_attention_layernorm.weight"], self.eps)
            before, after = self._convolutions(prefix + "mlp_conv.", y)
            z = before(y)
            gate, up = z @ self.tensors[prefix + "mlp.gate_proj.weight"].T, z @ self.tensors[prefix + "mlp.up_proj.weight"].T
            x = x + after((gate / (1 + np.exp(-gate)) * up) @ self.tensors[prefix + "mlp.down_proj.weight"].T)
            stages.layers.append(x)
        stages.hidden = rms_norm(x, self.tensors["norm.weight"], self.eps)
        stages.logits = self._logits(stages.hidden)
        self._pick(stages, anchor)
        return stages

    def _attend(self, layer: int, y: Array, positions: Array, context: tuple[Array, Array]) -> Array:
        q = rms_norm(self._heads(layer, "q", y), self.tensors[f"layers.{layer}.self_attn.q_norm.weight"], self.eps)
        q = rotate(q, self.cos[positions], self.sin[positions])
        block_keys, block_values = self._keys_values(layer, y, positions)
        keys, values = np.concatenate([context[0], block_keys]), np.concatenate([context[1], block_values])
        allowed = self._visible(layer, positions, len(keys))
        out = np.empty_like(q)
        for head in range(q.shape[1]):
            shared = head * keys.shape[1] // q.shape[1]
            scores = q[:, head] @ keys[:, shared].T * self.config["head_dim"] ** -0.5
            scores = np.where(allowed, scores, -np.inf)
            scores = np.exp(scores - scores.max(axis=1, keepdims=True))
            out[:, head] = scores / scores.sum(axis=1, keepdims=True) @ values[:, shared]
        out = out.reshape(len(y), -1) @ self.tensors[f"layers.{layer}.self_attn.o_proj.weight"].T
        return out + self.tensors.get(f"layers.{layer}.self_attn.o_proj.bias", 0)

    def _visible(self, layer: int, positions: Array, num_keys: int) -> Array:
        """[Q, keys]: the key at position j is seen by the query at position p."""
        kinds = self.config.get("layer_types") or ["full_attention"] * self.num_layers
        sliding = kinds[layer] == "sliding_attention"
        causal = look_up(self.config, "is_causal", sliding)
        query, key = positions[:, None], np.arange(num_keys)[None, :]
        seen = (key <= query) if causal else np.ones((len(positions), num_keys), bool)
        if sliding:
            window = look_up(self.config, "sliding_window")
            seen = seen & (query - key < window) & (key - query < window)
        return seen

    def _convolutions(self, prefix: str, y: Array) -> tuple[Any, Any]:
        """The two sides of a dynamic convolution, whose kernels both come from y; the identity where there is none."""
        if prefix + "base_kernel" not in self.tensors:
            return (lambda z: z), (lambda z: z)
        base = self.tensors[prefix + "base_kernel"]
        _, taps, hidden = base.shape
        group = look_up(self.config, "conv_group_size", 16)
        delta = (y @ self.tensors[prefix + "kernel_projection.weight"].T).reshape(len(y), 2, taps, hidden // group)
        kernels = base[None] + np.repeat(delta, group, axis=3)

        def side(which: int) -> Any:
            def convolve(z: Array) -> Array:
                out = np.zeros_like(z)
                for slot in range(len(z)):
                    for tap in range(min(taps, slot + 1)):
                        out[slot] += kernels[slot, which, tap] * z[slot - tap]
                return out

            return convolve

        return side(0), side(1)

    # ---- pick --------------------------------------------------------------------------------------------------

    def _logits(self, hidden: Array) -> Array:
        logits = hidden @ self.head.T * look_up(self.config, "output_multiplier", 1.0)
        cap = look_up(self.config, "final_logit_softcapping")
        return np.tanh(logits / cap) * cap if cap else logits

    def _pick(self, stages: Stages, anchor: int) -> None:
        previous = anchor
        for slot in range(1, len(stages.logits)):
            logits = stages.logits[slot]
            if "candidate_selector.hidden_projection.weight" in self.tensors:
                count = look_up(self.config, "selector_top_k", 16)
                ids = np.argsort(-logits, kind="stable")[:count]
                gate = stages.hidden[slot] @ self.tensors["candidate_selector.hidden_projection.weight"].T
                edge = self.tensors["candidate_selector.predecessor_codebook"][previous] * gate
                scores = logits[ids] + self.tensors["candidate_selector.successor_codebook"][ids] @ edge
                stages.candidates.append(ids)
                stages.scores.append(scores)
            else:
                ids, scores = np.arange(len(logits)), logits
            second, best = np.sort(scores)[-2:]
            stages.margin = min(stages.margin, float(best - second))
            previous = int(ids[np.argmax(scores)])
            stages.drafts.append(previous)

    # ---- helpers -----------------------------------------------------------------------------------------------

    @property
    def num_layers(self) -> int:
        return int(self.config["num_hidden_layers"])

    def _heads(self, layer: int, name: str, x: Array) -> Array:
        prefix = f"layers.{layer}.self_attn.{name}_proj."
        y = x @ self.tensors[prefix + "weight"].T + self.tensors.get(prefix + "bias", 0)
        return y.reshape(len(x), -1, self.config["head_dim"])


@dataclass(frozen=True)
class Step:
    """One turn of the loop: what was drafted behind the committed tokens, and what the target made of it."""

    position: int  # of the anchor
    drafts: tuple[int, ...]
    emitted: tuple[int, ...]  # accepted drafts, then the target's own token; cut at the end of the answer
    margin: float  # of the drafts


def speculate(
    target: Mapping[str, Any],
    tensors: Mapping[str, Array],
    drafter: ReferenceDrafter,
    prompt: Sequence[int],
    *,
    k: int,
    max_tokens: int,
    max_model_len: int,
    stop: Sequence[int] = (),
) -> tuple[list[int], list[Step]]:
    """(tokens behind the prompt, steps) of greedy block speculation, everything computed anew in each step.

    A draft stands at a position below max_model_len, so that the last steps draft fewer than k.
    """
    tokens, steps = list(prompt), []

    def run(ids: Sequence[int]) -> tuple[list[Array], list[int]]:
        residuals = reference_residuals(target, tensors, ids, drafter.dtype)
        return residuals, logits_of(target, tensors, residuals[-1]).argmax(-1).tolist()

    def ended() -> bool:
        return tokens[-1] in stop or len(tokens) - len(prompt) >= max_tokens or len(tokens) >= max_model_len

    tokens.append(run(tokens)[1][-1])
    while not ended():
        anchor_at = len(tokens) - 1
        residuals, _ = run(tokens)
        # The anchor's own features are not part of its context.
        context = drafter.context(drafter.features(residuals)[:anchor_at])
        proposed = drafter.propose(context, tokens[-1], min(1 + k, max_model_len - anchor_at))
        _, predicted = run(tokens + proposed.drafts)
        emitted: list[int] = []
        for slot in range(len(proposed.drafts) + 1):
            emitted.append(predicted[anchor_at + slot])
            tokens.append(emitted[-1])
            if ended() or slot == len(proposed.drafts) or proposed.drafts[slot] != emitted[-1]:
                break
        steps.append(Step(anchor_at, tuple(proposed.drafts), tuple(emitted), proposed.margin))
    return tokens[len(prompt) :], steps


def replay(drafter: ReferenceDrafter, residuals: Sequence[Array], tokens: Sequence[int], prompt_len: int, k: int) -> list[Step]:
    """The steps of `speculate` when the whole greedy text is known: `tokens` are prompt and answer, `residuals` the target's over
    them. A target that is causal computes the same features for a token whatever follows it, so one pass serves every step.
    """
    context = drafter.context(drafter.features(residuals))
    steps, anchor_at = [], prompt_len
    while anchor_at < len(tokens) - 1:
        so_far = [(keys[:anchor_at], values[:anchor_at]) for keys, values in context]
        proposed = drafter.propose(so_far, tokens[anchor_at], 1 + k)
        ahead, accepted = tokens[anchor_at + 1 :], 0
        while accepted < min(k, len(ahead)) and proposed.drafts[accepted] == ahead[accepted]:
            accepted += 1
        emitted = tuple(ahead[: accepted + 1])
        steps.append(Step(anchor_at, tuple(proposed.drafts), emitted, proposed.margin))
        anchor_at += accepted + 1
    return steps
