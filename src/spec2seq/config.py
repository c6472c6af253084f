"""Frozen, validated settings: what a model is, and what a call asks for. Imports no torch, so that --help stays fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Activation = Literal["relu", "gelu", "gelu_new", "silu"]
Positions = Literal["learned", "sinusoidal", "relative"]


@dataclass(frozen=True)
class ModelConfig:
    """Everything that tells one encoder-decoder from another. One per checkpoint, made by `weights`.

    Attributes:
        family: name in the registry of `weights`, for messages ("marian", "t5", ...).
        source_vocab_size, target_vocab_size: rows of the two embeddings.
        d_model, head_dim, num_heads, encoder_ffn_dim, decoder_ffn_dim: widths. num_heads * head_dim may differ from
            d_model (T5). encoder_heads and decoder_heads may differ from each other.
        is_pre_norm: layer norm before each sublayer (and `has_final_norm` after the stack).
        has_embedding_norm: layer norm right after the embeddings (BART, mBART).
        norm: "layer" (mean and variance, bias) or "rms" (T5, computed in fp32).
        is_gated_ffn: two input projections multiplied (T5 v1.1).
        has_bias: whether linear layers have biases.
        embedding_scale: factor of the token embeddings.
        output_scale: factor of the decoder states before the output projection (T5).
        attention_scale: factor of query . key.
        positions: "learned" and "sinusoidal" are tables read at position + position_offset; "relative" is T5's bias.
        max_source_positions, max_target_positions: how long either side may be; None means no limit.
        pads_take_no_position: pad tokens read row pad_token_id of the table (M2M100).
        shares_vocabulary: source and target ids mean the same tokens.
        ties_output: the output projection is the target embedding.
        has_output_bias: final_logits_bias.
    """

    family: str
    source_vocab_size: int
    target_vocab_size: int
    d_model: int
    encoder_layers: int
    decoder_layers: int
    encoder_heads: int
    decoder_heads: int
    head_dim: int
    encoder_ffn_dim: int
    decoder_ffn_dim: int
    activation: Activation
    positions: Positions
    pad_token_id: int
    decoder_start_token_id: int
    eos_token_ids: tuple[int, ...]
    max_source_positions: int | None = None
    max_target_positions: int | None = None
    position_offset: int = 0
    is_pre_norm: bool = False
    has_final_norm: bool = False
    has_embedding_norm: bool = False
    norm: Literal["layer", "rms"] = "layer"
    norm_eps: float = 1e-5
    is_gated_ffn: bool = False
    has_bias: bool = True
    embedding_scale: float = 1.0
    output_scale: float = 1.0
    attention_scale: float = 1.0
    pads_take_no_position: bool = False
    relative_buckets: int = 32
    relative_max_distance: int = 128
    shares_vocabulary: bool = True
    ties_output: bool = True
    has_output_bias: bool = False
