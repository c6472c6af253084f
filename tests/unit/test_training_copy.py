"""Training end to end on a copy task: a drafter that learns to copy, and one whose sources say nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file

from spec2seq.backends.torch_engine import TorchVerifier
from spec2seq.errors import OptionError
from spec2seq.evaluation.walk import WalkFigures, walk_drafter
from spec2seq.nn.seq2seq import Seq2Seq
from spec2seq.nn.sublayer import set_dropout
from spec2seq.testing import tiny_config
from spec2seq.training.batches import BatchDataset, PairTable
from spec2seq.training.initialisation import new_spec_drafter
from spec2seq.training.modules import SpecModule
from spec2seq.training.records import DistilledPair
from spec2seq.training.settings import Objective, TrainingSettings
from spec2seq.training.shapes import SpecShape
from spec2seq.training.trainer import checkpoints, load_average, train_module

if TYPE_CHECKING:
    from pathlib import Path

    from spec2seq.nn.spec_drafter import SpecDrafterNetwork

SETTINGS = TrainingSettings(
    steps=100,
    learning_rate=3e-3,
    warmup_steps=20,
    dropout=0.0,
    eval_steps=50,
    save_steps=20,
    num_averaged=2,
    bf16=False,
)


def copy_pairs(num_pairs: int, seed: int, *, is_shuffled: bool = False) -> list[DistilledPair]:
    """Targets of 30 tokens out of 50; the sources are the same, or those of other targets."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(3, 50, (num_pairs, 29), generator=generator).tolist()
    order = torch.randperm(num_pairs, generator=generator).tolist() if is_shuffled else range(num_pairs)
    return [
        DistilledPair(i, "", "", [*targets[other], 2], [*targets[i], 2], 0, "eos", False)
        for i, other in enumerate(order)
    ]


def random_verifier() -> Seq2Seq:
    sizes = {"d_model": 32, "head_dim": 16, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    config = replace(tiny_config(max_positions=40), encoder_layers=1, decoder_layers=1, **sizes)  # type: ignore[arg-type]
    network = Seq2Seq(config)
    for name, parameter in network.named_parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0.0, parameter.shape[1] ** -0.5)
        else:
            parameter.data.fill_(1.0 if name.endswith("norm.weight") else 0.0)
    return network


def prepared(*, is_shuffled: bool = False) -> tuple[Seq2Seq, SpecModule, BatchDataset]:
    torch.manual_seed(0)
    verifier = random_verifier()
    module = SpecModule(new_spec_drafter(verifier, SpecShape(10, 1)), Objective())
    pairs = copy_pairs(2000, 1, is_shuffled=is_shuffled)
    return verifier, module, BatchDataset(PairTable(pairs, 40, 2), 32 * 70, 10, 1)


def walked(module: SpecModule, verifier: Seq2Seq, pairs: list[DistilledPair]) -> WalkFigures:
    return walk_drafter(module.drafter(), pairs, 10, TorchVerifier(verifier))


@pytest.mark.parametrize(("is_shuffled", "lowest", "highest"), [(False, 6.0, 11.0), (True, 1.0, 2.0)])
def test_copying_is_learned_from_sources_that_say_something(
    tmp_path: Path, is_shuffled: bool, lowest: float, highest: float
) -> None:
    verifier, module, data = prepared(is_shuffled=is_shuffled)
    held_out = copy_pairs(30, 2, is_shuffled=is_shuffled)
    before = walked(module, verifier, held_out).tokens_per_round
    history = train_module(module, data, held_out, verifier, SETTINGS, tmp_path)
    after = walked(module, verifier, held_out)
    assert before < 2
    assert lowest < after.tokens_per_round < highest
    logged = [entry for entry in history if "eval_tokens_per_round" in entry]
    assert [entry["step"] for entry in logged] == [50, 100]
    assert logged[-1]["eval_tokens_per_round"] == after.tokens_per_round
    assert [logged[-1][f"eval_survival_{i}"] for i in range(1, 11)] == after.survival
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-100", "checkpoint-80"]


def weights(module: SpecModule) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}


def trained(folder: Path, kill_at: int | None = None) -> tuple[SpecModule, list[dict[str, float]]]:
    settings = replace(SETTINGS, steps=12, eval_steps=3, save_steps=4, dropout=0.1)

    def on_log(step: int, logs: dict[str, float]) -> None:
        if step == kill_at:
            raise KeyboardInterrupt

    verifier, module, data = prepared()
    return module, train_module(module, data, copy_pairs(5, 2), verifier, settings, folder, on_log=on_log)


def test_a_killed_training_ends_as_one_that_was_not(tmp_path: Path) -> None:
    whole, history = trained(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "killed", kill_at=9)
    # a kill while the next checkpoint was written
    (tmp_path / "killed" / "checkpoint-9").mkdir()
    (tmp_path / "killed" / "checkpoint-9" / "model.safetensors").write_bytes(b"half")
    resumed, resumed_history = trained(tmp_path / "killed")
    assert [path.name for path in checkpoints(tmp_path / "killed")] == ["checkpoint-8", "checkpoint-12"]
    assert all(torch.equal(one, two) for one, two in zip(whole.parameters(), resumed.parameters(), strict=True))
    looks = [[entry for entry in log if "eval_survival_1" in entry] for log in (history, resumed_history)]
    assert looks[0] == looks[1]
    assert [entry["step"] for entry in looks[0]] == [3, 6, 9, 12]
    again, same_history = trained(tmp_path / "killed")
    assert all(torch.equal(one, two) for one, two in zip(whole.parameters(), again.parameters(), strict=True))
    assert same_history[-1]["step"] == 12


def test_the_drafter_is_the_mean_of_the_last_checkpoints(tmp_path: Path) -> None:
    module, _ = trained(tmp_path)
    last = weights(module)
    assert load_average(module, tmp_path, 1) == 1
    assert all(torch.equal(last[name], parameter) for name, parameter in module.named_parameters())
    assert load_average(module, tmp_path, 5) == 2
    states = [load_file(tmp_path / f"checkpoint-{step}" / "model.safetensors") for step in (8, 12)]
    for name, parameter in module.named_parameters():
        mean = (states[0][name] + states[1][name]) / 2
        assert torch.allclose(parameter, mean, atol=1e-7), name
    assert len({id(parameter) for parameter in module.parameters()}) == len(states[0])  # tied ones once


def test_a_new_drafter_starts_from_the_verifiers_encoder() -> None:
    verifier = random_verifier()
    network = new_spec_drafter(verifier, SpecShape(7, 3))
    assert not any(parameter.isnan().any() for parameter in network.parameters())
    stored = dict(verifier.encoder.named_parameters())
    assert all(torch.equal(stored[name], parameter) for name, parameter in network.encoder.named_parameters())
    assert torch.equal(network.output_weight, verifier.output_weight)
    assert (len(network.decoder.layers), network.config.block_size, network.config.max_positions) == (3, 7, 47)
    assert torch.equal(network.decoder.embedding.positions[:40], network.source_position_rows(40))
    assert all(torch.equal(*pair) for pair in zip(network.parameters(), same(verifier).parameters(), strict=True))
    with pytest.raises(OptionError, match="encoder_layers=2 exceeds the 1 of the verifier"):
        new_spec_drafter(verifier, SpecShape(7, 3, 2))


def same(verifier: Seq2Seq) -> SpecDrafterNetwork:
    return new_spec_drafter(verifier, SpecShape(7, 3))


def test_dropout_is_for_training_only() -> None:
    network = new_spec_drafter(random_verifier(), SpecShape(4, 2))
    ids, lengths = torch.tensor([[5, 6, 7]]), torch.tensor([3])
    is_slot = torch.tensor([[False, True, True]])

    def states() -> torch.Tensor:
        return network.decode(ids, is_slot, lengths, network.encode_ids(ids, lengths))

    plain = states()
    set_dropout(network, 0.5)
    assert not torch.equal(states(), states())
    network.eval()
    assert torch.equal(states(), plain)
    set_dropout(network, 0.0)
    network.train()
    assert torch.equal(states(), plain)
