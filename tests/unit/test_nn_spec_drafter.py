"""The drafting network: what plain functions compute one by one, it computes in ragged batches."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from spec2seq.drafter_config import SpecDrafterConfig
from spec2seq.errors import OptionError
from spec2seq.nn.draft_source import EncodedDraftSource
from spec2seq.nn.spec_drafter import DraftEmbedding, SpecDrafterNetwork
from spec2seq.testing import tiny_config
from spec2seq.types import Prefix, SourceBatch, Wanted, pad_rows
from spec2seq.weights.fairseq_checkpoint import read_checkpoint
from spec2seq.weights.fairseq_networks import build_drafter
from spec2seq.weights.fairseq_settings import Vocabularies
from tests.naive_fairseq import UNKNOWN, NaiveModel
from tests.tiny_drafters import tiny_drafter

PAIR = Path(__file__).parents[1] / "fixtures" / "fairseq_pair"
SOURCES = [[5, 9, 6, 30, 12, 2], [7, 2], [8, 8, 21, 2]]
PREFIXES = [[2, 11], [2, 14, 9, 9, 20, 3, 16], [2]]  # start token first; 3 is `<unk>`

ENCODERS = {
    "learned": {},
    "embedding norm": {"has_embedding_norm": True, "embedding_scale": 4.0, "position_offset": 2},
    "sinusoidal, norm first": {"positions": "sinusoidal", "is_pre_norm": True, "has_final_norm": True},
    "fairseq's sinusoids": {"positions": "fairseq_sinusoidal", "position_offset": 2, "activation": "relu"},
    "T5's": {
        "positions": "relative",
        "norm": "rms",
        "has_bias": False,
        "is_attention_scaled": False,
        "is_pre_norm": True,
        "has_final_norm": True,
        "is_gated_ffn": True,
        "head_dim": 6,
        "encoder_head_dim": 6,
    },
    "two vocabularies": {"shares_embeddings": False, "shares_vocabulary": False, "source_vocab_size": 47},
    "output of its own": {"ties_output": False, "has_output_bias": True},
}


make_network = partial(tiny_drafter, dtype=torch.float64)


def draft(network: SpecDrafterNetwork, sources: list[list[int]], prefixes: list[list[int]], k: int) -> Tensor:
    """Logits of k slots [B, k, V] in the network's type, before they become scores.

    The prefixes are padded with an ordinary id, as stale ones follow in the loop.
    """
    projected: list[Tensor] = []
    project = network.project
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network, "project", lambda states: (projected.append(project(states)), projected[-1])[1])
        source = network.encode(SourceBatch.from_lists(sources, 1))
        scores = network.draft(Prefix(*pad_rows(prefixes, 17)), k, source, Wanted(logits=True))
    assert torch.equal(scores.logits(), projected[0].float())
    return projected[0]


@pytest.fixture(autouse=True)
def _inference() -> object:
    with torch.no_grad():
        yield


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("slot_token_id", [None, 3])
def test_a_ragged_batch_equals_its_rows(encoder: str, slot_token_id: int | None) -> None:
    network = make_network(ENCODERS[encoder], slot_token_id=slot_token_id)
    together = draft(network, SOURCES, PREFIXES, 5)
    assert together.shape == (3, 5, 50)  # only the slots are projected
    assert together.std(-1).min() > 0.1
    for i, (source, prefix) in enumerate(zip(SOURCES, PREFIXES, strict=True)):
        alone = draft(network, [source], [prefix], 5)
        torch.testing.assert_close(together[i : i + 1], alone, rtol=0, atol=1e-11)


def test_the_released_variant_is_the_released_code() -> None:
    checkpoint = read_checkpoint(PAIR / "drafter.pt")
    checkpoint = replace(checkpoint, tensors={name: x.double() for name, x in checkpoint.tensors.items()})
    network, naive = build_drafter(checkpoint, Vocabularies(40, 40, True)), NaiveModel(checkpoint.tensors, 2, 1.0)
    logits = draft(network, SOURCES, PREFIXES, 4)
    for row, source, prefix in zip(logits, SOURCES, PREFIXES, strict=True):
        ids = torch.tensor(source)
        slots = torch.tensor([*prefix[1:], *[UNKNOWN] * 4])
        expected = naive.draft_logits(ids, naive.encode(ids), slots)[-4:]
        torch.testing.assert_close(row, expected, rtol=0, atol=1e-10)


def test_the_soft_copy_mixes_source_embeddings_by_position() -> None:
    config = SpecDrafterConfig(replace(tiny_config(max_positions=4), d_model=2, embedding_scale=2.0), 2)
    tokens = nn.Parameter(torch.tensor([[1.0, 0.0], [0.0, 1.0], [5.0, 5.0]]))
    embedding = DraftEmbedding(config, tokens, torch.float32)
    embedding.positions.data = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    embedding.mask_vector.data = torch.tensor([0.5, 0.0])
    log3 = torch.tensor(3.0).log()
    keys = torch.stack([torch.stack([log3, torch.tensor(0.0)]), torch.zeros(2), torch.tensor([9.0, 9.0])])[None]
    values = torch.tensor([[[2.0, 0.0], [0.0, 2.0], [7.0, 7.0]]])
    # two source tokens and a padded one, of which nothing may be seen
    source = EncodedDraftSource(torch.tensor([2]), torch.zeros(0, 2, 1, 1, 3, 2), keys, values)
    states = embedding(torch.tensor([[1, 0, 2]]), torch.tensor([[True, True, False]]), source)
    # slot 0 weighs the two tokens 3 to 1, slot 1 has no preference, and a token is its own embedding, scaled
    expected = torch.tensor([[[1.5 + 0.5, 0.5], [1.0 + 0.5, 1.0], [10.0, 10.0]]])
    torch.testing.assert_close(states, expected)


def test_only_slots_are_guessed_unless_an_id_marks_them() -> None:
    plain, marked = make_network(), make_network(slot_token_id=3)
    with_unknown, without = [[2, 9, 3, 8]], [[2, 9, 4, 8]]
    assert not torch.allclose(draft(plain, SOURCES[:1], with_unknown, 3), draft(marked, SOURCES[:1], with_unknown, 3))
    torch.testing.assert_close(draft(plain, SOURCES[:1], without, 3), draft(marked, SOURCES[:1], without, 3))
    # what such an id stands for makes no difference once it marks a slot
    marked.decoder.embedding.tokens.data[3] += 1.0
    other = make_network(slot_token_id=3)
    changed, before = (draft(n, SOURCES[:1], with_unknown, 3)[..., :3] for n in (marked, other))
    torch.testing.assert_close(changed, before)


def test_prefix_and_slots_see_each_other_and_nothing_else() -> None:
    network = make_network()
    base = draft(network, SOURCES[:1], [[2, 9, 8, 7]], 3)
    assert not torch.allclose(base, draft(network, SOURCES[:1], [[2, 9, 8, 6]], 3))  # the prefix
    assert not torch.allclose(base, draft(network, SOURCES[:1], [[2, 9, 8, 7]], 4)[:, :3])  # the number of slots
    torch.testing.assert_close(base, draft(network, SOURCES[:1], [[49, 9, 8, 7]], 3))  # the start token is not read
    assert not torch.allclose(base, draft(network, SOURCES[1:2], [[2, 9, 8, 7]], 3))  # the source


def test_a_row_past_the_positions_does_not_disturb_the_others() -> None:
    network = make_network(max_positions=12)
    prefixes = [[2, 9, 8, 7], [2, *[11] * 30], [2, *range(5, 12)]]
    logits = draft(network, SOURCES, prefixes, 5)
    for i in (0, 2):  # the last one fits to the last position
        torch.testing.assert_close(logits[i : i + 1], draft(network, SOURCES[i : i + 1], prefixes[i : i + 1], 5))


def test_longer_sources_are_cut() -> None:
    network = make_network(max_positions=12)
    long = [*range(5, 30)]
    torch.testing.assert_close(draft(network, [long], [[2, 7]], 3), draft(network, [long[:12]], [[2, 7]], 3))


def test_sources_join_leave_and_repeat() -> None:
    network = make_network()
    first, second = (network.encode(SourceBatch.from_lists(rows, 1)) for rows in (SOURCES[:1], SOURCES[1:]))
    # shorter before longer, too
    for joined, sources in ((first.concat(second), SOURCES), (second.concat(first), [*SOURCES[1:], SOURCES[0]])):
        chosen = joined.select_rows(torch.tensor([2, 1, 2]))
        logits = network.draft(Prefix(*pad_rows(PREFIXES, 17)), 4, chosen, Wanted(logits=True)).logits()
        expected = draft(network, [sources[2], sources[1], sources[2]], PREFIXES, 4)
        torch.testing.assert_close(logits, expected.float())
    short = first.concat(second).select_rows(torch.tensor([1]))
    assert short.copy_keys.shape[1] == short.cross.shape[4] == 2  # columns that nobody needs are dropped


def test_every_weight_learns_and_the_loss_falls() -> None:
    network = make_network({"positions": "relative", "norm": "rms", "ties_output": False, "has_output_bias": True})
    network.requires_grad_(True)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
    ids, lengths = pad_rows(SOURCES, 1)
    targets = torch.tensor([[4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]])
    is_slot = torch.tensor([[False, True, True, True]] * 3)
    losses = []
    with torch.enable_grad():
        for _ in range(60):
            states = network.decode(targets, is_slot, torch.tensor([4, 3, 4]), network.encode_ids(ids, lengths))
            logits = network.project(states)
            loss = nn.functional.cross_entropy(logits[:, 1:3].flatten(0, 1), targets[:, 1:3].flatten())
            optimizer.zero_grad()
            loss.backward()
            if not losses:
                unused = [name for name, weight in network.named_parameters() if not weight.grad.abs().sum() > 0]
                assert unused == []
            optimizer.step()
            losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]


def test_sizes_that_cannot_be_are_refused() -> None:
    with pytest.raises(OptionError, match="block_size=41 does not fit the 40 positions"):
        SpecDrafterConfig(tiny_config(max_positions=40), 41)
    with pytest.raises(OptionError, match="block_size=0"):
        SpecDrafterConfig(tiny_config(max_positions=40), 0)
    with pytest.raises(OptionError, match="max_source_positions=None"):
        SpecDrafterConfig(tiny_config(max_positions=None), 5)
