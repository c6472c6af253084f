"""AdamW that keeps a running average of the weights: good to use at any time, without a falling learning rate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor, nn

LONGEST_MEMORY = 0.999  # the average covers about the last 1000 updates
_AVERAGE = "average"


class AveragingAdamW(torch.optim.AdamW):
    """AdamW whose state holds the averages, so that they are in every checkpoint of the optimizer.

    Args:
        parameters: those that learn.
        learning_rate: at its highest.
        first_step: updates that the weights had before.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], learning_rate: float, first_step: int = 0) -> None:
        super().__init__(parameters, lr=learning_rate, betas=(0.9, 0.98), eps=1e-9, weight_decay=1e-4, fused=True)
        self._first_step = first_step

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """An update of the weights, and of their averages."""
        parameters = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        before = [p.clone() for p in parameters if _AVERAGE not in self.state[p]]
        loss = super().step(closure)
        if before:  # AdamW wants the states of new parameters empty
            for parameter, value in zip(parameters, before, strict=True):
                self.state[parameter][_AVERAGE] = value
        averages = [self.state[p][_AVERAGE] for p in parameters]
        step = self._first_step + int(self.state[parameters[0]]["step"])
        decay = min(LONGEST_MEMORY, (1 + step) / (10 + step))
        torch._foreach_lerp_(averages, parameters, 1 - decay)
        return loss

    def average(self, parameter: nn.Parameter) -> Tensor:
        """The average of a parameter; its value before the first update."""
        state: dict[str, Tensor] = self.state.get(parameter, {})
        return state.get(_AVERAGE, parameter.detach())
