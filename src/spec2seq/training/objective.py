"""One training step of the Spec-Drafter: mask a block, glance, and guess what is still masked."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from spec2seq.training.block_mask import mask_block, prefix_lengths
from spec2seq.training.glancing import choose_revealed, glancing_ratio, num_revealed
from spec2seq.training.losses import slot_weights, smoothed_cross_entropy, weighted_mean

if TYPE_CHECKING:
    from torch import Tensor

    from spec2seq.nn.draft_source import EncodedDraftSource
    from spec2seq.nn.spec_drafter import SpecDrafterNetwork
    from spec2seq.training.batches import TrainingBatch
    from spec2seq.training.block_mask import MaskedBlock
    from spec2seq.training.settings import Objective


def drafter_loss(network: SpecDrafterNetwork, batch: TrainingBatch, objective: Objective, progress: float) -> Tensor:
    """The loss of a batch, to call `backward` on. Random numbers come from torch's generator of the batch's device.

    Args:
        network: in training mode for dropout, which is the same in both passes.
        progress: from 0 to 1, how far the training is.
    """
    source = network.encode_ids(batch.source_ids, batch.source_lengths)
    rows = torch.arange(len(batch.target_ids), device=batch.target_ids.device).repeat_interleave(objective.num_cuts)
    if objective.num_cuts > 1:
        source = source.select_rows(rows)
    block = _draw_block(network, batch, rows)
    ratio = glancing_ratio(progress, objective.first_glancing, objective.last_glancing)
    if ratio > 0:
        block = _glance(network, source, block, ratio)
    return _block_loss(network, source, block, objective)


def _draw_block(network: SpecDrafterNetwork, batch: TrainingBatch, rows: Tensor) -> MaskedBlock:
    """A block at a random place of the target of each of `rows`."""
    lengths, block_size = batch.target_lengths[rows], network.config.block_size
    uniform = torch.rand(len(rows), device=rows.device)
    limit = network.config.max_positions - block_size
    starts = prefix_lengths(lengths, batch.num_forced[rows], limit, uniform)
    return mask_block(batch.target_ids[rows], lengths, starts, block_size)


def _glance(network: SpecDrafterNetwork, source: EncodedDraftSource, block: MaskedBlock, ratio: float) -> MaskedBlock:
    """Reveal some slots, after a pass that leaves no trace: the next one draws the same dropout."""
    device = block.ids.device
    noise = torch.rand(block.targets.shape, device=device)
    with torch.no_grad(), torch.random.fork_rng([] if device.type == "cpu" else [device]):
        # what a source remembers of a pass without gradient must not be used in one that has them
        states = network.decode(block.ids, block.is_slot, block.lengths, replace(source))
        guesses = network.project(_at_slots(states, block)).argmax(-1)
    counts = num_revealed(guesses, block.targets, block.has_target, ratio)
    return block.reveal(choose_revealed(counts, block.has_target, noise))


def _block_loss(
    network: SpecDrafterNetwork, source: EncodedDraftSource, block: MaskedBlock, objective: Objective
) -> Tensor:
    """Mean over the slots that have a target and do not show it; only these are projected."""
    states = network.decode(block.ids, block.is_slot, block.lengths, source)
    is_masked = block.is_masked
    logits = network.project(_at_slots(states, block)[is_masked])
    targets = block.targets[is_masked]
    losses = smoothed_cross_entropy(logits, targets, objective.label_smoothing)
    confidences = torch.ones(is_masked.shape, device=is_masked.device)
    if objective.slot_weights == "survival":
        confidences[is_masked] = (-smoothed_cross_entropy(logits.detach(), targets, 0.0)).exp()
    return weighted_mean(losses, slot_weights(objective.slot_weights, confidences)[is_masked])


def _at_slots(states: Tensor, block: MaskedBlock) -> Tensor:
    """States [B, n, D] -> those of the slots, [B, k, D]."""
    return states.gather(1, block.slots[..., None].expand(-1, -1, states.shape[2]))
