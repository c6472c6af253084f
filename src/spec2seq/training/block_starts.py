"""Where blocks begin in training: at the first place, at random ones, and where rounds begin in decoding."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn import functional as F

if TYPE_CHECKING:
    from torch import Tensor

    from spec2seq.evaluation.known_outputs import KnownOutputs


class BlockText(NamedTuple):
    """The tokens of R blocks of k slots per target.

    Attributes:
        before: [B, R, k] the token before each slot; the first is the last one that is known.
        targets: [B, R, k] what belongs into the slots.
        has_target: [B, R, k] False behind the end of the target.
        places: [B, R, k] numbers of the slots among the T places of all targets, one target behind the other; behind
            the end of one, of its last place.
    """

    before: Tensor
    targets: Tensor
    has_target: Tensor
    places: Tensor

    @classmethod
    def read(cls, known: KnownOutputs, starts: Tensor, block_size: int) -> BlockText:
        """Blocks behind starts [B, R]."""
        inputs = F.pad(known.inputs, (0, block_size))
        slots = starts[..., None] + torch.arange(block_size, device=starts.device)
        before, targets = (inputs.gather(1, (slots + i).flatten(1)).view_as(slots) for i in (0, 1))
        num_rows, width = known.lengths.shape[0], known.inputs.shape[1] - 1
        firsts = torch.arange(num_rows, device=starts.device)[:, None, None] * width
        places = firsts + slots.clamp(max=width - 1)
        return cls(before, targets, slots < known.lengths[:, None, None], places)


def random_starts(known: KnownOutputs, count: int) -> Tensor:
    """[B, count] places in the targets, all as likely; the first of several is where the first round begins: at the
    first token that is not forced."""
    num_starts = (known.lengths - known.num_forced)[:, None]
    # in double precision: n * u must not be rounded up to n
    uniform = torch.rand(len(num_starts), count, dtype=torch.double, device=num_starts.device)
    starts = (num_starts * uniform).long()
    if count > 1:
        starts[:, 0] = 0
    return starts + known.num_forced[:, None]


def next_starts(known: KnownOutputs, starts: Tensor, num_right: Tensor) -> Tensor:
    """Where the rounds behind these begin, [B, R]: behind the tokens that were right and one of the verifier's.

    A round behind the end of the target is none: there, a place at random.

    Args:
        starts, num_right: [B, R] blocks, and how many of their leading tokens are right.
    """
    following = starts + num_right + 1
    return torch.where(following < known.lengths[:, None], following, random_starts(known, starts.shape[1] + 1)[:, 1:])


def num_visible(known: KnownOutputs, starts: Tensor) -> Tensor:
    """How many positions blocks at `starts` [B, R] see: all before the last known token, but none in the first round,
    before which the verifier was not called."""
    return torch.where(starts > known.num_forced[:, None], starts, 0)
