"""What every sublayer of every stack does around its own work: normalise, add the residual, tame fp16."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from spec2seq.config import ModelConfig


def nan_parameter(dtype: torch.dtype, *shape: int) -> nn.Parameter:
    """A weight that was not loaded yet: NaN, so that a hole is loud."""
    return nn.Parameter(torch.full(shape, torch.nan, dtype=dtype), requires_grad=False)


def nan_projection(dtype: torch.dtype, outputs: int, inputs: int) -> nn.Parameter:
    """A weight [outputs, inputs] of a linear layer, not loaded yet.

    Its columns are contiguous: that is how a CPU multiplies a few rows by it fastest (a tenth less time per decoding
    step, measured with 1 to 64 rows).
    """
    return nn.Parameter(torch.full((inputs, outputs), torch.nan, dtype=dtype).t(), requires_grad=False)


def without_infinities(states: Tensor) -> Tensor:
    """Replace infinities by the largest finite number less 1000, as transformers does in fp16."""
    limit = torch.finfo(states.dtype).max - 1000
    return states.nan_to_num(nan=torch.nan, posinf=limit, neginf=-limit)


class WithDropout(nn.Module):
    """Base of what drops a share `dropout` of its numbers in training mode; 0 until `set_dropout` says otherwise."""

    dropout: float = 0.0


def set_dropout(network: nn.Module, rate: float) -> None:
    """Let training drop this share of what goes into every stack and of what every sublayer adds."""
    for module in network.modules():
        if isinstance(module, WithDropout):
            module.dropout = rate


class Norm(nn.Module):
    """Layer norm, or T5's root mean square norm: no mean, no bias."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.is_rms, self.eps, self.shape = config.norm == "rms", config.norm_eps, (config.d_model,)
        self.weight = nan_parameter(dtype, config.d_model)
        self.bias = None if self.is_rms else nan_parameter(dtype, config.d_model)
        self._weights = (self.weight, self.bias)

    def forward(self, states: Tensor) -> Tensor:
        """[..., D] -> [..., D] in the type of the weights."""
        weight, bias = self._weights
        if not self.is_rms:
            return torch.layer_norm(states, self.shape, weight, bias, self.eps)
        if states.dtype == weight.dtype and weight.dtype in (torch.float32, torch.float64):
            return torch.rms_norm(states, self.shape, weight, self.eps)
        # the root mean square of half precision numbers needs fp32, and T5 rounds before it multiplies
        return torch.rms_norm(states.float(), self.shape, None, self.eps).to(weight.dtype) * weight


class Sublayer(WithDropout):
    """Base of attention and feed-forward: `leave(states, work(enter(states)))`.

    Attributes:
        weights: the tensors that the work needs, in a plain tuple: looking up a module's attribute costs a microsecond,
            and calling a module instead of its `forward` two. A decoding step of a small model takes some hundred.
        clamps: whether infinities are removed at the end (fp16 only).
    """

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.is_pre_norm = config.is_pre_norm
        self.norm = Norm(config, dtype)
        self.clamps = dtype == torch.float16 and config.norm == "rms"
        self._norm = self.norm.forward

    def remember(
        self,
        first_weight: nn.Parameter,
        first_bias: nn.Parameter | None,
        second_weight: nn.Parameter,
        second_bias: nn.Parameter | None,
    ) -> None:
        """Set `weights`. Moving the module to another device or type keeps the same parameter objects."""
        self.weights = (first_weight, first_bias, second_weight, second_bias)

    def enter(self, states: Tensor) -> Tensor:
        """What the sublayer works on: the normalised states where the norm comes first."""
        return self._norm(states) if self.is_pre_norm else states

    def leave(self, states: Tensor, work: Tensor) -> Tensor:
        """Add the residual, normalise where the norm comes last."""
        if self.dropout and self.training:
            work = F.dropout(work, self.dropout)
        states = states + work
        if self.clamps and states.dtype == torch.float16:
            states = without_infinities(states)
        return states if self.is_pre_norm else self._norm(states)
