"""A training step of the heads on the verifier's last state: a block behind every token of the targets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from spec2seq.drafters.blockwise import BlockwiseDrafter
from spec2seq.training.block_loss import BlockTargets, FrozenOutput
from spec2seq.training.block_starts import BlockText, random_starts
from spec2seq.training.modules import DrafterModule
from spec2seq.training.teacher import Teacher, product_type

if TYPE_CHECKING:
    from torch import Tensor

    from spec2seq.nn.blockwise_heads import BlockwiseHeads
    from spec2seq.nn.seq2seq import Seq2Seq
    from spec2seq.training.batches import TrainingBatch
    from spec2seq.training.settings import Objective


class BlockwiseModule(DrafterModule):
    """Blocks at random places, never in a target's first round, in which there is no state to draft from.

    Args:
        network: attached to the verifier.
        verifier: in fp32; it is not trained.
    """

    network: BlockwiseHeads

    def __init__(self, network: BlockwiseHeads, verifier: Seq2Seq, objective: Objective) -> None:
        super().__init__(network, objective, network.config.block_size)
        self._teacher = Teacher(verifier, ())
        self._output: FrozenOutput | None = None

    def loss(self, batch: TrainingBatch) -> Tensor:
        """As `DrafterModule.loss`."""
        self._prepare(batch)
        assert self._output is not None
        known, _, _, states = self._teacher.states(batch)
        starts = random_starts(known, self.objective.num_cuts + 1)[:, 1:]
        text = BlockText.read(known, starts, self.block_size)
        rows = torch.arange(len(starts), device=starts.device)[:, None]
        last = states[rows, (starts - 1).clamp(min=0)].flatten(0, 1)
        is_first = starts == known.num_forced[:, None]
        scale = self.network.config.verifier.output_scale
        laws = self._output.laws(states.flatten(0, 1) * scale) if self.objective.targets == "laws" else None
        has_target = text.has_target & ~is_first[..., None]
        targets = BlockTargets(*(part.flatten(0, 1) for part in (text.targets, has_target, text.places)))
        loss = self._output.loss(
            self.network.head_states(last, self.block_size) * scale,
            targets._replace(laws=laws),
            self.objective.slot_weights,
        )
        return loss.total / loss.weight.clamp(min=1.0)

    def drafter(self) -> BlockwiseDrafter:
        """As `DrafterModule.drafter`."""
        return BlockwiseDrafter(self.network)

    def _prepare(self, batch: TrainingBatch) -> None:
        """Be where the batch is."""
        dtype = product_type(self.network.input_weight)
        if self._teacher.move(batch.target_ids.device, dtype):
            verifier = self._teacher.network
            bias = verifier.output_bias
            self._output = FrozenOutput(verifier.output_weight.detach(), bias, 0, dtype)
