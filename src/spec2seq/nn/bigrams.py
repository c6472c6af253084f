"""Which token follows which: a low-rank table that lets the tokens of a block agree with their neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional as F

from spec2seq.nn.sublayer import nan_parameter

if TYPE_CHECKING:
    from torch import Tensor


class BigramTable(nn.Module):
    """Adds before[x'] . after[x] to the score of token x where x' is the token before it.

    Attributes:
        before: [V, r], of every token.
        after: [V', r], of the tokens that can be drafted.
    """

    def __init__(self, num_tokens: int, num_outputs: int, rank: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.before = nan_parameter(dtype, num_tokens, rank)
        self.after = nan_parameter(dtype, num_outputs, rank)

    def following(self, tokens: Tensor) -> Tensor:
        """What is added to the scores of all tokens behind `tokens` [...]; [..., V']."""
        return F.embedding(tokens, self.before) @ self.after.t()

    def successors(self, values: Tensor, places: Tensor, tokens: Tensor, first: Tensor) -> Tensor:
        """Which candidate of each slot is best behind each candidate of the slot before it.

        Args:
            values: [B, k, C] scores of the candidates without the table.
            places: [B, k, C] where the candidates are among those that can be drafted.
            tokens: [B, k, C] their ids.
            first: [B] the token before the block.

        Returns:
            [B, k, C'] numbers of candidates: for each one before, all the same in the first slot.
        """
        before = torch.cat([first[:, None, None].expand(-1, 1, tokens.shape[2]), tokens[:, :-1]], dim=1)
        additions = F.embedding(before, self.before) @ F.embedding(places, self.after).transpose(2, 3)
        return (values[:, :, None] + additions).argmax(-1)


def follow(successors: Tensor) -> Tensor:
    """Walk from slot to slot, always to the successor of the last candidate. [B, k, C'] -> numbers [B, k]."""
    number = successors[:, 0, :1]
    walked = [number]
    for slot in range(1, successors.shape[1]):
        number = successors[:, slot].gather(1, number)
        walked.append(number)
    return torch.cat(walked, dim=1)
