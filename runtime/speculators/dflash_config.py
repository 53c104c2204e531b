"""DraftSpec: everything about a DFlash or DFlash2 drafter that its weights, kernels and graphs need to know, from its config.json.

A field is looked up in `dflash_config` first, then at the top level: public checkpoints keep some of them here and some there.
Whatever the format knows and this program cannot compute is refused by name: a drafter that runs wrongly still drafts, and shows
only as lost acceptance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from runtime.errors import CheckpointError, DamagedFileError
from runtime.models.fields import Fields
from runtime.models.head_sizes import HeadSizes
from runtime.models.rope import RopeSpec, rope_from_hf, stretched_positions
from runtime.models.spec import HF_ARCHITECTURES, MAX_LAYERS, ModelSpec
from runtime.shown_value import shown

ARCHITECTURES: dict[str, Literal[1, 2]] = {"DFlashDraftModel": 1, "DFlash2DraftModel": 2}


@dataclass(frozen=True)
class DraftAttention:
    """What a layer's queries see. window: |query - key| must be smaller, in positions; 0 = no window."""

    window: int
    causal: bool  # inside the block; the context is all before it


@dataclass(frozen=True)
class DraftSpec(HeadSizes):
    """Shape and constants of a block drafter. Sizes count elements, lengths count tokens.

    Its embedding and its head are the target's. `conv_*` and `selector_*` are 0 in version 1.
    """

    version: Literal[1, 2]
    attention: tuple[DraftAttention, ...]  # by layer
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope: RopeSpec
    attention_bias: bool  # of the q, k, v and output projections
    max_position_embeddings: int  # longest sequence that it claims to handle, scaling included
    block_size: int  # rows of a block that it was trained with: the anchor and block_size - 1 drafts
    mask_token_id: int
    target_layer_ids: tuple[int, ...]  # 0-based blocks whose residual stream is tapped, in the order of fc's columns
    num_target_layers: int | None  # of the target that it was trained for
    target_hidden_size: int
    input_embedding_scale: float
    output_multiplier: float
    final_logit_softcapping: float  # 0 = none
    conv_kernel_size: int
    conv_group_size: int
    selector_rank: int
    selector_top_k: int

    @property
    def num_layers(self) -> int:
        return len(self.attention)

    @property
    def context_size(self) -> int:
        """Keys and values of all layers for one token."""
        return self.num_layers * 2 * self.kv_size

    @property
    def feature_size(self) -> int:
        """All taps of one token."""
        return len(self.target_layer_ids) * self.target_hidden_size


def default_target_layers(num_draft_layers: int, num_target_layers: int) -> tuple[int, ...]:
    """The taps of a checkpoint that names none: evenly spaced from block 1 to the third from the end, rounded half to even."""
    if num_draft_layers == 1:
        return (num_target_layers // 2,)
    step = (num_target_layers - 4) / (num_draft_layers - 1)
    return tuple(round(1 + step * index) for index in range(num_draft_layers))


def read_draft_config(config: Mapping[str, object], origin: str = "config.json") -> DraftSpec:
    """Spec of a drafter's config.json. `origin` names the file in errors.

    Raises CheckpointError that lists everything missing, nonsensical or unsupported.
    """
    version = _version(config, origin)
    inner = config.get("dflash_config")
    if inner is not None and not isinstance(inner, Mapping):
        raise DamagedFileError(origin, f"dflash_config = {shown(inner)}: must be an object")
    fields = Fields({**config, **{name: value for name, value in (inner or {}).items() if value is not None}})
    _refuse_unsupported(fields)
    heads, hidden, positions = (
        fields.integer(name) for name in ("num_attention_heads", "hidden_size", "max_position_embeddings")
    )
    head_dim, vocab = fields.integer("head_dim", 128), fields.integer("vocab_size")
    second = version == 2
    spec = DraftSpec(
        version=version,
        attention=_attention(fields),
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size"),
        num_heads=heads,
        num_kv_heads=fields.integer("num_key_value_heads", heads),
        head_dim=head_dim,
        vocab_size=vocab,
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope=(rope := rope_from_hf(fields, head_dim, positions)),
        attention_bias=fields.boolean("attention_bias", False),
        max_position_embeddings=stretched_positions(rope, positions),
        block_size=fields.integer("block_size", 16),
        mask_token_id=_mask_token_id(fields, vocab),
        target_layer_ids=_target_layer_ids(fields),
        num_target_layers=fields.integer("num_target_layers") if fields.has("num_target_layers") else None,
        target_hidden_size=fields.integer("target_hidden_size", hidden),
        input_embedding_scale=fields.number("input_embedding_scale", 1.0),
        output_multiplier=fields.number("output_multiplier", 1.0) * fields.number("logit_scale", 1.0),
        final_logit_softcapping=fields.number("final_logit_softcapping", 0.0, exclusive=False),
        conv_kernel_size=fields.integer("conv_kernel_size", 2) if second else 0,
        conv_group_size=fields.integer("conv_group_size", 16) if second else 0,
        selector_rank=fields.integer("selector_rank", 256) if second else 0,
        selector_top_k=fields.integer("selector_top_k", 16, maximum=256) if second else 0,
    )
    problems = list(fields.problems)
    if not problems:  # relations between fields mean something only once every field does
        problems += _contradictions(spec)
    if problems:
        raise CheckpointError.listing(f"{origin} (DFlash drafter) cannot be used; use another drafter, or mend the file", problems)
    return spec


def check_target(spec: DraftSpec, target: ModelSpec, num_speculative_tokens: int, origin: str) -> None:
    """Refuse a drafter that was made for another target, or for shorter blocks. Its heads are its own: how many, and their size,
    its tensors must agree with and not the target.

    Raises CheckpointError that lists every difference.
    """
    problems = []
    for name, ours, theirs in (
        ("hidden_size", spec.hidden_size, target.hidden_size),
        ("target_hidden_size", spec.target_hidden_size, target.hidden_size),
        ("vocab_size", spec.vocab_size, target.vocab_size),
        ("num_target_layers", spec.num_target_layers or target.num_layers, target.num_layers),
    ):
        if ours != theirs and not (name == "target_hidden_size" and ours == spec.hidden_size):
            problems.append(f"{name} = {ours}: the target has {theirs}; this drafter was made for another target")
    last = target.num_layers - 1
    outside = [layer for layer in spec.target_layer_ids if not 0 <= layer < last]
    if outside:
        problems.append(
            f"target_layer_ids = {list(spec.target_layer_ids)}: {outside} outside 0..{last - 1}; the target has "
            f"{target.num_layers} blocks, and what leaves the last one is no tap"
        )
    if spec.block_size < num_speculative_tokens + 1:
        problems.append(
            f"block_size = {spec.block_size}: drafts at most {spec.block_size - 1} tokens, speculator.num_speculative_tokens = "
            f"{num_speculative_tokens}; lower it"
        )
    if problems:
        raise CheckpointError.listing(f"{origin} does not fit the target; use a drafter that does", problems)


def _version(config: Mapping[str, object], origin: str) -> Literal[1, 2]:
    listed = config.get("architectures")
    if isinstance(listed, list) and len(listed) == 1 and isinstance(listed[0], str) and listed[0] in ARCHITECTURES:
        return ARCHITECTURES[listed[0]]
    remedy = "a target belongs into model.source" if _is_target(listed) else f"use one of {', '.join(ARCHITECTURES)}"
    raise CheckpointError(f"{origin}: architectures = {shown(listed)} is no drafter of speculator.method = dflash; {remedy}")


def _is_target(architectures: object) -> bool:
    return isinstance(architectures, list) and any(name in HF_ARCHITECTURES for name in map(str, architectures))


def _refuse_unsupported(fields: Fields) -> None:
    fields.refuse("hidden_act", ("silu",), "unsupported activation, only silu")
    fields.refuse("mlp_bias", (False,), "biases in the MLP are not supported")
    fields.refuse("sample_from_anchor", (False,), "true is another method (DSpark): its slots predict the next token")
    fields.refuse("attention_sink_bias", (False,), "attention sinks are not supported")
    fields.refuse("use_aux_hidden_state", (True,), "a drafter without taps of the target is not supported")
    for name in ("is_neox_style", "rope_is_neox_style"):
        fields.refuse(name, (True,), "interleaved rotation is not supported")
    fields.refuse("draft_vocab_size", (fields.values.get("vocab_size"),), "a reduced draft vocabulary (d2t) is not supported")
    fields.refuse("quantization_config", (), "packed quantised weights are not supported")


def _attention(fields: Fields) -> tuple[DraftAttention, ...]:
    """What each layer sees. `is_causal` (or vLLM's `causal`) holds for all layers; without it sliding layers are causal and full
    ones see both ways. vLLM's `use_swa` makes every layer a sliding one that sees both ways.
    """
    count = fields.integer("num_hidden_layers", maximum=MAX_LAYERS)
    windowed = fields.boolean("use_swa", False) and not fields.has("layer_types")
    given = fields.values.get("layer_types")
    kinds = given if given is not None else ["sliding_attention" if windowed else "full_attention"] * count
    if not isinstance(kinds, list) or not set(map(str, kinds)) <= {"full_attention", "sliding_attention"}:
        fields.problems.append(f"layer_types = {shown(kinds)}: must be a list of full_attention and sliding_attention")
        kinds = []
    elif len(kinds) != count:
        fields.problems.append(f"layer_types has {len(kinds)} entries for num_hidden_layers = {count}")
    window = 0
    if "sliding_attention" in kinds:
        window = fields.integer("swa_window_size" if fields.has("swa_window_size") else "sliding_window")
    key = "is_causal" if fields.has("is_causal") else "causal"
    everywhere = fields.boolean(key, False) if fields.has(key) else None
    if everywhere is None and windowed:
        everywhere = False
    slides = [kind == "sliding_attention" for kind in kinds]
    return tuple(DraftAttention(window if slide else 0, slide if everywhere is None else everywhere) for slide in slides)


def _mask_token_id(fields: Fields, vocab_size: int) -> int:
    ids = fields.ids("mask_token_id", vocab_size)
    if not fields.has("mask_token_id"):
        fields.problems.append("mask_token_id is missing: the id whose embedding fills the slots to be drafted")
    elif len(ids) > 1:
        fields.problems.append(f"mask_token_id = {list(ids)}: must be one id")
    return ids[0] if ids else 0


def _target_layer_ids(fields: Fields) -> tuple[int, ...]:
    given = fields.values.get("target_layer_ids")
    if given is None:
        layers = fields.integer("num_hidden_layers", maximum=MAX_LAYERS)
        return default_target_layers(layers, fields.integer("num_target_layers", maximum=MAX_LAYERS))
    whole = isinstance(given, list) and given and all(isinstance(item, int) and not isinstance(item, bool) for item in given)
    if not whole:
        fields.problems.append(f"target_layer_ids = {shown(given)}: must be a list of 0-based block numbers of the target")
        return ()
    assert isinstance(given, list)
    return tuple(given)


def _contradictions(spec: DraftSpec) -> list[str]:
    problems = []
    taps = spec.target_layer_ids
    if repeated := sorted({layer for layer in taps if taps.count(layer) > 1}):
        problems.append(
            f"target_layer_ids = {list(taps)}: {repeated} more than once; each has columns of fc of its own; name distinct blocks"
        )
    if spec.num_heads % spec.num_kv_heads:
        problems.append(f"{spec.num_heads} attention heads are no multiple of {spec.num_kv_heads} key/value heads")
    if spec.head_dim % 2:
        problems.append(f"head_dim = {spec.head_dim}: must be even")
    if spec.block_size < 2:
        problems.append(f"block_size = {spec.block_size}: an anchor and at least one draft need 2")
    if spec.version == 2 and spec.hidden_size % spec.conv_group_size:
        problems.append(f"conv_group_size = {spec.conv_group_size}: must divide hidden_size = {spec.hidden_size}")
    if spec.selector_top_k > spec.vocab_size:
        problems.append(f"selector_top_k = {spec.selector_top_k}: above vocab_size = {spec.vocab_size}")
    return problems
