"""What turns gradients into updates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from torch import nn

    from spec2seq.training.settings import TrainingSettings

# Parameters of two dimensions that are looked up row by row, or as large as a vocabulary: not what Muon is made for.
_TABLES = frozenset({"tokens", "positions", "source_positions", "places", "before", "after", "output_weight"})


def make_optimizer(module: nn.Module, decayed: Collection[str], settings: TrainingSettings) -> torch.optim.Optimizer:
    """The optimizer of a training.

    Args:
        module: its learning parameters are what is updated.
        decayed: names of those that weight decay is for.
    """
    matrices: list[tuple[str, nn.Parameter]] = []
    others: list[tuple[str, nn.Parameter]] = []
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            is_own = settings.optimizer == "muon" and parameter.dim() == 2 and name.rpartition(".")[2] not in _TABLES
            (matrices if is_own else others).append((name, parameter))
    groups = [
        {"params": [p for name, p in others if (name in decayed) == is_decayed], "weight_decay": decay}
        for is_decayed, decay in ((True, settings.weight_decay), (False, 0.0))
    ]
    adamw = torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, settings.adam_beta2), fused=True)
    if not matrices:
        return adamw
    # scaled so that rates and decays of AdamW suit it
    muon = torch.optim.Muon(
        [p for _, p in matrices], settings.learning_rate, settings.weight_decay, adjust_lr_fn="match_rms_adamw"
    )
    return JointOptimizer([muon, adamw])


class JointOptimizer(torch.optim.Optimizer):
    """Several optimizers, each for parameters of its own, as one."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._parts = parts
        self._share_groups()

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """One update of all parameters."""
        loss = None if closure is None else closure()
        for part in self._parts:
            part.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Those of the parts, in their order."""
        return {"parts": [part.state_dict() for part in self._parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """What `state_dict` gave."""
        for part, state in zip(self._parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self._share_groups()

    def _share_groups(self) -> None:
        """Settings are the parts' own: who sets a learning rate here sets it there."""
        self.param_groups = [group for part in self._parts for group in part.param_groups]
