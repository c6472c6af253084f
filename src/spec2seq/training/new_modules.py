"""What is to be trained, by the kind of the drafter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from spec2seq.training.blockwise_module import BlockwiseModule
from spec2seq.training.feature_module import FeatureModule
from spec2seq.training.initialisation import new_blockwise_heads, new_feature_drafter, new_spec_drafter
from spec2seq.training.modules import SpecModule
from spec2seq.training.shapes import BlockwiseShape, FeatureShape

if TYPE_CHECKING:
    from spec2seq.nn.seq2seq import Seq2Seq
    from spec2seq.training.batches import PairTable
    from spec2seq.training.modules import DrafterModule
    from spec2seq.training.settings import TrainingPlan


def new_module(verifier: Seq2Seq, plan: TrainingPlan, table: PairTable) -> DrafterModule:
    """A new drafter of the plan's kind for this verifier, which is in fp32; `table` is what it will be trained on.

    Raises:
        OptionError: the shape does not suit the verifier.
    """
    seed, objective = plan.settings.seed, plan.objective
    if isinstance(plan.shape, FeatureShape):
        counts = torch.cat(table.targets).bincount(minlength=verifier.config.target_vocab_size)
        return FeatureModule(new_feature_drafter(verifier, plan.shape, counts, seed), verifier, objective)
    if isinstance(plan.shape, BlockwiseShape):
        return BlockwiseModule(new_blockwise_heads(verifier, plan.shape, seed), verifier, objective)
    return SpecModule(new_spec_drafter(verifier, plan.shape, seed), objective)
