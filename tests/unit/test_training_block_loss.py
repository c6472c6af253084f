"""The loss of blocks behind a frozen projection: by hand, and against what autograd makes of plain operations."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from spec2seq.training.block_loss import BlockTargets, Followers, FrozenOutput
from spec2seq.training.losses import slot_weights
from spec2seq.training.settings import SlotWeights

NUM_BLOCKS, SIZE, WIDTH, RANK, VOCABULARY, NUM_LAWS = 70, 5, 6, 3, 11, 40


def case(seed: int = 0) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    shape = (NUM_BLOCKS, SIZE)
    places = torch.randint(-1, VOCABULARY, shape)
    lengths = torch.randint(1, SIZE + 1, (NUM_BLOCKS, 1))
    return {
        "states": torch.randn(*shape, WIDTH, dtype=torch.float64, requires_grad=True),
        "before": torch.randn(*shape, RANK, dtype=torch.float64, requires_grad=True),
        "after": torch.randn(VOCABULARY, RANK, dtype=torch.float64, requires_grad=True),
        "weight": torch.randn(VOCABULARY, WIDTH, dtype=torch.float64),
        "bias": torch.randn(VOCABULARY, dtype=torch.float64),
        "places": places,
        "has_target": torch.arange(SIZE) < lengths,
        "law_numbers": torch.randint(0, NUM_LAWS, shape),
        "laws": torch.randn(NUM_LAWS, VOCABULARY, dtype=torch.float64).softmax(-1),
    }


def targets_of(values: dict[str, Tensor], *, with_laws: bool = False) -> BlockTargets:
    laws = values["laws"] if with_laws else None
    return BlockTargets(values["places"], values["has_target"], values["law_numbers"], laws)


def plain(values: dict[str, Tensor], kind: SlotWeights, *, with_laws: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Loss, weight and right slots per block, slot after slot."""
    scores = values["states"] @ values["weight"].t() + values["bias"] + values["before"] @ values["after"].t()
    total = mass = torch.zeros((), dtype=torch.float64)
    counts = []
    for block in range(NUM_BLOCKS):
        alive, kept, right = torch.ones((), dtype=torch.float64), True, 0
        for slot in range(SIZE):
            place = int(values["places"][block, slot])
            if not values["has_target"][block, slot]:
                break
            if place < 0:
                kept = False
                if kind == "survival":
                    break
                continue
            to_learn = values["laws"][values["law_numbers"][block, slot]] if with_laws else torch.tensor(place)
            loss, of_right = (F.cross_entropy(scores[block, slot], each) for each in (to_learn, torch.tensor(place)))
            factor = {"uniform": 1.0, "decay": math.exp(-slot / 4), "survival": alive}[kind]
            total, mass = total + factor * loss, mass + factor
            alive = alive * (-of_right).exp().detach()
            kept = kept and int(scores[block, slot].argmax()) == place
            right += kept
        counts.append(right)
    return total, mass, torch.tensor(counts)


@pytest.mark.parametrize("with_laws", [False, True], ids=["tokens", "laws"])
@pytest.mark.parametrize("kind", ["uniform", "decay", "survival"])
def test_loss_and_gradients_are_those_of_plain_operations(kind: SlotWeights, with_laws: bool) -> None:
    values = case()
    output = FrozenOutput(values["weight"], values["bias"], RANK, torch.float64)
    targets = targets_of(values, with_laws=with_laws)
    learning = [values[name] for name in ("states", "before", "after")]
    found = output.loss(values["states"], targets, kind, Followers(values["before"], values["after"]))
    total, mass, num_right = plain(values, kind, with_laws=with_laws)
    torch.testing.assert_close(found.total, total)
    torch.testing.assert_close(found.weight, mass)
    assert found.num_right.tolist() == num_right.tolist()
    gradients = torch.autograd.grad(found.total / found.weight, learning)
    for mine, expected in zip(gradients, torch.autograd.grad(total / mass, learning), strict=True):
        torch.testing.assert_close(mine, expected)


def test_without_a_table() -> None:
    values = case(1)
    nothing = {"before": torch.zeros_like(values["before"]), "after": torch.zeros_like(values["after"])}
    output = FrozenOutput(values["weight"], None, 0, torch.float64)
    targets = targets_of(values)
    found = output.loss(values["states"], targets, "survival")
    total, mass, _ = plain({**values, **nothing, "bias": torch.zeros(VOCABULARY, dtype=torch.float64)}, "survival")
    torch.testing.assert_close(found.total, total)
    (mine,) = torch.autograd.grad(found.total, [values["states"]])
    (expected,) = torch.autograd.grad(total, [values["states"]])
    torch.testing.assert_close(mine, expected)
    torch.testing.assert_close(found.weight, mass)


def test_survival_by_hand() -> None:
    """Slots guessed with 1/2, 1/4 and 1/4 count 1, 1/2 and 1/8."""
    scores = torch.tensor([[1.0, 1.0], [0.0, math.log(3.0)], [math.log(3.0), 0.0]])
    output = FrozenOutput(torch.eye(2), None, 0, torch.float32)
    places = torch.tensor([[0, 0, 1]])
    targets = BlockTargets(places, torch.ones(1, 3, dtype=torch.bool), torch.zeros_like(places))
    found = output.loss(scores[None].requires_grad_(True), targets, "survival")
    expected = math.log(2) + 0.5 * math.log(4) + 0.125 * math.log(4)
    assert float(found.total) == pytest.approx(expected)
    assert float(found.weight) == pytest.approx(1.625)
    assert found.num_right.tolist() == [1]  # equal scores may pass, worse ones do not


def test_laws_by_hand() -> None:
    """One slot of scores 0 and log 3, chances 1/4 and 3/4, that is to learn chances of 1/2 each."""
    scores, half = torch.tensor([[[0.0, math.log(3.0)]]], requires_grad=True), torch.tensor([[0.5, 0.5]])
    output = FrozenOutput(torch.eye(2), None, 0, torch.float32)
    first = torch.zeros(1, 1, dtype=torch.long)
    found = output.loss(scores, BlockTargets(first, first == 0, first, half), "survival")
    assert float(found.total) == pytest.approx(0.5 * math.log(4) + 0.5 * math.log(4 / 3))
    (gradient,) = torch.autograd.grad(found.total, [scores])
    assert gradient.flatten().tolist() == pytest.approx([-0.25, 0.25])
    assert output.laws(scores[0].detach()).flatten().tolist() == pytest.approx([0.25, 0.75])


def test_products_in_bfloat16_are_close() -> None:
    values: dict[str, Any] = {
        name: tensor.float().detach() if tensor.is_floating_point() else tensor for name, tensor in case(2).items()
    }
    states = values["states"].requires_grad_(True)
    targets = targets_of(values)
    followers = Followers(values["before"], values["after"])
    gradients = []
    for dtype in (torch.float32, torch.bfloat16):
        output = FrozenOutput(values["weight"], values["bias"], RANK, dtype)
        found = output.loss(states, targets, "decay", followers)
        gradients.append(torch.autograd.grad(found.total, [states])[0])
    assert gradients[1].dtype == torch.float32
    assert float((gradients[0] - gradients[1]).norm() / gradients[0].norm()) < 0.02


def test_weights_follow_the_rule_of_the_other_losses() -> None:
    confidences = torch.tensor([[0.5, 0.25, 0.9]])
    assert slot_weights("survival", confidences).tolist() == [[1.0, 0.5, 0.125]]
