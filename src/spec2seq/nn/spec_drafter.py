"""The paper's Spec-Drafter: one pass over prefix and masked slots gives every token of a block (section 3.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spec2seq.nn.attention import CrossProjection
from spec2seq.nn.draft_source import EncodedDraftSource
from spec2seq.nn.layers import DecoderLayer
from spec2seq.nn.masks import length_mask
from spec2seq.nn.seq2seq import Encoder
from spec2seq.nn.sublayer import WithDropout, nan_parameter
from spec2seq.types import TensorScores

if TYPE_CHECKING:
    from spec2seq.drafter_config import SpecDrafterConfig
    from spec2seq.interfaces import DraftSource
    from spec2seq.types import Prefix, SourceBatch, Wanted


@dataclass(frozen=True)
class SlottedPrefix:
    """Prefixes without their start token, k masked slots after each.

    Attributes:
        ids: [B, n] tokens; whatever in slots.
        is_slot: [B, n] bool; padding is marked as well.
        lengths: [B] real tokens and slots.
        slots: [B, k] where the slots are.
    """

    ids: Tensor
    is_slot: Tensor
    lengths: Tensor
    slots: Tensor

    @classmethod
    def of(cls, prefix: Prefix, num_slots: int, max_positions: int) -> Self:
        """Lay the slots; a prefix that leaves no room for them within the positions counts as empty."""
        known = prefix.lengths - 1
        known = known.masked_fill(known + num_slots > max_positions, 0)
        width = int(known.max()) + num_slots
        ids = F.pad(prefix.ids[:, 1 : width + 1], (0, max(0, width + 1 - prefix.ids.shape[1])))
        is_slot = torch.arange(width, device=ids.device) >= known[:, None]
        return cls(ids, is_slot, known + num_slots, known[:, None] + torch.arange(num_slots, device=ids.device))


class DraftEmbedding(nn.Module):
    """What the decoder reads: prefix tokens, and in a masked slot a soft copy of the source and a learned vector."""

    def __init__(self, config: SpecDrafterConfig, tokens: nn.Parameter, dtype: torch.dtype) -> None:
        super().__init__()
        model = config.model
        self.tokens = tokens
        self.scale = model.embedding_scale
        self.positions = nan_parameter(dtype, config.max_positions, model.d_model)
        self.mask_vector = nn.Parameter(torch.zeros(model.d_model, dtype=dtype), requires_grad=False)

    def forward(self, ids: Tensor, is_slot: Tensor, source: EncodedDraftSource) -> Tensor:
        """ids [B, n], is_slot [B, n] -> [B, n, D], positions not added."""
        states = F.embedding(ids, self.tokens) * self.scale
        slots = self._soft_copy(ids.shape[1], source) + self.mask_vector
        return torch.where(is_slot[..., None], slots, states)

    def _soft_copy(self, width: int, source: EncodedDraftSource) -> Tensor:
        """A mixture of source embeddings for each of the first `width` target positions, [B, n, D]."""
        scores = self.positions[:width] @ source.copy_keys.transpose(1, 2)
        if source.mask is not None:
            scores = scores + source.mask[:, 0]
        return scores.softmax(-1) @ source.copy_values


class DraftDecoder(WithDropout):
    """Prefix and slots to states. All of them see each other; positions are added before every layer."""

    def __init__(self, config: SpecDrafterConfig, tokens: nn.Parameter, dtype: torch.dtype) -> None:
        super().__init__()
        self.embedding = DraftEmbedding(config, tokens, dtype)
        settings = config.decoder
        self.layers = nn.ModuleList(DecoderLayer(settings, dtype) for _ in range(settings.decoder_layers))

    def forward(self, ids: Tensor, is_slot: Tensor, mask: Tensor | None, source: EncodedDraftSource) -> Tensor:
        """ids, is_slot [B, n] -> [B, n, D]. The mask [B, 1, 1, n] hides padding; None where there is none."""
        positions = self.embedding.positions[: ids.shape[1]]
        states = self.embedding(ids, is_slot, source)
        for layer, keys_values in zip(self.layers, source.layers, strict=True):
            states = states + positions
            if self.dropout and self.training:
                states = F.dropout(states, self.dropout)
            states = layer(states, mask, None, keys_values, source.mask)
        return states  # type: ignore[no-any-return]


class SpecDrafterNetwork(nn.Module):
    """`DraftNetwork` on PyTorch. Its weights are NaN until somebody loads or initialises them, the mask vector zero.

    It can be trained as it is, once `requires_grad_(True)` was called: `encode_ids`, `decode` and `project` are
    differentiable.

    Attributes:
        copy_weight: [D, D] of the soft copy.
        source_positions: [S, D] for the soft copy where the encoder has no absolute positions, else None.
        output_weight: [V, D]; the target embedding when tied.
        output_bias: [V] or None.
    """

    def __init__(self, config: SpecDrafterConfig, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        model = config.model
        self.config, self.dtype = config, dtype
        target = nan_parameter(dtype, model.target_vocab_size, model.d_model)
        source = target if model.shares_embeddings else nan_parameter(dtype, model.source_vocab_size, model.d_model)
        self.encoder = Encoder(model, source, dtype)
        self.decoder = DraftDecoder(config, target, dtype)
        self.cross = CrossProjection(config.decoder, dtype)
        self.copy_weight = nan_parameter(dtype, model.d_model, model.d_model)
        is_relative = model.positions == "relative"
        self.source_positions = (
            nan_parameter(dtype, config.max_source_positions, model.d_model) if is_relative else None
        )
        self.output_weight = target if model.ties_output else nan_parameter(dtype, *target.shape)
        self.output_bias = nan_parameter(dtype, model.target_vocab_size) if model.has_output_bias else None

    def encode(self, source: SourceBatch) -> EncodedDraftSource:
        """See `interfaces.DraftNetwork.encode`."""
        device, limit = self.copy_weight.device, self.config.max_source_positions
        lengths = source.lengths.to(device).clamp(max=limit)
        return self.encode_ids(source.ids[:, : int(lengths.max())].to(device), lengths)

    def encode_ids(self, ids: Tensor, lengths: Tensor) -> EncodedDraftSource:
        """Source ids [B, S] with real lengths [B], none longer than the positions."""
        return EncodedDraftSource(lengths, *self.source_tensors(ids, self.encoder(ids, lengths)))

    def source_tensors(self, ids: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`cross`, `copy_keys` and `copy_values` of an `EncodedDraftSource`: source ids [B, S], states [B, S, D]."""
        embedded = F.embedding(ids, self.encoder.embedding.tokens) * self.config.model.embedding_scale
        # positions . W^T . (e + p), with the product that does not depend on the target taken once per source
        keys = (embedded + self.source_position_rows(ids.shape[1])) @ self.copy_weight
        return self.cross(hidden), keys, embedded

    def source_position_rows(self, width: int) -> Tensor:
        """[width, D] what the soft copy adds to the embeddings of the first `width` source tokens."""
        if self.source_positions is not None:
            return self.source_positions[:width]
        table, offset = self.encoder.embedding.positions, self.config.model.position_offset
        assert table is not None  # only relative positions have none
        return table[offset : offset + width]

    def decode(self, ids: Tensor, is_slot: Tensor, lengths: Tensor, source: EncodedDraftSource) -> Tensor:
        """States of prefixes and slots.

        Args:
            ids: [B, n] target tokens from position 0 on, without the start token; whatever in masked slots.
            is_slot: [B, n] bool, where the token is to be guessed.
            lengths: [B] real tokens and slots of each row.
            source: of the same rows.

        Returns:
            [B, n, D]. Position i says what token i is.
        """
        is_slot = self.with_slot_tokens(ids, is_slot)
        mask = length_mask(lengths, ids.shape[1], self.dtype)
        return self.decoder(ids, is_slot, mask, source)  # type: ignore[no-any-return]

    def with_slot_tokens(self, ids: Tensor, is_slot: Tensor) -> Tensor:
        """is_slot [B, n] or the token is the one that is always read as a slot."""
        return is_slot if self.config.slot_token_id is None else is_slot | (ids == self.config.slot_token_id)

    def project(self, states: Tensor) -> Tensor:
        """States [..., D] -> logits [..., V] in the network's type."""
        return F.linear(states, self.output_weight, self.output_bias)

    def draft(self, prefix: Prefix, num_draft_tokens: int, source: DraftSource, wanted: Wanted) -> TensorScores:
        """See `interfaces.DraftNetwork.draft`. Only the slots' states are projected."""
        assert isinstance(source, EncodedDraftSource)  # a network is given what its own `encode` made
        block = SlottedPrefix.of(prefix, num_draft_tokens, self.config.max_positions)
        states = self.decode(block.ids, block.is_slot, block.lengths, source)
        states = states.gather(1, block.slots[..., None].expand(-1, -1, states.shape[2]))
        return TensorScores(self.project(states).float())
