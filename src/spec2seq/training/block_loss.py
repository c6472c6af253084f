"""The loss of blocks behind a frozen output projection, without ever holding the scores of all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from spec2seq.training.losses import slot_weights

if TYPE_CHECKING:
    from spec2seq.training.settings import SlotWeights

# Rows of scores at a time: those of a usual vocabulary stay in a core's cache. Always as many: a CPU prepares each
# product for its sizes, which takes longer than the product.
_CHUNK_ROWS = 256


class BlockTargets(NamedTuple):
    """What belongs into the k slots of N blocks.

    Attributes:
        places: [N, k] of the right tokens among the V' that can be drafted; -1: it is none of them, and the block ends
            there.
        has_target: [N, k] False behind the end of the target.
        laws: [M, V'] distributions to learn; None: of each slot the right token alone.
        law_numbers: [N, k] which of them is that of each slot; looked at where there are laws.
    """

    places: Tensor
    has_target: Tensor
    law_numbers: Tensor
    laws: Tensor | None = None

    def chunk(self, start: int, size: int) -> BlockTargets:
        """Those of `size` blocks from number `start` on; missing ones have no targets."""
        missing = max(0, start + size - len(self.places))
        places, has_target, law_numbers = (F.pad(part[start : start + size], (0, 0, 0, missing)) for part in self[:3])
        return BlockTargets(places, has_target, law_numbers, self.laws)


class Followers(NamedTuple):
    """The bigram table's part: before [N, k, r] of the token before each slot, after [V', r]."""

    before: Tensor
    after: Tensor


class BlockLoss(NamedTuple):
    """What a pass over blocks came to.

    Attributes:
        total: sum of the slots' cross-entropies, each times its weight; to call `backward` on.
        weight: sum of the weights.
        num_right: [N] leading slots of each block whose best token is the right one.
    """

    total: Tensor
    weight: Tensor
    num_right: Tensor


class FrozenOutput:
    """An output projection that does not learn, as the loss wants it: one matrix with the bigram table's part below.

    Args:
        weight, bias: [V', D], and [V'] or None.
        rank: of the bigram table, 0 where there is none.
        dtype: of the products; softmax and sums are in fp32 at least.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, rank: int, dtype: torch.dtype) -> None:
        self.matrix = weight.new_zeros(weight.shape[1] + rank, weight.shape[0], dtype=dtype)
        self.matrix[: weight.shape[1]].copy_(weight.t())
        self.bias = None if bias is None or not bool(bias.any()) else bias.to(dtype)
        self.width = weight.shape[1]

    def laws(self, states: Tensor) -> Tensor:
        """The distributions [M, V'] of states [M, D] that it is applied to, without the bigram table."""
        states, matrix = states.to(self.matrix.dtype), self.matrix[: self.width]
        with torch.autocast(states.device.type, enabled=False):
            scores = states @ matrix if self.bias is None else torch.addmm(self.bias, states, matrix)
            return scores.softmax(-1)

    def loss(
        self, states: Tensor, targets: BlockTargets, kind: SlotWeights, followers: Followers | None = None
    ) -> BlockLoss:
        """Weighted cross-entropy of blocks with their targets, differentiable in `states` and `followers`.

        Args:
            states: [N, k, D] what the output projection is applied to.
            kind: how much the slots of a block count, see `losses.slot_weights`.
        """
        if followers is None:
            followers = Followers(states.new_zeros(*states.shape[:2], 0), states.new_zeros(self.matrix.shape[1], 0))
        total, mass, num_right = _BlockLoss.apply(states, *followers, self, targets, kind)  # type: ignore[no-untyped-call]
        return BlockLoss(total, mass, num_right)


class _BlockLoss(torch.autograd.Function):
    """The gradient is worked out beside the loss: one product more per chunk of scores, which are gone then."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        before: Tensor,
        after: Tensor,
        output: FrozenOutput,
        targets: BlockTargets,
        kind: SlotWeights,
    ) -> tuple[Tensor, Tensor, Tensor]:
        output.matrix[output.width :].copy_(after.t())
        inputs = torch.cat([states.to(output.matrix.dtype), before.to(output.matrix.dtype)], dim=-1)
        sums = _Sums.empty(inputs, after)
        num_blocks, size = len(inputs), max(1, _CHUNK_ROWS // states.shape[1])
        with torch.autocast(states.device.type, enabled=False):
            for i in range(0, num_blocks, size):
                part = F.pad(inputs[i : i + size], (0, 0, 0, 0, 0, max(0, i + size - num_blocks)))
                _add_chunk(sums, output, part, targets.chunk(i, size), kind)
        gradient = torch.cat(sums.gradients)[:num_blocks]
        ctx.save_for_backward(gradient, sums.after_gradient)
        ctx.width, ctx.dtypes = output.width, (states.dtype, before.dtype, after.dtype)
        outputs = torch.stack(sums.totals).sum(), torch.stack(sums.masses).sum(), torch.cat(sums.num_right)[:num_blocks]
        ctx.mark_non_differentiable(*outputs[1:])
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        gradient, after_gradient = ctx.saved_tensors
        states, before = (gradient * gradients[0]).split([ctx.width, gradient.shape[-1] - ctx.width], dim=-1)
        parts = states, before, after_gradient * gradients[0]
        return (*(part.to(dtype) for part, dtype in zip(parts, ctx.dtypes, strict=True)), None, None, None)


class _Sums(NamedTuple):
    """What the chunks add up to: losses, weights, right slots and gradients of the inputs, and that of `after`."""

    totals: list[Tensor]
    masses: list[Tensor]
    num_right: list[Tensor]
    gradients: list[Tensor]
    after_gradient: Tensor

    @classmethod
    def empty(cls, inputs: Tensor, after: Tensor) -> _Sums:
        return cls([], [], [], [], torch.zeros_like(after, dtype=torch.promote_types(inputs.dtype, torch.float32)))


def _add_chunk(sums: _Sums, output: FrozenOutput, inputs: Tensor, targets: BlockTargets, kind: SlotWeights) -> None:
    """Some blocks' part: inputs [n, k, D + r].

    With p the softmax of the scores, w the weights and q the laws to learn, the gradient of the scores is w (p - q).
    """
    shape, matrix, dtype = inputs.shape[:2], output.matrix, sums.after_gradient.dtype
    rows, places = inputs.flatten(0, 1), targets.places.flatten().clamp(min=0)[:, None]
    scores = rows @ matrix if output.bias is None else torch.addmm(output.bias, rows, matrix)
    chances, best, of_right = scores.softmax(-1), scores.amax(-1), scores.gather(1, places)[:, 0]
    is_possible = targets.has_target & (targets.places >= 0)
    right = chances.gather(1, places)[:, 0].to(dtype).view(shape)
    confidences = (right * is_possible).masked_fill(~targets.has_target, 1.0)
    weights = slot_weights(kind, confidences) * is_possible
    log_sums = best.to(dtype) - chances.amax(-1).to(dtype).log()
    if targets.laws is None:
        losses = log_sums - of_right
        chances.scatter_add_(1, places, -torch.ones_like(places, dtype=chances.dtype))
    else:
        laws = targets.laws[targets.law_numbers.flatten()]
        losses = log_sums - (laws * scores).sum(-1, dtype=dtype)
        chances.sub_(laws)
    chances.mul_(weights.flatten()[:, None])
    if matrix.shape[0] > output.width:
        sums.after_gradient.add_(chances.t() @ rows[:, output.width :])
    sums.totals.append((weights * losses.view(shape)).sum())
    sums.masses.append(weights.sum())
    sums.num_right.append(((of_right == best).view(shape) & is_possible).long().cumprod(1).sum(1))
    sums.gradients.append((chances @ matrix.t()).view(inputs.shape))
