"""The embeddings of a checkpoint: which of them are one, whatever names and copies the file holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from spec2seq.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from spec2seq.config import ModelConfig
    from spec2seq.nn.seq2seq import Seq2Seq
    from spec2seq.weights.tensors import Read

SHARED, SOURCE, TARGET = "shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"
OUTPUT = "lm_head.weight"


@dataclass(frozen=True)
class Embeddings:
    """Source and target embeddings and the output projection [V, D] as stored.

    Attributes:
        names: the stored tensors that are accounted for here.
        are_shared: source and target are the same.
        is_output_tied: output and target are the same.
    """

    source: Tensor
    target: Tensor
    output: Tensor
    names: frozenset[str]
    are_shared: bool
    is_output_tied: bool

    @classmethod
    def find(
        cls, stored: Mapping[str, Read], config: ModelConfig, folder: Path | str, *, is_live: bool = False
    ) -> Embeddings:
        """Tell from the stored tensors what is tied: files keep any one of several equal tensors, or all.

        Args:
            stored: the tensors.
            config: of the model.
            folder: what messages call their home.
            is_live: tied are only tensors that are one in memory; equal ones may part later.

        Raises:
            CheckpointError: one is missing, has the wrong shape, or is a copy of nothing.
        """
        names = [name for name in (SHARED, SOURCE, TARGET, OUTPUT) if name in stored]
        tensors = {name: stored[name]() for name in names}
        others = (SHARED, SOURCE, TARGET, OUTPUT) if config.shares_vocabulary else ()
        source = _first(tensors, (SOURCE, *others), folder)
        target = _first(tensors, (TARGET, *others, OUTPUT), folder)
        is_output_free = not config.ties_output and OUTPUT not in tensors
        if is_output_free:
            raise CheckpointError(f"the weights in {folder} lack {OUTPUT}, and config.json says that it is not tied")
        output = tensors.get(OUTPUT, target)
        is_one = _same_memory if is_live else _equal
        found = cls(source, target, output, frozenset(names), is_one(source, target), is_one(output, target))
        found._check(tensors, config, folder)
        return found

    def _check(self, tensors: dict[str, Tensor], config: ModelConfig, folder: Path | str) -> None:
        if SHARED in tensors and not any(_equal(tensors[SHARED], x) for x in (self.source, self.target)):
            raise CheckpointError(
                f"{SHARED} in {folder} equals neither {SOURCE} nor {TARGET}: the file is damaged or of another model"
            )
        sizes = (config.source_vocab_size, config.target_vocab_size, config.target_vocab_size)
        for tensor, size in zip((self.source, self.target, self.output), sizes, strict=True):
            if list(tensor.shape) != [size, config.d_model]:
                raise CheckpointError(
                    f"an embedding in {folder} has shape {list(tensor.shape)}, but config.json asks for "
                    f"{[size, config.d_model]}: the files do not belong together"
                )

    def lend(self, network: Seq2Seq) -> None:
        """Let a network whose configuration says what is tied have these very tensors."""
        network.decoder.embedding.tokens.data = self.target
        network.encoder.embedding.tokens.data = self.source
        network.output_weight.data = self.output

    def fill(self, network: Seq2Seq) -> None:
        """Copy them into a network whose configuration says what is tied."""
        network.decoder.embedding.tokens.data.copy_(self.target)
        if not self.are_shared:
            network.encoder.embedding.tokens.data.copy_(self.source)
        if not self.is_output_tied:
            network.output_weight.data.copy_(self.output)


def _first(tensors: dict[str, Tensor], names: tuple[str, ...], folder: Path | str) -> Tensor:
    for name in names:
        if name in tensors:
            return tensors[name]
    raise CheckpointError(f"the weights in {folder} lack {names[0]}: the file is incomplete or of another model")


def _same_memory(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.data_ptr() == other.data_ptr()


def _equal(one: Tensor, other: Tensor) -> bool:
    return one is other or (one.shape == other.shape and bool(torch.equal(one, other)))
