"""Networks as the trainer sees them: a forward pass is a training step, and there is a drafter to evaluate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from spec2seq.drafters.spec import SpecDrafter
from spec2seq.training.batches import TrainingBatch
from spec2seq.training.objective import drafter_loss

if TYPE_CHECKING:
    from spec2seq.interfaces import Drafter
    from spec2seq.nn.spec_drafter import SpecDrafterNetwork
    from spec2seq.training.settings import Objective
    from spec2seq.weights.drafter_folder import DrafterNetwork


class DrafterModule(nn.Module, ABC):
    """A drafting network whose forward is a training step.

    Attributes:
        network: what learns.
        block_size: tokens per block.
        progress: from 0 to 1, how far the training is.
    """

    network: DrafterNetwork

    def __init__(self, network: DrafterNetwork, objective: Objective, block_size: int) -> None:
        super().__init__()
        self.network = network
        self.objective = objective
        self.block_size = block_size
        self.progress = 0.0
        self.register_state_dict_post_hook(_keep_own_parameters)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_post_hook(_forgive_other_names)  # type: ignore[no-untyped-call]

    def forward(
        self,
        source_ids: Tensor,
        source_lengths: Tensor,
        target_ids: Tensor,
        target_lengths: Tensor,
        num_forced: Tensor,
        decoder_starts: Tensor,
    ) -> dict[str, Tensor]:
        """The fields of a `TrainingBatch` -> {"loss": a number}."""
        batch = TrainingBatch(source_ids, source_lengths, target_ids, target_lengths, num_forced, decoder_starts)
        return {"loss": self.loss(batch)}

    @abstractmethod
    def loss(self, batch: TrainingBatch) -> Tensor:
        """The loss of a batch, to call `backward` on. Random numbers come from torch's generator of its device."""

    @abstractmethod
    def drafter(self) -> Drafter:
        """A drafter that drafts with the network as it is."""


class SpecModule(DrafterModule):
    """The paper's drafter."""

    network: SpecDrafterNetwork

    def __init__(self, network: SpecDrafterNetwork, objective: Objective) -> None:
        super().__init__(network, objective, network.config.block_size)

    def loss(self, batch: TrainingBatch) -> Tensor:
        """As `DrafterModule.loss`."""
        return drafter_loss(self.network, batch, self.objective, self.progress)

    def drafter(self) -> SpecDrafter:
        """As `DrafterModule.drafter`."""
        return SpecDrafter(self.network)


def _keep_own_parameters(module: nn.Module, state: dict[str, Tensor], prefix: str, metadata: object) -> None:
    """One name per tied parameter, and rows one behind another: safetensors takes nothing else."""
    own = {prefix + name for name, _ in module.named_parameters()}
    for name in list(state):
        if name in own:
            state[name] = state[name].contiguous()
        else:
            del state[name]


def _forgive_other_names(module: nn.Module, keys: Any) -> None:
    """Of a tied parameter only the name that was saved is missed."""
    own = {name for name, _ in module.named_parameters()}
    keys.missing_keys[:] = [name for name in keys.missing_keys if name in own]
