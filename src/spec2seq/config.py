"""What a model is: frozen, validated. Imports no torch, so that --help stays fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Activation = Literal["relu", "gelu", "gelu_new", "silu"]
Positions = Literal["learned", "sinusoidal", "fairseq_sinusoidal", "relative"]


@dataclass(frozen=True)
class ModelConfig:
    """Everything that tells one encoder-decoder from another. One per checkpoint, made by `weights`.

    Attributes:
        family: name in the registry of `weights`, transformers' model_type ("marian", "m2m_100", ...).
        source_vocab_size, target_vocab_size: rows of the two embeddings.
        d_model, encoder_ffn_dim, decoder_ffn_dim: widths.
        encoder_heads, decoder_heads, head_dim, encoder_head_dim: heads and their width; heads * head_dim may differ
            from d_model (T5). The encoder's heads are as wide as the decoder's unless `encoder_head_dim` is given.
        is_pre_norm: layer norm before each sublayer (and `has_final_norm` after the stack).
        has_embedding_norm: layer norm right after the embeddings (BART, mBART).
        norm: "layer" (mean and variance, bias) or "rms" (T5, computed in fp32).
        is_gated_ffn: two input projections multiplied (T5 v1.1).
        has_bias: whether linear layers have biases.
        embedding_scale: factor of the token embeddings.
        output_scale: factor of the decoder states before the output projection (T5).
        is_attention_scaled: whether query . key is divided by the square root of the head width (not in T5).
        positions: "relative" is T5's bias; the others are tables read at position + position_offset: learned, or sines
            and cosines by the formula of the original Transformer ("sinusoidal") or by fairseq's. With fairseq's a
            padding token takes the table's row of zeros and, in the source, no position.
        max_source_positions, max_target_positions: how long either side may be; None means no limit.
        shares_vocabulary: source and target ids mean the same tokens.
        shares_embeddings: source and target read the same embedding.
        ties_output: the output projection is the target embedding.
        has_output_bias: final_logits_bias.
        relative_buckets, relative_max_distance: of T5's relative positions.
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
    encoder_head_dim: int | None = None
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
    is_attention_scaled: bool = True
    relative_buckets: int = 32
    relative_max_distance: int = 128
    shares_vocabulary: bool = True
    shares_embeddings: bool = True
    ties_output: bool = True
    has_output_bias: bool = False
