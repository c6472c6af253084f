"""The verifier on PyTorch, on a CPU or a GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Self, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from spec2seq.errors import InputError
from spec2seq.nn.kv_cache import KeyValueCache
from spec2seq.nn.masks import length_mask
from spec2seq.nn.rows import RowMove, has_much_free, move_rows
from spec2seq.types import DecoderOutput, TensorScores

if TYPE_CHECKING:
    from spec2seq.interfaces import Cache, EncoderOutput
    from spec2seq.nn.seq2seq import Seq2Seq
    from spec2seq.types import SourceBatch, Wanted


@dataclass
class TorchEncoderOutput:
    """Encoded sources.

    Attributes:
        hidden: [B, S, D] encoder states; those of padding are finite and mean nothing.
        lengths: [B].
        cross: [L, 2, B, H, S, d] keys and values of every decoder layer.
        mask: [B, 1, 1, S] added to cross-attention scores; None when no source is padded.
        capacity: rows that the memory behind `cross` holds.
    """

    hidden: Tensor
    lengths: Tensor
    cross: Tensor
    mask: Tensor | None
    capacity: int

    @classmethod
    def of(cls, hidden: Tensor, lengths: Tensor, cross: Tensor) -> Self:
        """From the tensors of a batch, with the mask that its lengths make."""
        mask = length_mask(lengths, hidden.shape[1], hidden.dtype)
        return cls(hidden, lengths, cross, mask, len(lengths))

    @cached_property
    def layers(self) -> list[tuple[Tensor, Tensor]]:
        """Keys and values [B, H, S, d] of every layer."""
        return list(zip(self.cross[:, 0].unbind(0), self.cross[:, 1].unbind(0), strict=True))

    def select_rows(self, rows: Tensor) -> TorchEncoderOutput:
        """The rows `rows` [B'] in that order; may repeat rows. The memory of `cross` is reused: drop the old object."""
        move = RowMove.plan(rows)
        # Only the keys and values are big; the rest may be the caller's own and is not written to.
        hidden, lengths = self.hidden.index_select(0, rows), self.lengths.index_select(0, rows)
        if not move.is_in_place:
            return self.of(hidden, lengths, self.cross.index_select(2, rows))
        move_rows(self.cross, move, dim=2)
        cross = self.cross[:, :, : move.num_rows]
        if has_much_free(move.num_rows, self.capacity):
            # the longest source may have left as well
            width = int(lengths.max()) if len(lengths) else 0
            return self.of(hidden[:, :width], lengths, cross[..., :width, :].clone())
        return replace(self.of(hidden, lengths, cross), capacity=self.capacity)

    def concat(self, other: TorchEncoderOutput) -> TorchEncoderOutput:
        """Both batches, self first; the shorter sources are padded."""
        width = max(self.hidden.shape[1], other.hidden.shape[1])
        parts = [
            (F.pad(part.hidden, (0, 0, 0, width - part.hidden.shape[1])), part.lengths, part._padded(width))
            for part in (self, other)
        ]
        hidden, lengths, cross = zip(*parts, strict=True)
        return self.of(torch.cat(hidden), torch.cat(lengths), torch.cat(cross, dim=2))

    def _padded(self, width: int) -> Tensor:
        return F.pad(self.cross, (0, 0, 0, width - self.cross.shape[4]))


class TorchVerifier:
    """`Verifier` over a `Seq2Seq` network. Call it under `torch.inference_mode`.

    Attributes:
        network, config, device, dtype: what it runs, and where.
    """

    def __init__(self, network: Seq2Seq, device: torch.device | str = "cpu") -> None:
        """Moves `network` to `device`."""
        self.device = torch.device(device)
        self.network = network.to(self.device).eval()
        self.config = network.config
        self.dtype = network.dtype

    def encode(self, source: SourceBatch) -> TorchEncoderOutput:
        """Run the encoder, then `from_encoder`.

        Raises:
            InputError: a source is empty or longer than the model's positions.
        """
        ids, lengths = source.ids.to(self.device), source.lengths.to(self.device)
        shortest, longest = (int(length) for length in lengths.aminmax())
        limit = self.config.max_source_positions
        if limit is not None and longest > limit:
            raise InputError(
                f"a source of {longest} tokens is longer than the {limit} positions of this {self.config.family} "
                "model; split or truncate it"
            )
        if shortest < 1:
            raise InputError("a source has 0 tokens; leave empty sources out")
        return self.from_encoder(self.network.encode(ids[:, :longest], lengths), lengths)

    def from_encoder(self, hidden: Tensor, lengths: Tensor) -> TorchEncoderOutput:
        """Make the cross-attention keys and values of encoder states hidden [B, S, D], lengths [B]."""
        hidden, lengths = hidden.to(self.device, self.dtype), lengths.to(self.device)
        return TorchEncoderOutput.of(hidden, lengths, self.network.cross_keys_values(hidden))

    def new_cache(self, num_rows: int) -> KeyValueCache:
        """An empty cache."""
        return KeyValueCache(self.config, num_rows, self.dtype, self.device)

    def decode(
        self,
        tokens: Tensor,
        positions: Tensor,
        lengths: Tensor,
        cache: Cache,
        encoded: EncoderOutput,
        wanted: Wanted,
        *,
        queries: Tensor | None = None,
        slots: Tensor | None = None,
        visible: Tensor | None = None,
    ) -> DecoderOutput:
        """See `interfaces.Verifier.decode`; `cache` and `encoded` must be this engine's own."""
        own_cache, source = cast("KeyValueCache", cache), cast("TorchEncoderOutput", encoded)
        states = self.network.decode(
            tokens, positions, lengths, own_cache, source.layers, source.mask, slots=slots, visible=visible
        )
        final = states[-1]
        if queries is not None:
            final = final.gather(1, queries[..., None].expand(-1, -1, final.shape[2]))
        logits = self.network.project(final, wanted.banned).float()
        if not wanted.hidden_layers:
            return DecoderOutput(TensorScores(logits))
        hidden = torch.stack([states[layer].to(self.dtype) for layer in wanted.hidden_layers], dim=2)
        return DecoderOutput(TensorScores(logits), hidden)
