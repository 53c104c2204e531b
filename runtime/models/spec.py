"""ModelSpec: everything about a dense decoder that kernels, graphs and the KV cache need to know, from either format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from runtime.errors import CheckpointError
from runtime.models.fields import Fields
from runtime.models.head_sizes import HeadSizes
from runtime.models.rope import RopeSpec, rope_from_gguf, rope_from_hf, stretched_positions
from runtime.shown_value import shown

Architecture = Literal["llama", "qwen2", "qwen3"]

HF_ARCHITECTURES: dict[str, Architecture] = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
MAX_LAYERS = 1000  # far beyond any real model: a corrupt count must not become billions of expected tensors
SUPPORTED = "dense decoders with SiLU gated MLPs, full attention and full rotary embedding"


@dataclass(frozen=True)
class ModelSpec(HeadSizes):
    """Shape and constants of a dense decoder. Sizes count elements, lengths count tokens."""

    architecture: Architecture
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int  # divides num_heads
    head_dim: int  # even
    vocab_size: int
    rms_norm_eps: float
    rope: RopeSpec
    max_position_embeddings: int  # longest sequence that the checkpoint claims to handle, scaling included
    tied_embeddings: bool  # the head is the embedding
    qk_norm: bool  # RMSNorm of each query and key head before the rotation (Qwen3)
    attention_bias: bool  # bias of the q, k and v projections (Qwen2); the output projection never has one
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()


def from_hf_config(config: Mapping[str, object], origin: str = "config.json") -> ModelSpec:
    """Spec of a Hugging Face config.json, written by transformers 4 (rope_theta, rope_scaling) or 5 (rope_parameters).

    Raises CheckpointError that lists everything missing, nonsensical or unsupported. `origin` names the file in it.
    """
    fields = Fields(config)
    name = _hf_architecture(config, origin)
    architecture = HF_ARCHITECTURES[name]
    fields.refuse("hidden_act", ("silu",), "unsupported activation, only silu")
    fields.refuse("mlp_bias", (False,), "biases in the MLP are not supported")
    if architecture != "qwen2":  # there transformers also gives the output projection a bias
        fields.refuse("attention_bias", (False,), "attention biases are supported for Qwen2ForCausalLM only")
    fields.refuse("use_sliding_window", (False,), "sliding-window attention is not supported")
    fields.refuse("quantization_config", (), "packed quantised weights are not supported; use GGUF for those")
    layer_types = config.get("layer_types")
    if layer_types is not None and not (isinstance(layer_types, list) and all(kind == "full_attention" for kind in layer_types)):
        fields.problems.append("layer_types: every layer must be full_attention")
    heads, hidden = fields.integer("num_attention_heads"), fields.integer("hidden_size")
    # Qwen3's configuration class fixes head_dim at 128 where the file is silent; the others divide.
    head_dim = fields.integer("head_dim", 128 if architecture == "qwen3" else _per_head(fields, hidden, heads))
    positions, vocab = fields.integer("max_position_embeddings"), fields.integer("vocab_size")
    bos = fields.ids("bos_token_id", vocab)
    spec = ModelSpec(
        architecture=architecture,
        num_layers=fields.integer("num_hidden_layers", maximum=MAX_LAYERS),
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size"),
        num_heads=heads,
        num_kv_heads=fields.integer("num_key_value_heads", heads),
        head_dim=head_dim,
        vocab_size=vocab,
        rms_norm_eps=fields.number("rms_norm_eps"),
        rope=(rope := rope_from_hf(fields, head_dim, positions)),
        max_position_embeddings=stretched_positions(rope, positions),
        tied_embeddings=fields.boolean("tie_word_embeddings", False),
        qk_norm=architecture == "qwen3",
        attention_bias=architecture == "qwen2",
        bos_token_id=bos[0] if bos else None,
        eos_token_ids=fields.ids("eos_token_id", vocab),
    )
    return _checked(spec, fields, origin, f"{name}; supported are {SUPPORTED}")


def from_gguf(
    metadata: Mapping[str, object],
    tied_embeddings: bool,
    frequency_factors: tuple[float, ...] = (),
    origin: str = "GGUF metadata",
) -> ModelSpec:
    """Spec of a GGUF file's metadata. GGUF says only through its tensors whether the head is tied (no output.weight)
    and how Llama 3 stretches its frequencies (rope_freqs.weight, one divisor per feature pair): the caller passes both.

    Raises CheckpointError that lists everything missing, nonsensical or unsupported.
    """
    fields = Fields(metadata)
    architecture = metadata.get("general.architecture")
    if architecture not in HF_ARCHITECTURES.values():
        known = ", ".join(HF_ARCHITECTURES.values())
        raise CheckpointError(f"{origin}: general.architecture = {shown(architecture)} is not supported; use a model of {known}")
    arch = cast(Architecture, architecture)
    fields.refuse("split.count", (0, 1), "split GGUF files are not supported; merge them with llama-gguf-split")
    fields.refuse(f"{arch}.attention.sliding_window", (0,), "sliding-window attention is not supported")
    fields.refuse(f"{arch}.expert_count", (0,), "mixtures of experts are not supported")
    heads, hidden = fields.integer(f"{arch}.attention.head_count"), fields.integer(f"{arch}.embedding_length")
    head_dim = fields.integer(f"{arch}.attention.key_length", _per_head(fields, hidden, heads))
    fields.refuse(f"{arch}.attention.value_length", (head_dim,), f"must equal the key length {head_dim}")
    fields.refuse(f"{arch}.rope.dimension_count", (head_dim,), f"partial rotation; must be the head size {head_dim}")
    tokens = metadata.get("tokenizer.ggml.tokens")
    vocab = fields.integer(f"{arch}.vocab_size", len(tokens) if isinstance(tokens, list) else None)
    positions = fields.integer(f"{arch}.context_length")
    bos = fields.ids("tokenizer.ggml.bos_token_id", vocab)
    ends = [fields.ids(f"tokenizer.ggml.{kind}_token_id", vocab) for kind in ("eos", "eot", "eom")]
    spec = ModelSpec(
        architecture=arch,
        num_layers=fields.integer(f"{arch}.block_count", maximum=MAX_LAYERS),
        hidden_size=hidden,
        intermediate_size=fields.integer(f"{arch}.feed_forward_length"),
        num_heads=heads,
        num_kv_heads=fields.integer(f"{arch}.attention.head_count_kv", heads),
        head_dim=head_dim,
        vocab_size=vocab,
        rms_norm_eps=fields.number(f"{arch}.attention.layer_norm_rms_epsilon"),
        rope=(rope := rope_from_gguf(fields, arch, head_dim, positions, frequency_factors)),
        max_position_embeddings=stretched_positions(rope, positions),
        tied_embeddings=tied_embeddings,
        qk_norm=arch == "qwen3",
        attention_bias=arch == "qwen2",
        bos_token_id=bos[0] if bos else None,
        eos_token_ids=tuple(dict.fromkeys(token for kind in ends for token in kind)),
    )
    return _checked(spec, fields, origin, f"{arch}; supported are {SUPPORTED}")


def _hf_architecture(config: Mapping[str, object], origin: str) -> str:
    listed = config.get("architectures")
    if isinstance(listed, list) and len(listed) == 1 and isinstance(listed[0], str) and listed[0] in HF_ARCHITECTURES:
        return listed[0]
    drafter = isinstance(listed, list) and any(str(name).startswith("DFlash") for name in listed)
    remedy = "a drafter belongs into speculator.draft_source" if drafter else f"use a model of {', '.join(HF_ARCHITECTURES)}"
    raise CheckpointError(f"{origin}: architectures = {shown(listed)} is not supported; {remedy}")


def _per_head(fields: Fields, hidden: int, heads: int) -> int | None:
    """hidden / heads, or None (then the head size must be given) where it does not divide."""
    return hidden // heads if hidden % heads == 0 and not fields.problems else None


def _checked(spec: ModelSpec, fields: Fields, origin: str, about: str) -> ModelSpec:
    problems = list(fields.problems)
    if not problems:  # relations between fields mean something only once every field does
        if spec.num_heads % spec.num_kv_heads:
            problems.append(f"{spec.num_heads} attention heads are no multiple of {spec.num_kv_heads} key/value heads")
        if spec.head_dim % 2:
            problems.append(f"head size = {spec.head_dim}: must be even")
    if problems:
        raise CheckpointError.listing(f"{origin} ({about}) cannot be used; use another checkpoint, or mend the file", problems)
    return spec
