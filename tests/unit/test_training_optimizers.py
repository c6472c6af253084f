"""Which optimizer updates what, and several as one."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from spec2seq.errors import OptionError
from spec2seq.training.optimizers import JointOptimizer, make_optimizer
from spec2seq.training.settings import DEFAULT_PLANS, TrainingSettings

SETTINGS = TrainingSettings(learning_rate=0.1, optimizer="muon", weight_decay=0.01)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(4, 6))
        self.bias = nn.Parameter(torch.randn(4))
        self.tokens = nn.Parameter(torch.randn(5, 6))
        self.heads = nn.Parameter(torch.randn(2, 4, 6))
        self.frozen = nn.Parameter(torch.randn(4, 6), requires_grad=False)

    def loss(self) -> Tensor:
        states = self.tokens @ self.weight.t() + self.bias
        return states.square().sum() + self.heads.square().sum()


def train(network: Network, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = network.loss()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def test_matrices_are_muons_and_the_rest_is_adamws() -> None:
    network = Network()
    optimizer = make_optimizer(network, {"weight", "tokens"}, SETTINGS)
    assert isinstance(optimizer, JointOptimizer)
    muon, adamw = optimizer._parts
    assert [id(p) for group in muon.param_groups for p in group["params"]] == [id(network.weight)]
    decayed, others = adamw.param_groups
    assert [id(p) for p in decayed["params"]] == [id(network.tokens)]
    assert {id(p) for p in others["params"]} == {id(network.bias), id(network.heads)}
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.01, 0.0)
    assert isinstance(make_optimizer(network, set(), replace(SETTINGS, optimizer="adamw")), torch.optim.AdamW)


def test_an_update_is_that_of_the_parts() -> None:
    network, other = Network(), Network()
    train(network, make_optimizer(network, {"weight"}, SETTINGS), 3)
    muon = torch.optim.Muon([other.weight], 0.1, 0.01, adjust_lr_fn="match_rms_adamw")
    adamw = torch.optim.AdamW([other.bias, other.tokens, other.heads], 0.1, (0.9, 0.999), weight_decay=0.0)
    for _ in range(3):
        for part in (muon, adamw):
            part.zero_grad()
        other.loss().backward()  # type: ignore[no-untyped-call]
        for part in (muon, adamw):
            part.step()
    for mine, expected in zip(network.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, expected)


def test_a_rate_that_is_set_reaches_the_parts() -> None:
    network = Network()
    optimizer = make_optimizer(network, set(), SETTINGS)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0)
    before = copy.deepcopy(list(network.parameters()))
    train(network, optimizer, 1)
    assert scheduler.get_last_lr() == [0.0, 0.0, 0.0]
    for parameter, old in zip(network.parameters(), before, strict=True):
        assert torch.equal(parameter, old)


def test_it_goes_on_from_what_was_saved() -> None:
    network = Network()
    optimizer = make_optimizer(network, set(), SETTINGS)
    train(network, optimizer, 3)
    saved, weights = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(network.state_dict())
    expected = train(network, optimizer, 3)
    other = Network()
    other.load_state_dict(weights)
    resumed = make_optimizer(other, set(), SETTINGS)
    resumed.load_state_dict(saved)
    assert train(other, resumed, 3) == expected
    scheduler = torch.optim.lr_scheduler.LambdaLR(resumed, lambda step: 0.5)
    assert {group["lr"] for part in resumed._parts for group in part.param_groups} == {0.05}
    assert scheduler.get_last_lr() == [0.05] * 3


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(OptionError, match="optimizer='adam' is not allowed: use one of adamw, muon"):
        TrainingSettings(optimizer="adam")  # type: ignore[arg-type]
    plan = DEFAULT_PLANS["spec"]
    with pytest.raises(OptionError, match="targets=laws has no place in a drafter of kind spec"):
        replace(plan, objective=replace(plan.objective, targets="laws"))
    with pytest.raises(OptionError, match="targets='law' is not allowed: use one of tokens, laws"):
        replace(plan.objective, targets="law")  # type: ignore[arg-type]
