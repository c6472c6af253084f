"""Which drafter a pipeline uses, and whether it fits the verifier."""

from __future__ import annotations

import hashlib
import json
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from spec2seq.errors import CheckpointError, DrafterMismatchError, OptionError

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from spec2seq.config import ModelConfig
    from spec2seq.interfaces import Drafter
    from spec2seq.weights import LoadedModel

    # Drafters keep the state of a batch, so that every call gets a new one.
    MakeDrafter = Callable[[], Drafter]

DRAFTER_NAMES = ("prompt_lookup",)
_VOCABULARY_FILES = ("vocab.json", "target_vocab.json", "tokenizer.json")
_PIECE_FILES = ("source.spm", "target.spm", "spiece.model", "sentencepiece.bpe.model")


def choose_drafter(
    drafter: str | Path | None, verifier: LoadedModel, dtype: str, device: torch.device
) -> MakeDrafter | None:
    """What makes this drafter's objects; None for plain search.

    Args:
        drafter: "prompt_lookup", the folder of a smaller encoder-decoder with the same vocabulary, or None.
        verifier: the model that will check its drafts.
        dtype, device: of a small model.

    Raises:
        OptionError: neither a known drafter nor a folder.
        DrafterMismatchError: the folder's model has another vocabulary or other special tokens.
        ModelNotFoundError, CheckpointError, UnsupportedModelError: as when loading any model.
    """
    if drafter is None:
        return None
    if drafter == "prompt_lookup":
        return _prompt_lookup(verifier.config)
    if not Path(drafter).is_dir() and "/" not in str(drafter):
        close = get_close_matches(str(drafter), DRAFTER_NAMES, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"use {', '.join(DRAFTER_NAMES)}, or the folder of a model"
        raise OptionError(f"drafter={str(drafter)!r} is neither a known drafter nor a folder; {hint}")
    return _small_model(drafter, verifier, dtype, device)


def _prompt_lookup(config: ModelConfig) -> MakeDrafter:
    from spec2seq.drafters.prompt_lookup import PromptLookupDrafter

    return lambda: PromptLookupDrafter(config)


def _small_model(folder: str | Path, verifier: LoadedModel, dtype: str, device: torch.device) -> MakeDrafter:
    from spec2seq.backends.torch_engine import TorchVerifier
    from spec2seq.drafters.small_model import SmallModelDrafter
    from spec2seq.weights import load_model

    model = load_model(str(folder), dtype=dtype)
    check_vocabulary(model, verifier)
    engine = TorchVerifier(model.network, device)
    return lambda: SmallModelDrafter(engine)


def check_vocabulary(drafter: LoadedModel, verifier: LoadedModel) -> None:
    """Raises DrafterMismatchError unless both models mean the same by every id."""
    for name in ("source_vocab_size", "target_vocab_size", "pad_token_id", "eos_token_ids"):
        mine, its = getattr(drafter.config, name), getattr(verifier.config, name)
        if mine != its:
            raise _mismatch(drafter, verifier, f"{name} is {mine} in the drafter and {its} in the model")
    for file in (*_VOCABULARY_FILES, *_PIECE_FILES):
        mine, its = _fingerprint(Path(drafter.path) / file), _fingerprint(Path(verifier.path) / file)
        if mine and its and mine != its:
            raise _mismatch(drafter, verifier, f"{file} has fingerprint {mine} in the drafter and {its} in the model")


def _mismatch(drafter: LoadedModel, verifier: LoadedModel, difference: str) -> DrafterMismatchError:
    return DrafterMismatchError(
        f"drafter {drafter.path} does not fit model {verifier.path}: {difference}; "
        "use a drafter made with this model's tokenizer"
    )


def _fingerprint(file: Path) -> str | None:
    """Of the token ids in a vocabulary file, however it is formatted; None where there is no such file."""
    if not file.is_file():
        return None
    content = file.read_bytes()
    if file.name in _VOCABULARY_FILES:
        try:
            vocabulary = json.loads(content)
            if file.name == "tokenizer.json":
                vocabulary = vocabulary["model"]["vocab"], vocabulary.get("added_tokens")
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{file} is not a complete vocabulary: copy or download it again") from error
        content = json.dumps(vocabulary, sort_keys=True).encode()
    return hashlib.sha256(content).hexdigest()[:12]
