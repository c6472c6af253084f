"""Heads on the verifier's last state: one for each token of a block (Stern et al. 2018, section 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spec2seq.nn.sublayer import nan_parameter
from spec2seq.types import TensorScores

if TYPE_CHECKING:
    from spec2seq.drafter_config import BlockwiseConfig
    from spec2seq.nn.seq2seq import Seq2Seq


class BlockwiseHeads(nn.Module):
    """From the state at the position before the last known token, k tokens behind that one.

    Each head adds to the state what two linear layers make of it; the verifier's output projection, which is no
    parameter of this network, follows. Its weights are NaN until somebody loads or initialises them.
    """

    def __init__(self, config: BlockwiseConfig, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.config, self.dtype = config, dtype
        heads, inner, width = config.block_size, config.ffn_dim, config.verifier.d_model
        self.input_weight = nan_parameter(dtype, heads, inner, width)
        self.input_bias = nan_parameter(dtype, heads, inner)
        self.output_weight = nan_parameter(dtype, heads, width, inner)
        self.output_bias = nan_parameter(dtype, heads, width)
        self._verifier: list[Seq2Seq] = []  # in a list, for it is no part of this network

    def attach(self, verifier: Seq2Seq) -> None:
        """Use the output projection of this verifier."""
        self._verifier = [verifier]

    @property
    def verifier(self) -> Seq2Seq:
        assert self._verifier, "attach was not called"
        return self._verifier[0]

    def head_states(self, states: Tensor, num_heads: int) -> Tensor:
        """States [M, D] -> what the output projection is applied to for the first heads, [M, k, D]."""
        inner = torch.einsum("md,kfd->mkf", states, self.input_weight[:num_heads]) + self.input_bias[:num_heads]
        added = torch.einsum("mkf,kdf->mkd", F.relu(inner), self.output_weight[:num_heads])
        return states[:, None] + added + self.output_bias[:num_heads]

    def draft(self, states: Tensor, num_draft_tokens: int) -> TensorScores:
        """Scores [B, k, V] from the last states [B, D]."""
        return TensorScores(self.verifier.project(self.head_states(states.to(self.dtype), num_draft_tokens)).float())
