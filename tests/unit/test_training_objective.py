"""Block masking, glancing and the loss, against examples worked out by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from spec2seq.drafter_config import SpecDrafterConfig
from spec2seq.errors import OptionError
from spec2seq.testing import tiny_config
from spec2seq.training.batches import TrainingBatch
from spec2seq.training.block_mask import MaskedBlock, mask_block, prefix_lengths
from spec2seq.training.glancing import choose_revealed, glancing_ratio, num_revealed
from spec2seq.training.losses import slot_weights, smoothed_cross_entropy, weighted_mean
from spec2seq.training.objective import drafter_loss
from spec2seq.training.settings import Objective
from spec2seq.types import pad_rows
from tests.tiny_drafters import tiny_drafter

TARGETS = [[11, 12, 13, 14, 2], [21, 22, 2]]


def bools(text: str) -> list[bool]:
    return [character == "1" for character in text]


@pytest.mark.parametrize(
    ("length", "forced", "limit", "uniform", "start"),
    [
        (5, 0, 99, 0.0, 4),  # cut 1
        (5, 0, 99, 0.5, 2),  # cut int(2.5) + 1
        (5, 0, 99, 0.99, 0),  # cut 5
        (1, 0, 99, 0.7, 0),
        (5, 1, 99, 0.5, 2),  # 4 tokens to draft, cut 3
        (5, 1, 99, 0.99, 1),
        (9, 0, 3, 0.0, 3),  # as if there were 4 tokens: a block behind 3 is the last that has positions
        (9, 0, 3, 0.5, 1),
        (9, 1, 3, 0.99, 1),
    ],
)
def test_where_a_block_starts(length: int, forced: int, limit: int, uniform: float, start: int) -> None:
    arguments = torch.tensor([length]), torch.tensor([forced]), limit, torch.tensor([uniform])
    assert prefix_lengths(*arguments).tolist() == [start]


def test_every_start_is_as_likely() -> None:
    uniform = torch.arange(8000) / 8000
    starts = prefix_lengths(torch.full((8000,), 8), torch.zeros(8000, dtype=torch.long), 99, uniform)
    assert starts.bincount().tolist() == [1000] * 8
    largest = torch.nextafter(torch.tensor(1.0), torch.tensor(0.0))
    lengths = torch.arange(1, 2000)
    assert prefix_lengths(lengths, torch.zeros_like(lengths), 9999, largest.expand(1999)).tolist() == [0] * 1999


def block_of(starts: list[int], size: int = 3) -> MaskedBlock:
    return mask_block(*pad_rows(TARGETS, 1), torch.tensor(starts), size)


def test_a_beginning_and_masked_slots_behind_it() -> None:
    block = block_of([1, 2])
    assert block.ids.tolist() == [[11, 0, 0, 0, 0], [21, 22, 0, 0, 0]]
    assert block.is_slot.tolist() == [bools("01110"), bools("00111")]
    assert block.lengths.tolist() == [4, 5]
    assert block.targets.tolist() == [[12, 13, 14], [2, 1, 1]]
    assert block.has_target.tolist() == [bools("111"), bools("100")]
    assert block.is_masked.tolist() == [bools("111"), bools("100")]


def test_slots_may_go_past_every_target_or_end_before_it() -> None:
    assert block_of([4, 0], 4).has_target.tolist() == [bools("1000"), bools("1110")]
    block = block_of([0, 0], 1)
    assert (block.ids.tolist(), block.targets.tolist(), block.lengths.tolist()) == ([[0], [0]], [[11], [21]], [1, 1])


def test_revealed_slots_are_ordinary_tokens() -> None:
    block = block_of([1, 0]).reveal(torch.tensor([bools("010"), bools("001")]))
    assert block.ids.tolist() == [[11, 0, 13, 0], [0, 0, 2, 0]]
    assert block.is_slot.tolist() == [bools("0101"), bools("1100")]
    assert block.is_masked.tolist() == [bools("101"), bools("110")]
    assert block.lengths.tolist() == [4, 3]


def test_half_as_many_as_were_wrong_are_revealed() -> None:
    targets = torch.tensor([[1, 2, 3, 4, 5]] * 4)
    guesses = torch.tensor([[1, 2, 3, 4, 5], [9, 9, 9, 9, 9], [1, 9, 3, 9, 9], [1, 2, 9, 9, 9]])
    has_target = torch.tensor([bools("11111"), bools("11111"), bools("11111"), bools("11100")])
    assert num_revealed(guesses, targets, has_target, 0.5).tolist() == [0, 2, 1, 0]
    assert num_revealed(guesses, targets, has_target, 0.3).tolist() == [0, 1, 0, 0]
    assert [glancing_ratio(progress, 0.5, 0.3) for progress in (0.0, 0.5, 1.0)] == pytest.approx([0.5, 0.4, 0.3])


def test_revealed_slots_are_drawn_from_all_with_a_target() -> None:
    noise = torch.tensor([[0.5, 0.1, 0.9, 0.0], [0.5, 0.1, 0.9, 0.0]])
    has_target = torch.tensor([bools("1111"), bools("1110")])
    chosen = choose_revealed(torch.tensor([2, 2]), has_target, noise)
    assert chosen.tolist() == [bools("0101"), bools("1100")]
    assert not choose_revealed(torch.tensor([0, 0]), has_target, noise).any()


def test_the_loss_of_a_slot() -> None:
    probabilities = torch.tensor([[0.5, 0.25, 0.125, 0.125]])
    logits = probabilities.log() + 3.0
    mean = (math.log(2) + math.log(4) + 2 * math.log(8)) / 4
    for target, own in enumerate([math.log(2), math.log(4), math.log(8), math.log(8)]):
        loss = smoothed_cross_entropy(logits, torch.tensor([target]), 0.1)
        assert loss.tolist() == pytest.approx([0.9 * own + 0.1 * mean])


def test_how_much_slots_count() -> None:
    confidences = torch.tensor([[0.5, 0.4, 1.0, 0.3]])
    assert slot_weights("uniform", confidences).tolist() == [[1, 1, 1, 1]]
    assert slot_weights("survival", confidences)[0].tolist() == pytest.approx([1, 0.5, 0.2, 0.2])
    decay = [1, math.exp(-0.25), math.exp(-0.5), math.exp(-0.75)]
    assert slot_weights("decay", confidences)[0].tolist() == pytest.approx(decay)
    assert weighted_mean(torch.tensor([1.0, 4.0]), torch.tensor([1.0, 0.5])).item() == pytest.approx(2.0)
    assert weighted_mean(torch.tensor([]), torch.tensor([])).item() == 0.0


@dataclass
class FakeSource:
    rows: list[int]

    def select_rows(self, rows: Tensor) -> FakeSource:
        return FakeSource([self.rows[i] for i in rows.tolist()])


class FakeNetwork:
    """Guesses id 2 in every slot with probability 3/4, and writes down what it is asked."""

    def __init__(self, block_size: int) -> None:
        self.config = SpecDrafterConfig(tiny_config(), block_size)
        self.calls: list[dict[str, Any]] = []
        self.num_encoded = 0

    def encode_ids(self, ids: Tensor, lengths: Tensor) -> FakeSource:
        self.num_encoded += 1
        return FakeSource(list(range(len(ids))))

    def decode(self, ids: Tensor, is_slot: Tensor, lengths: Tensor, source: FakeSource) -> Tensor:
        seen = {
            "ids": ids.tolist(),
            "is_slot": is_slot,
            "rows": source.rows,
            "starts": lengths - self.config.block_size,
        }
        self.calls.append({**seen, "grad": torch.is_grad_enabled(), "dropout": torch.rand(3).tolist()})
        return torch.zeros((*ids.shape, 1))

    def project(self, states: Tensor) -> Tensor:
        logits = torch.full((*states.shape[:-1], 50), math.log(0.25 / 49))
        logits[..., 2] = math.log(0.75)
        return logits


def batch_of(targets: list[list[int]]) -> TrainingBatch:
    rows = torch.zeros(len(targets), dtype=torch.long)
    return TrainingBatch(*pad_rows([[5, 2]] * len(targets), 1), *pad_rows(targets, 1), rows, rows + 2)


def loss_of(network: FakeNetwork, targets: list[list[int]], objective: Objective, progress: float = 0.0) -> float:
    return float(drafter_loss(network, batch_of(targets), objective, progress))  # type: ignore[arg-type]


def test_a_step_glances_with_the_dropout_of_the_pass_that_counts() -> None:
    network = FakeNetwork(8)
    loss_of(network, [[7, 7, 7, 7, 7, 7, 7, 2]] * 20, Objective())
    first, second = network.calls
    assert (first["grad"], second["grad"]) == (False, True)
    assert first["dropout"] == second["dropout"]
    assert first["starts"].tolist() == second["starts"].tolist()
    assert len(set(first["starts"].tolist())) > 3
    for row, start in enumerate(first["starts"].tolist()):
        num_wrong = 8 - start - 1  # the end of sequence is guessed
        num_shown = int((first["is_slot"][row] & ~second["is_slot"][row]).sum())
        assert num_shown == num_wrong // 2
    assert (first["is_slot"] & ~second["is_slot"]).any(0).sum() > 3  # not always the same ones


def test_the_loss_counts_masked_slots_with_a_target_only() -> None:
    # one token: its only block is one slot with a target and two behind the end
    network = FakeNetwork(3)
    right, wrong = math.log(4 / 3), math.log(49 * 4)
    mean = (right + 49 * wrong) / 50
    assert loss_of(network, [[2]], Objective()) == pytest.approx(0.9 * right + 0.1 * mean, rel=1e-5)
    assert loss_of(network, [[2]], Objective(label_smoothing=0.0)) == pytest.approx(right, rel=1e-5)
    assert loss_of(network, [[2], [7]], Objective(label_smoothing=0.0)) == pytest.approx((right + wrong) / 2, rel=1e-5)


def test_a_guess_weighs_less_behind_one_that_is_unlikely_to_be_kept() -> None:
    unlikely = 0.25 / 49
    right, wrong = -math.log(0.75), -math.log(unlikely)
    losses = set()
    for _ in range(20):
        network = FakeNetwork(2)
        objective = Objective(0.0, 0.0, 0.0, slot_weights="survival")
        losses.add(round(loss_of(network, [[7, 2]], objective), 4))
        assert len(network.calls) == 1  # without glancing there is no first pass
    # a block of both tokens, or of the end of sequence alone
    assert losses == {round((wrong + unlikely * right) / (1 + unlikely), 4), round(right, 4)}


def test_several_cuts_share_the_encoder() -> None:
    network = FakeNetwork(3)
    loss_of(network, [[7] * 20, [8] * 20], Objective(num_cuts=4))
    assert network.num_encoded == 1
    assert network.calls[0]["rows"] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert len(set(network.calls[0]["starts"][:4].tolist())) > 1
    for row, ids in zip(network.calls[0]["rows"], network.calls[0]["ids"], strict=True):
        assert set(ids) <= {0, [7, 8][row]}


def test_every_weight_learns() -> None:
    network = tiny_drafter().requires_grad_(True)
    zeros = torch.tensor([0, 0])
    batch = TrainingBatch(*pad_rows([[5, 6, 2], [7, 2]], 1), *pad_rows(TARGETS, 1), zeros, zeros + 2)
    drafter_loss(network, batch, Objective(num_cuts=3), 0.5).backward()
    still = [name for name, parameter in network.named_parameters() if not parameter.grad.abs().sum() > 0]  # type: ignore[union-attr]
    assert still == []


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"label_smoothing": 1.0}, "label_smoothing=1.0"),
        ({"last_glancing": -0.1}, "last_glancing=-0.1"),
        ({"num_cuts": 0}, "num_cuts=0"),
        ({"slot_weights": "linear"}, "use one of uniform, survival, decay"),
    ],
)
def test_objectives_that_cannot_be(values: dict[str, Any], word: str) -> None:
    with pytest.raises(OptionError, match=word):
        Objective(**values)
