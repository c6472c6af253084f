"""Tiny Hugging Face models of every supported family, with random weights none of which is trivial.

Two layers, width 16, 50 ids, 128 positions: big enough to go wrong in every way, small enough for thousands of calls.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

# transformers is imported by name inside `tiny_hf_model`: it costs a second, and not every test needs it

SOURCE_LANGUAGE_ID = 44
TARGET_LANGUAGE_ID = 45

_WIDTHS = {
    "vocab_size": 50,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 128,
    "dropout": 0.0,
}
_T5_WIDTHS = {
    "vocab_size": 50,
    "d_model": 16,
    "d_kv": 6,
    "num_heads": 3,
    "d_ff": 24,
    "num_layers": 2,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 16,
    "dropout_rate": 0.0,
}
_MARIAN = {"eos_token_id": 0, "pad_token_id": 49, "decoder_start_token_id": 49, "bos_token_id": None}
_FAIRSEQ = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
_T5 = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}


@dataclass(frozen=True)
class Family:
    """How a checkpoint of one family looks: its classes, its config, and what its generation_config usually says."""

    config_class: str
    model_class: str
    config: dict[str, Any]
    generation: dict[str, Any] = field(default_factory=dict)
    has_untied_output: bool = False


_FAMILIES = {
    "marian": Family(
        "MarianConfig",
        "MarianMTModel",
        {**_WIDTHS, **_MARIAN, "decoder_vocab_size": 50, "activation_function": "silu", "scale_embedding": True},
        {
            "bad_words_ids": [[49]],
            "forced_eos_token_id": 0,
            "num_beams": 4,
            "renormalize_logits": True,
            "max_length": 40,
        },
    ),
    "marian_separate": Family(
        "MarianConfig",
        "MarianMTModel",
        {
            **_WIDTHS,
            **_MARIAN,
            "vocab_size": 53,
            "decoder_vocab_size": 50,
            "activation_function": "relu",
            "scale_embedding": True,
            "share_encoder_decoder_embeddings": False,
        },
        {"bad_words_ids": [[49]], "forced_eos_token_id": 0, "num_beams": 6, "max_length": 40},
    ),
    "bart": Family(
        "BartConfig",
        "BartForConditionalGeneration",
        {**_WIDTHS, **_FAIRSEQ, "decoder_start_token_id": 2, "forced_eos_token_id": 2, "activation_function": "gelu"},
        {
            "forced_bos_token_id": 0,
            "forced_eos_token_id": 2,
            "num_beams": 4,
            "min_length": 6,
            "max_length": 24,
            "length_penalty": 2.0,
            "no_repeat_ngram_size": 3,
            "early_stopping": True,
        },
    ),
    "mbart_cc25": Family(
        "MBartConfig",
        "MBartForConditionalGeneration",
        {**_WIDTHS, **_FAIRSEQ, "scale_embedding": True, "activation_function": "gelu"},
        {"forced_eos_token_id": 2, "num_beams": 5, "max_length": 32},
    ),
    "mbart_50": Family(
        "MBartConfig",
        "MBartForConditionalGeneration",
        {**_WIDTHS, **_FAIRSEQ, "decoder_start_token_id": 2, "scale_embedding": True, "activation_function": "relu"},
        {
            "forced_bos_token_id": TARGET_LANGUAGE_ID,
            "forced_eos_token_id": 2,
            "num_beams": 5,
            "max_length": 32,
            "early_stopping": True,
        },
    ),
    "pegasus": Family(
        "PegasusConfig",
        "PegasusForConditionalGeneration",
        {
            **_WIDTHS,
            "pad_token_id": 0,
            "eos_token_id": 1,
            "decoder_start_token_id": 0,
            "scale_embedding": True,
            "activation_function": "relu",
        },
        {"forced_eos_token_id": 1, "num_beams": 8, "length_penalty": 0.6, "max_length": 32},
    ),
    "m2m100": Family(
        "M2M100Config",
        "M2M100ForConditionalGeneration",
        {**_WIDTHS, **_FAIRSEQ, "decoder_start_token_id": 2, "scale_embedding": True, "activation_function": "relu"},
        {"forced_bos_token_id": TARGET_LANGUAGE_ID, "num_beams": 5, "max_length": 32, "early_stopping": True},
    ),
    "nllb": Family(
        "M2M100Config",
        "M2M100ForConditionalGeneration",
        {
            **_WIDTHS,
            **_FAIRSEQ,
            "encoder_layers": 3,
            "decoder_attention_heads": 4,
            "decoder_start_token_id": 2,
            "scale_embedding": True,
            "activation_function": "relu",
        },
        {"forced_bos_token_id": TARGET_LANGUAGE_ID, "max_length": 40},
    ),
    "t5": Family(
        "T5Config",
        "T5ForConditionalGeneration",
        {**_T5_WIDTHS, **_T5, "feed_forward_proj": "relu"},
    ),
    "t5_v1_1": Family(
        "T5Config",
        "T5ForConditionalGeneration",
        {**_T5_WIDTHS, **_T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        has_untied_output=True,
    ),
    "mt5": Family(
        "MT5Config",
        "MT5ForConditionalGeneration",
        {**_T5_WIDTHS, **_T5, "feed_forward_proj": "gated-gelu"},
        has_untied_output=True,
    ),
}

FAMILIES = tuple(_FAMILIES)


def tiny_hf_model(name: str, seed: int = 0, config: dict[str, Any] | None = None) -> Any:
    """A transformers model of family `name` in fp32, in eval mode, with its usual generation_config.

    `config` overrides settings of the family's configuration. mbart_cc25 has no decoder start token: pass
    `decoder_start_token_id=TARGET_LANGUAGE_ID` to generate.
    """
    import transformers

    family = _FAMILIES[name]
    hf_config = getattr(transformers, family.config_class)(**{**family.config, **(config or {})})
    model = getattr(transformers, family.model_class)(hf_config).eval()
    if family.has_untied_output:
        model.lm_head.weight = nn.Parameter(torch.empty_like(model.lm_head.weight))
    _randomize(model, torch.Generator().manual_seed(seed))
    for key, value in family.generation.items():
        setattr(model.generation_config, key, value)
    return model


@torch.no_grad()
def _randomize(model: nn.Module, generator: torch.Generator) -> None:
    """Fill every weight, bias, norm and output bias; fixed position tables stay.

    Plain random weights would say one token for ever, which hides mistakes. What keeps the outputs varied: the last
    decoder norm flips signs (else a tied output repeats its input), embeddings have equal lengths, attention to the
    prefix is sharp and attention to the source weak.
    """
    keys = [key for key, _ in model.named_parameters()]
    stack_norm = next((key for key in keys if re.search(r"decoder\.(final_)?layer_norm\.weight", key)), None)
    last_norm = stack_norm or [key for key in keys if re.search(r"decoder.*final_layer_norm\.weight", key)][-1]
    for key, tensor in [*model.named_parameters(), *model.named_buffers()]:
        is_fixed_table = "embed_positions" in key and not tensor.requires_grad
        if is_fixed_table:
            continue
        noise = torch.randn(tensor.shape, generator=generator)
        if key == last_norm:
            tensor.copy_(2.0 * noise.sign() * (1.0 + 0.2 * noise))
        elif key.endswith("final_logits_bias"):
            tensor.copy_(0.2 * noise)
        elif tensor.dim() == 1:
            tensor.copy_(1.0 + 0.2 * noise if key.endswith("weight") else 0.1 * noise)
        elif "embed_positions" in key or "relative_attention_bias" in key:
            tensor.copy_(noise)
        elif "embed_tokens" in key or "shared" in key or "lm_head" in key:
            tensor.copy_(0.2 * noise / noise.norm(dim=1, keepdim=True) * tensor.shape[1] ** 0.5)
        else:
            tensor.copy_(_gain(key, is_pre_norm=stack_norm is not None) * noise * tensor.shape[1] ** -0.5)


def _gain(key: str, is_pre_norm: bool) -> float:
    is_output = key.endswith(("out_proj.weight", ".o.weight"))
    if is_output:
        is_cross = "encoder_attn" in key or "EncDecAttention" in key
        return 0.3 if is_cross else 4.0 if is_pre_norm else 0.5
    is_query_or_key = key.endswith(("q_proj.weight", "k_proj.weight", ".q.weight", ".k.weight"))
    return 0.7 if not is_query_or_key else 2.0 if is_pre_norm else 8.0
