"""BART, and the layout of settings and tensors that Marian, mBART, Pegasus and M2M100 share with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spec2seq.config import ModelConfig
from spec2seq.errors import CheckpointError
from spec2seq.weights.family import Family, Slot

if TYPE_CHECKING:
    from spec2seq.weights.settings import Settings


def read_config(settings: Settings) -> ModelConfig:
    """BART's own: layer norms last, learned positions with an offset of 2, a norm after the embeddings."""
    d_model = settings.integer("d_model", 1024)
    max_positions = settings.integer("max_position_embeddings", 1024)
    vocab_size = settings.integer("vocab_size", 50265)
    encoder_heads = settings.integer("encoder_attention_heads", 16)
    decoder_heads = settings.integer("decoder_attention_heads", 16)
    return ModelConfig(
        family=settings.family,
        source_vocab_size=vocab_size,
        target_vocab_size=vocab_size,
        d_model=d_model,
        encoder_layers=settings.integer("encoder_layers", 12),
        decoder_layers=settings.integer("decoder_layers", 12),
        encoder_heads=encoder_heads,
        decoder_heads=decoder_heads,
        head_dim=_head_dim(d_model, decoder_heads),
        encoder_head_dim=_head_dim(d_model, encoder_heads),
        encoder_ffn_dim=settings.integer("encoder_ffn_dim", 4096),
        decoder_ffn_dim=settings.integer("decoder_ffn_dim", 4096),
        activation=settings.activation(settings.config.get("activation_function", "gelu")),
        positions="learned",
        position_offset=2,
        max_source_positions=max_positions,
        max_target_positions=max_positions,
        pad_token_id=settings.integer("pad_token_id", 1),
        decoder_start_token_id=settings.decoder_start(default=2),
        eos_token_ids=settings.ends(2),
        has_embedding_norm=True,
        embedding_scale=d_model**0.5 if settings.flag("scale_embedding", False) else 1.0,
        ties_output=settings.flag("tie_word_embeddings", True),
        has_output_bias=True,
    )


def _head_dim(d_model: int, num_heads: int) -> int:
    if num_heads < 1 or d_model % num_heads:
        raise CheckpointError(
            f"config.json: d_model={d_model} cannot be split into {num_heads} heads; restore the file"
        )
    return d_model // num_heads


def slots(config: ModelConfig) -> dict[str, Slot]:
    """Where the tensors of this layout go; embeddings, which may be tied in several ways, are not among them."""
    places: dict[str, Slot] = {}
    for side, num_layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        for layer in range(num_layers):
            places |= _layer_slots(side, layer, config.decoder_layers)
        if config.positions == "learned":
            places[f"{side}.embed_positions.weight"] = Slot(f"{side}.embedding.positions")
        if config.has_embedding_norm:
            places |= _both(f"{side}.layernorm_embedding", f"{side}.embedding.norm.")
        if config.has_final_norm:
            places |= _both(f"{side}.layer_norm", f"{side}.final_norm.")
    if config.has_output_bias:
        places["final_logits_bias"] = Slot("output_bias")
    return places


def _layer_slots(side: str, layer: int, num_decoder_layers: int) -> dict[str, Slot]:
    prefix = f"{side}.layers.{layer}."
    places = {
        **_both(f"{prefix}self_attn.q_proj", f"{prefix}attention.qkv_", 0, 3),
        **_both(f"{prefix}self_attn.k_proj", f"{prefix}attention.qkv_", 1, 3),
        **_both(f"{prefix}self_attn.v_proj", f"{prefix}attention.qkv_", 2, 3),
        **_both(f"{prefix}self_attn.out_proj", f"{prefix}attention.output_"),
        **_both(f"{prefix}self_attn_layer_norm", f"{prefix}attention.norm."),
        **_both(f"{prefix}fc1", f"{prefix}ffn.input_"),
        **_both(f"{prefix}fc2", f"{prefix}ffn.output_"),
        **_both(f"{prefix}final_layer_norm", f"{prefix}ffn.norm."),
    }
    if side == "decoder":
        parts = 2 * num_decoder_layers
        places |= {
            **_both(f"{prefix}encoder_attn.q_proj", f"{prefix}cross_attention.query_"),
            **_both(f"{prefix}encoder_attn.k_proj", "cross.", 2 * layer, parts),
            **_both(f"{prefix}encoder_attn.v_proj", "cross.", 2 * layer + 1, parts),
            **_both(f"{prefix}encoder_attn.out_proj", f"{prefix}cross_attention.output_"),
            **_both(f"{prefix}encoder_attn_layer_norm", f"{prefix}cross_attention.norm."),
        }
    return places


def _both(stored: str, parameter: str, part: int = 0, parts: int = 1) -> dict[str, Slot]:
    return {f"{stored}.{kind}": Slot(parameter + kind, part, parts) for kind in ("weight", "bias")}


FAMILY = Family(
    read_config,
    slots,
    ignored={
        "encoder.version": "a marker of fairseq's file format",
        "decoder.version": "a marker of fairseq's file format",
    },
)
