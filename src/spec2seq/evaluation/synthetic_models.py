"""Model folders with random weights, complete enough for every peer to load them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from pathlib import Path

    from spec2seq.evaluation.benchmark.sizes import SyntheticSize

_MAX_POSITIONS = 512


def write_random_model(size: SyntheticSize, folder: Path, seed: int = 0) -> None:
    """A folder in Hugging Face's layout, with weights in bf16 and a tokenizer whose words mean nothing."""
    torch.manual_seed(seed)
    model = _marian(size) if size.family == "marian" else _m2m100(size)
    model.generation_config.forced_bos_token_id = size.forced_first
    model.to(torch.bfloat16).save_pretrained(folder)
    _tokenizer(size).save_pretrained(folder)


def _sizes(size: SyntheticSize) -> dict[str, Any]:
    return {
        "vocab_size": size.vocab_size,
        "d_model": size.d_model,
        "encoder_layers": size.num_layers,
        "decoder_layers": size.num_layers,
        "encoder_attention_heads": size.num_heads,
        "decoder_attention_heads": size.num_heads,
        "encoder_ffn_dim": size.ffn_dim,
        "decoder_ffn_dim": size.ffn_dim,
        "max_position_embeddings": _MAX_POSITIONS,
        "scale_embedding": True,
    }


def _marian(size: SyntheticSize) -> Any:
    from transformers import MarianConfig, MarianMTModel

    pad = size.vocab_size - 1
    ids: dict[str, Any] = {"pad_token_id": pad, "decoder_start_token_id": pad, "eos_token_id": 0, "bos_token_id": None}
    config = MarianConfig(**_sizes(size), **ids, forced_eos_token_id=None, activation_function="silu")
    return MarianMTModel(config)


def _m2m100(size: SyntheticSize) -> Any:
    from transformers import M2M100Config, M2M100ForConditionalGeneration

    ids: dict[str, Any] = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    return M2M100ForConditionalGeneration(M2M100Config(**_sizes(size), **ids, activation_function="relu"))


def _tokenizer(size: SyntheticSize) -> Any:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = [f"w{i}" for i in range(size.vocab_size)]
    if size.family == "marian":
        words[0], words[1], words[-1] = "</s>", "<unk>", "<pad>"
    else:
        words[:4] = ["<s>", "<pad>", "</s>", "<unk>"]
    vocabulary = {word: i for i, word in enumerate(words)}
    model = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    special = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    if size.family != "marian":
        special["bos_token"] = "<s>"
    make: Any = PreTrainedTokenizerFast
    return make(tokenizer_object=model, **special)


def random_sources(size: SyntheticSize, num_texts: int, length: int, seed: int = 1) -> list[list[int]]:
    """Ids of texts that mean nothing, each with an end of sequence."""
    generator = torch.Generator().manual_seed(seed)
    eos = 0 if size.family == "marian" else 2
    ids = torch.randint(4, size.vocab_size - 1, (num_texts, length - 1), generator=generator)
    return [[*row, eos] for row in ids.tolist()]
