"""Training of the drafters that read the verifier's states: where blocks start, what learns, and a copy task."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from spec2seq.backends.torch_engine import TorchVerifier
from spec2seq.errors import OptionError
from spec2seq.evaluation.known_outputs import KnownOutputs
from spec2seq.evaluation.walk import walk_drafter
from spec2seq.nn.seq2seq import Seq2Seq
from spec2seq.training.batches import BatchDataset, PairTable, TrainingBatch
from spec2seq.training.block_loss import BlockTargets
from spec2seq.training.block_starts import BlockText, next_starts, num_visible, random_starts
from spec2seq.training.feature_module import FeatureModule
from spec2seq.training.initialisation import commonest_tokens, new_blockwise_heads, new_feature_drafter
from spec2seq.training.modules import DrafterModule
from spec2seq.training.new_modules import new_module
from spec2seq.training.settings import DEFAULT_PLANS, Optimizer, Targets, TrainingSettings
from spec2seq.training.shapes import BlockwiseShape, FeatureShape
from spec2seq.training.trainer import train_module
from spec2seq.types import SourceBatch, Wanted, pad_rows
from tests.unit.test_training_copy import copy_pairs, random_verifier

if TYPE_CHECKING:
    from pathlib import Path

    from spec2seq.training.shapes import Kind

SETTINGS = TrainingSettings(
    steps=300,
    learning_rate=1e-2,
    warmup_steps=50,
    dropout=0.0,
    eval_steps=150,
    save_steps=100,
    num_averaged=2,
    bf16=False,
)


def prepared(
    kind: Kind, *, is_shuffled: bool = False, targets: Targets = "tokens", **shape: Any
) -> tuple[Seq2Seq, DrafterModule, BatchDataset]:
    torch.manual_seed(0)
    verifier = random_verifier()
    table = PairTable(copy_pairs(2000, 1, is_shuffled=is_shuffled), None, 2)
    plan = DEFAULT_PLANS[kind]
    objective = replace(plan.objective, num_cuts=4, slot_weights="decay", targets=targets)
    plan = replace(plan, shape=replace(plan.shape, block_size=10, **shape), objective=objective)
    return verifier, new_module(verifier, plan, table), BatchDataset(table, 32 * 70, 10, 1)


@pytest.mark.parametrize(("is_shuffled", "lowest", "highest"), [(False, 6.0, 11.0), (True, 1.0, 2.0)])
def test_copying_is_learned_from_sources_that_say_something(
    tmp_path: Path, is_shuffled: bool, lowest: float, highest: float
) -> None:
    verifier, module, data = prepared("feature", is_shuffled=is_shuffled)
    held_out = copy_pairs(30, 2, is_shuffled=is_shuffled)
    history = train_module(module, data, held_out, verifier, SETTINGS, tmp_path)
    after = walk_drafter(module.drafter(), held_out, 10, TorchVerifier(verifier))
    assert lowest < after.tokens_per_round < highest
    logged = [entry["eval_tokens_per_round"] for entry in history if "eval_tokens_per_round" in entry]
    assert logged[0] < logged[-1] == after.tokens_per_round or is_shuffled


@pytest.mark.parametrize(("kind", "optimizer"), [("feature", "muon"), ("blockwise", "adamw")])
def test_a_killed_training_ends_as_one_that_was_not(tmp_path: Path, kind: Kind, optimizer: Optimizer) -> None:
    settings = replace(SETTINGS, steps=6, eval_steps=3, save_steps=2, optimizer=optimizer)

    def trained(folder: Path, kill_at: int | None = None) -> DrafterModule:
        def on_log(step: int, logs: dict[str, float]) -> None:
            if step == kill_at:
                raise KeyboardInterrupt

        verifier, module, data = prepared(kind)
        train_module(module, data, copy_pairs(5, 2), verifier, settings, folder, on_log=on_log)
        return module

    whole = trained(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "killed", kill_at=3)
    resumed = trained(tmp_path / "killed")
    assert all(torch.equal(one, two) for one, two in zip(whole.parameters(), resumed.parameters(), strict=True))


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        ("feature", {}),
        ("feature", {"width": 24, "decoder_layers": 2, "states": "last", "coverage": 0.5}),
        ("feature", {"bigram_rank": 0, "states": "none", "block_attention": "causal"}),
        ("blockwise", {}),
        ("feature", {"targets": "laws", "coverage": 0.5}),
        ("blockwise", {"targets": "laws"}),
    ],
)
@pytest.mark.parametrize("autocast", [False, True])
def test_every_weight_learns_and_the_verifiers_stay(kind: Kind, shape: dict[str, Any], autocast: bool) -> None:
    verifier, module, data = prepared(kind, **shape)
    before = [parameter.clone() for parameter in verifier.parameters()]
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(2):  # the table of bigrams says nothing at first
        batch = data[0]
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            module.loss(batch).backward()
        optimizer.step()
    still = [name for name, parameter in module.named_parameters() if not parameter.grad.abs().sum() > 0]  # type: ignore[union-attr]
    assert still == []
    assert all(torch.equal(old, new) for old, new in zip(before, verifier.parameters(), strict=True))


@pytest.mark.parametrize("coverage", [1.0, 0.5])
def test_the_law_of_a_slot_is_the_verifiers_where_its_token_comes_next(coverage: float) -> None:
    verifier, module, data = prepared("feature", targets="laws", coverage=coverage)
    assert isinstance(module, FeatureModule)
    seen: list[BlockTargets] = []
    module._prepare(data[0])
    output = module._output
    assert output is not None
    loss = output.loss
    output.loss = lambda states, targets, *others: seen.append(targets) or loss(states, targets, *others)  # type: ignore[func-returns-value,method-assign]
    module.loss(data[0])
    batch, engine = data[0], TorchVerifier(verifier)
    inputs = torch.cat([batch.decoder_starts[:, None], batch.target_ids], dim=1)[:, :-1]
    positions = torch.arange(inputs.shape[1]).expand_as(inputs)
    encoded = engine.encode(SourceBatch(batch.source_ids, batch.source_lengths))
    cache = engine.new_cache(len(inputs))
    scores = engine.decode(inputs, positions, batch.target_lengths, cache, encoded, Wanted(logits=True)).scores.logits()
    shortlist = module.network.shortlist
    expected = (scores if shortlist is None else scores[..., shortlist]).softmax(-1).flatten(0, 1)
    for targets in seen:
        assert targets.laws is not None
        torch.testing.assert_close(targets.laws, expected)
        ids = targets.places if shortlist is None else shortlist[targets.places]
        is_known = targets.has_target & (targets.places >= 0)
        assert torch.equal(batch.target_ids.flatten()[targets.law_numbers][is_known], ids[is_known])
    assert len(seen) == 2


def known(lengths: list[int], num_forced: list[int]) -> KnownOutputs:
    rows = [list(range(10, 10 + length)) for length in lengths]
    targets, sizes = pad_rows(rows, 1)
    inputs = torch.cat([torch.full((len(rows), 1), 2), targets], dim=1)
    source = SourceBatch.from_lists([[5, 2]] * len(rows), 1)
    return KnownOutputs(source, targets, sizes, inputs, torch.tensor(num_forced))


def test_blocks_hold_what_is_before_and_in_each_slot() -> None:
    text = BlockText.read(known([6, 3], [0, 0]), torch.tensor([[0, 4], [1, 2]]), 3)
    assert text.before.tolist() == [[[2, 10, 11], [13, 14, 15]], [[10, 11, 12], [11, 12, 1]]]
    assert text.targets.tolist() == [[[10, 11, 12], [14, 15, 0]], [[11, 12, 1], [12, 1, 1]]]
    assert text.has_target.tolist() == [[[True] * 3, [True, True, False]], [[True, True, False], [True, False, False]]]
    assert text.places.tolist() == [[[0, 1, 2], [4, 5, 5]], [[7, 8, 9], [8, 9, 10]]]


def test_one_block_starts_at_the_first_token_and_the_others_anywhere_behind_it() -> None:
    outputs = known([6, 3, 1], [1, 0, 0])
    starts = torch.cat([random_starts(outputs, 5) for _ in range(200)], dim=1)
    assert starts[:, ::5].unique(dim=1).tolist() == [[1], [0], [0]]
    for row, expected in enumerate([[1, 2, 3, 4, 5], [0, 1, 2], [0]]):
        others = starts[row].view(200, 5)[:, 1:]
        assert others.unique().tolist() == expected
        assert int(others.flatten().bincount()[expected].min()) > 600 / len(expected)


def test_a_single_block_starts_anywhere() -> None:
    starts = torch.cat([random_starts(known([6, 3], [1, 0]), 1) for _ in range(400)], dim=1)
    for row, expected in enumerate([[1, 2, 3, 4, 5], [0, 1, 2]]):
        assert starts[row].unique().tolist() == expected
        assert int(starts[row].bincount()[expected].min()) > 300 / len(expected)


def test_next_blocks_start_behind_what_was_right_and_one_more() -> None:
    outputs = known([9, 4], [0, 1])
    starts, num_right = torch.tensor([[0, 2, 5], [1, 2, 3]]), torch.tensor([[3, 0, 2], [0, 1, 0]])
    following = next_starts(outputs, starts, num_right)
    assert following[0].tolist() == [4, 3, 8]
    assert following[1, 0].item() == 2
    assert set(following[1, 1:].tolist()) <= {1, 2, 3}  # behind the end: anywhere


def test_a_first_round_sees_nothing() -> None:
    outputs = known([9, 9], [0, 2])
    assert num_visible(outputs, torch.tensor([[0, 1, 4], [2, 3, 8]])).tolist() == [[0, 1, 4], [0, 3, 8]]


def test_a_shortlist_covers_what_it_is_to_cover() -> None:
    counts = torch.ones(500, dtype=torch.long)
    counts[100:180] = 50
    assert commonest_tokens(counts, 0.5).tolist() == [*range(100, 164)]
    assert commonest_tokens(counts, 0.9).tolist() == [*range(48), *range(100, 180)]
    assert len(commonest_tokens(counts, 1.0)) == 500
    assert len(commonest_tokens(torch.ones(50), 0.2)) == 50  # there are no 64


def test_a_new_drafter_starts_from_the_verifiers_last_layers() -> None:
    verifier = random_verifier()
    counts = torch.ones(50)
    network = new_feature_drafter(verifier, FeatureShape(4), counts)
    stored, layer = verifier.decoder.layers[-1], network.layers[0]
    assert all(torch.equal(one, two) for one, two in zip(stored.parameters(), layer.parameters(), strict=True))
    assert torch.equal(network.prefix_reader.weight, stored.attention.qkv_weight[32:])
    assert torch.equal(network.source_reader.weight, verifier.cross.weight)
    assert not any(parameter.isnan().any() for parameter in network.parameters())
    other = new_feature_drafter(verifier, FeatureShape(4, width=16, decoder_layers=2), counts)
    assert other.layers[0].attention.qkv_weight.shape == (48, 16)
    assert not any(parameter.isnan().any() for parameter in other.parameters())


def test_new_heads_say_what_the_verifier_says() -> None:
    verifier = random_verifier()
    heads = new_blockwise_heads(verifier, BlockwiseShape(3))
    states = torch.randn(2, 32)
    logits = heads.draft(states, 3).logits()
    torch.testing.assert_close(logits, verifier.project(states)[:, None].expand(-1, 3, -1))


@pytest.mark.parametrize("coverage", [0.0, 1.5])
def test_shares_that_cannot_be(coverage: float) -> None:
    with pytest.raises(OptionError, match=f"coverage={coverage} is not allowed"):
        FeatureShape(coverage=coverage)


def test_batches_of_any_padding_give_one_loss() -> None:
    _, module, data = prepared("blockwise")
    batch = data[0]
    wider = TrainingBatch(
        torch.nn.functional.pad(batch.source_ids, (0, 8), value=1),
        batch.source_lengths,
        torch.nn.functional.pad(batch.target_ids, (0, 8), value=1),
        batch.target_lengths,
        batch.num_forced,
        batch.decoder_starts,
    )
    losses = []
    for one in (batch, wider):
        torch.manual_seed(3)
        losses.append(float(module.loss(one).detach()))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
