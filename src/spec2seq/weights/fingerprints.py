"""Short digests that tell whether two models have the same vocabulary and the same weights."""

from __future__ import annotations

import hashlib
import json
import warnings
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import torch

from spec2seq.errors import CheckpointError, DrafterMismatchError
from spec2seq.weights.tensors import open_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from spec2seq.config import ModelConfig
    from spec2seq.weights.tensors import Read

_JSON_FILES = ("vocab.json", "target_vocab.json", "tokenizer.json")
_BYTE_FILES = (
    "source.spm",
    "target.spm",
    "spiece.model",
    "sentencepiece.bpe.model",
    "source.dict.txt",
    "target.dict.txt",
)
VOCABULARY_FILES = (*_JSON_FILES, *_BYTE_FILES)
_SAMPLE = 16  # numbers at either end of each tensor that the digest of weights looks at


@dataclass(frozen=True)
class VerifierFingerprint:
    """What a drafter remembers of the model it was made for.

    Attributes:
        source_vocab_size, target_vocab_size, pad_token_id, decoder_start_token_id, eos_token_ids: as in ModelConfig.
        files: digest of every vocabulary file by name; what a file means, not how it is formatted.
        weights: digest of the weights, the same for fp32 and bf16 copies.
    """

    source_vocab_size: int
    target_vocab_size: int
    pad_token_id: int
    decoder_start_token_id: int
    eos_token_ids: tuple[int, ...]
    files: dict[str, str]
    weights: str

    @classmethod
    def of(cls, folder: Path, config: ModelConfig, tensors: Mapping[str, Read] | None = None) -> VerifierFingerprint:
        """Of a model folder, or of the vocabulary there and other weights.

        Raises:
            CheckpointError: a vocabulary or weight file is damaged.
        """
        digests = {name: file_fingerprint(folder / name) for name in VOCABULARY_FILES}
        return cls(
            config.source_vocab_size,
            config.target_vocab_size,
            config.pad_token_id,
            config.decoder_start_token_id,
            config.eos_token_ids,
            {name: digest for name, digest in digests.items() if digest},
            weights_fingerprint(folder, tensors),
        )

    @property
    def vocabulary(self) -> str:
        """One digest of everything but the weights."""
        values = {name: value for name, value in asdict(self).items() if name != "weights"}
        return _digest(json.dumps(values, sort_keys=True).encode())

    def difference(self, other: VerifierFingerprint) -> str | None:
        """What tells the two vocabularies apart, in words; None where they are the same as far as both can tell."""
        names = ("source_vocab_size", "target_vocab_size", "pad_token_id", "decoder_start_token_id", "eos_token_ids")
        for name in names:
            mine, its = getattr(self, name), getattr(other, name)
            if mine != its:
                return f"{name} is {mine} in the drafter's card and {its} in the model"
        differing = [name for name in self.files if other.files.get(name, self.files[name]) != self.files[name]]
        return f"{differing[0]} is another file" if differing else None


def check_verifier(drafter: Path, made_for: VerifierFingerprint, verifier: Path, found: VerifierFingerprint) -> None:
    """Compare the model a drafter was made for with the one it is to draft for.

    Raises:
        DrafterMismatchError: other vocabulary or special ids.

    Warns:
        UserWarning: the same vocabulary, other weights.
    """
    difference = made_for.difference(found)
    if difference:
        raise DrafterMismatchError(
            f"drafter {drafter} was made for vocabulary {made_for.vocabulary}, but model {verifier} has vocabulary "
            f"{found.vocabulary}: {difference}; use a drafter made for this model"
        )
    if made_for.weights != found.weights:
        warnings.warn(
            f"drafter {drafter} was made for weights {made_for.weights}, but model {verifier} has weights "
            f"{found.weights}: outputs stay exact, fewer draft tokens may be accepted",
            stacklevel=2,
        )


def file_fingerprint(file: Path) -> str | None:
    """Of the token ids in a vocabulary file, however it is formatted; None where there is no such file.

    Raises:
        CheckpointError: the file is not complete.
    """
    if not file.is_file():
        return None
    content = file.read_bytes()
    if file.name in _JSON_FILES:
        try:
            vocabulary = json.loads(content)
            if file.name == "tokenizer.json":
                vocabulary = vocabulary["model"]["vocab"], vocabulary.get("added_tokens")
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{file} is not a complete vocabulary: copy or download it again") from error
        content = json.dumps(vocabulary, sort_keys=True).encode()
    return _digest(content)


def weights_fingerprint(folder: Path, tensors: Mapping[str, Read] | None = None) -> str:
    """Of the weights inside the layers of a model folder, or of given ones, from a few numbers of each tensor as bf16.

    Training changes every number; what is tied, or computed and stored as well, differs between file formats and is
    left out.
    """
    digest = hashlib.sha256()
    stored = open_tensors(folder) if tensors is None else tensors
    stored = {name.removeprefix("model."): read for name, read in stored.items()}
    for name in sorted(name for name in stored if ".layers." in name or ".block." in name):
        values = stored[name]().flatten()
        sample = torch.cat([values[:_SAMPLE], values[-_SAMPLE:]]).to(torch.bfloat16)
        digest.update(f"{name} {len(values)} ".encode() + sample.view(torch.int16).numpy().tobytes())
    return digest.hexdigest()[:12]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]
