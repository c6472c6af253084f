"""A training step of the drafter on the verifier's states: many blocks per target, one pass of the verifier."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

from spec2seq.drafters.feature import FeatureDrafter
from spec2seq.nn.feature_blocks import Blocks, Surroundings, block_states
from spec2seq.training.block_loss import BlockTargets, Followers, FrozenOutput
from spec2seq.training.block_starts import BlockText, next_starts, num_visible, random_starts
from spec2seq.training.modules import DrafterModule
from spec2seq.training.teacher import Teacher, product_type

if TYPE_CHECKING:
    from torch import Tensor

    from spec2seq.evaluation.known_outputs import KnownOutputs
    from spec2seq.nn.feature_drafter import FeatureDrafterNetwork
    from spec2seq.nn.seq2seq import Seq2Seq
    from spec2seq.training.batches import TrainingBatch
    from spec2seq.training.block_loss import BlockLoss
    from spec2seq.training.settings import Objective


class FeatureModule(DrafterModule):
    """Half of a step's blocks start at random places, the others where the next rounds behind these would.

    Args:
        network: attached to the verifier.
        verifier: in fp32; it is not trained.
    """

    network: FeatureDrafterNetwork

    def __init__(self, network: FeatureDrafterNetwork, verifier: Seq2Seq, objective: Objective) -> None:
        super().__init__(network, objective, network.config.block_size)
        self._teacher = Teacher(verifier, network.config.hidden_layers)
        self._output: FrozenOutput | None = None
        self._places: Tensor | None = None  # [V] of the tokens among those that can be drafted

    def loss(self, batch: TrainingBatch) -> Tensor:
        """As `DrafterModule.loss`."""
        self._prepare(batch)
        known, encoded, states, last = self._teacher.states(batch)
        laws = None
        if self.objective.targets == "laws":
            assert self._output is not None
            laws = self._output.laws(last.flatten(0, 1) * self.network.tables.output_scale)
        around = Surroundings.read(self.network, states, encoded, known.source.lengths)
        num_first = (self.objective.num_cuts + 1) // 2
        starts = random_starts(known, num_first)
        first = self._blocks_loss(around, known, starts, laws)
        if self.objective.num_cuts == 1:
            return first.total / first.weight
        num_right = first.num_right.view_as(starts)
        starts = next_starts(known, starts, num_right)[:, : self.objective.num_cuts - num_first]
        second = self._blocks_loss(around, known, starts, laws)
        return (first.total + second.total) / (first.weight + second.weight)

    def drafter(self) -> FeatureDrafter:
        """As `DrafterModule.drafter`."""
        return FeatureDrafter(self.network)

    def _blocks_loss(self, around: Surroundings, known: KnownOutputs, starts: Tensor, laws: Tensor | None) -> BlockLoss:
        network = self.network
        text = BlockText.read(known, starts, self.block_size)
        blocks = Blocks(text.before[..., 0], starts, num_visible(known, starts))
        states = network.outputs(block_states(network, around, blocks, self.block_size)).flatten(0, 1)
        targets = text.targets if self._places is None else self._places[text.targets]
        followers = None
        if network.bigrams is not None:
            followers = Followers(F.embedding(text.before.flatten(0, 1), network.bigrams.before), network.bigrams.after)
        assert self._output is not None
        slots = BlockTargets(*(part.flatten(0, 1) for part in (targets, text.has_target, text.places)))
        return self._output.loss(states, slots._replace(laws=laws), self.objective.slot_weights, followers)

    def _prepare(self, batch: TrainingBatch) -> None:
        """Be where the batch is."""
        network, device = self.network, batch.target_ids.device
        dtype = product_type(network.embedding.places)
        if not self._teacher.move(device, dtype):
            return
        network.attach(self._teacher.network)
        tables = network.tables
        self._output = FrozenOutput(tables.weight.detach(), tables.bias, network.config.bigram_rank, dtype)
        if network.shortlist is not None:
            self._places = torch.full((network.config.verifier.target_vocab_size,), -1, device=device)
            self._places[network.shortlist] = torch.arange(len(network.shortlist), device=device)
