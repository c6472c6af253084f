"""The smallest configuration that is still a model's."""

from __future__ import annotations

from spec2seq.config import ModelConfig


def tiny_config(
    *,
    vocab_size: int = 50,
    max_positions: int | None = 128,
    shares_vocabulary: bool = True,
    pad_token_id: int = 1,
    decoder_start_token_id: int = 2,
    eos_token_ids: tuple[int, ...] = (2,),
) -> ModelConfig:
    """A valid configuration of two layers and width 16, with BART's special tokens unless told otherwise."""
    return ModelConfig(
        family="bart",
        source_vocab_size=vocab_size,
        target_vocab_size=vocab_size,
        d_model=16,
        encoder_layers=2,
        decoder_layers=2,
        encoder_heads=2,
        decoder_heads=2,
        head_dim=8,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        activation="gelu",
        positions="learned",
        pad_token_id=pad_token_id,
        decoder_start_token_id=decoder_start_token_id,
        eos_token_ids=eos_token_ids,
        max_source_positions=max_positions,
        max_target_positions=max_positions,
        shares_vocabulary=shares_vocabulary,
    )
