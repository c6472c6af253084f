"""The torch verifier: what it refuses, what it answers, and rows that come and go without changing the others."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from spec2seq.backends.torch_engine import TorchVerifier
from spec2seq.errors import InputError
from spec2seq.nn.seq2seq import MAX_BANNED_SETS, Seq2Seq
from spec2seq.testing import tiny_config
from spec2seq.types import SourceBatch, Wanted

if TYPE_CHECKING:
    from torch import Tensor

    from spec2seq.config import ModelConfig
    from spec2seq.types import DecoderOutput

LENGTHS = torch.tensor([4, 6, 2, 5, 6, 3])


def _verifier(config: ModelConfig) -> TorchVerifier:
    network = Seq2Seq(config, torch.float64)
    for parameter in network.parameters():
        parameter.normal_(0.0, 0.4)
    return TorchVerifier(network)


@pytest.fixture(autouse=True)
def _inference() -> Any:
    with torch.inference_mode():
        yield


@pytest.fixture(params=["absolute", "relative"])
def verifier(request: pytest.FixtureRequest) -> TorchVerifier:
    torch.manual_seed(4)
    config = tiny_config(max_positions=12)
    if request.param == "relative":
        config = replace(config, positions="relative", relative_buckets=8, relative_max_distance=16)
        config = replace(config, norm="rms", is_pre_norm=True, has_final_norm=True, has_bias=False)
    return _verifier(config)


def _source(rows: slice = slice(None)) -> SourceBatch:
    ids = torch.randint(3, 50, (6, 6), generator=torch.Generator().manual_seed(1))
    return SourceBatch(ids[rows], LENGTHS[rows])


def _step(
    verifier: TorchVerifier, tokens: Tensor, positions: Tensor, cache: Any, encoded: Any, wanted: Wanted | None = None
) -> DecoderOutput:
    lengths = torch.full((len(tokens),), tokens.shape[1])
    return verifier.decode(tokens, positions, lengths, cache, encoded, wanted or Wanted(logits=True))


def _tokens(width: int, seed: int = 2) -> Tensor:
    return torch.randint(3, 50, (6, width), generator=torch.Generator().manual_seed(seed))


def _all_at_once(verifier: TorchVerifier, tokens: Tensor) -> Tensor:
    positions = torch.arange(tokens.shape[1]).repeat(6, 1)
    return _step(verifier, tokens, positions, verifier.new_cache(6), verifier.encode(_source())).scores.logits()


def test_too_long_and_empty_sources_are_refused() -> None:
    verifier = _verifier(tiny_config(max_positions=5))
    with pytest.raises(InputError, match="a source of 6 tokens is longer than the 5 positions of this bart model"):
        verifier.encode(_source())
    with pytest.raises(InputError, match="0 tokens"):
        verifier.encode(SourceBatch(torch.full((2, 3), 7), torch.tensor([3, 0])))


def test_padding_beyond_the_longest_source_is_cut(verifier: TorchVerifier) -> None:
    source = _source()
    wide = SourceBatch(torch.nn.functional.pad(source.ids, (0, 9), value=1), source.lengths)
    assert verifier.encode(wide).hidden.shape == (6, 6, 16)
    assert torch.equal(verifier.encode(wide).hidden, verifier.encode(source).hidden)


def test_content_of_padding_is_irrelevant(verifier: TorchVerifier) -> None:
    source = _source()
    is_real = torch.arange(6) < LENGTHS[:, None]
    other = SourceBatch(source.ids.masked_fill(~is_real, 44), LENGTHS)
    ours, theirs = (verifier.encode(x) for x in (source, other))
    assert torch.equal(ours.hidden[is_real], theirs.hidden[is_real])
    tokens, positions = _tokens(3), torch.arange(3).repeat(6, 1)
    first, second = (
        _step(verifier, tokens, positions, verifier.new_cache(6), encoded).scores.logits() for encoded in (ours, theirs)
    )
    assert torch.equal(first, second)


def test_encoder_states_from_elsewhere_serve_as_well(verifier: TorchVerifier) -> None:
    encoded = verifier.encode(_source())
    again = verifier.from_encoder(encoded.hidden, encoded.lengths)
    assert torch.equal(again.cross, encoded.cross)


@pytest.mark.parametrize(
    "rows", [[0, 1, 2], [0, 5, 2, 4], [3, 1, 0, 5, 4, 2], [2, 2, 5], [5], [1, 1, 0, 0, 2, 2, 4, 4]]
)
def test_selected_rows_decode_as_before(verifier: TorchVerifier, rows: list[int]) -> None:
    tokens, index = _tokens(6), torch.tensor(rows)
    expected = _all_at_once(verifier, tokens)[index, 4:]
    cache, encoded = verifier.new_cache(6), verifier.encode(_source())
    _step(verifier, tokens[:, :4], torch.arange(4).repeat(6, 1), cache, encoded)
    cache, encoded = cache.select_rows(index), encoded.select_rows(index)
    assert encoded.lengths.tolist() == LENGTHS[index].tolist()
    positions = torch.arange(4, 6).repeat(len(rows), 1)
    ours = _step(verifier, tokens[index, 4:], positions, cache, encoded).scores.logits()
    assert (ours - expected).abs().max() < 1e-6


def test_rows_leave_one_by_one(verifier: TorchVerifier) -> None:
    """The last row takes the place of each one that leaves; the others go on as if nothing happened."""
    tokens = _tokens(10)
    expected = _all_at_once(verifier, tokens)
    cache, encoded, alive = verifier.new_cache(6), verifier.encode(_source()), [0, 1, 2, 3, 4, 5]
    for position, leaver in enumerate([1, 0, 0, 2, 1, 0]):
        here = torch.tensor(alive)
        positions = torch.full((len(alive), 1), position)
        ours = _step(verifier, tokens[here, position : position + 1], positions, cache, encoded).scores.logits()
        assert (ours[:, 0] - expected[here, position]).abs().max() < 1e-6
        rows = list(range(len(alive)))
        rows[leaver] = rows[-1]
        alive[leaver] = alive[-1]
        rows, alive = rows[:-1], alive[:-1]
        index = torch.tensor(rows, dtype=torch.long)
        cache, encoded = cache.select_rows(index), encoded.select_rows(index)
    assert cache.num_rows == len(encoded.lengths) == 0


def test_memory_of_sources_shrinks_with_the_rows(verifier: TorchVerifier) -> None:
    encoded = verifier.encode(_source())
    encoded = encoded.select_rows(torch.tensor([0, 5, 2, 3, 4]))
    assert encoded.cross.untyped_storage().nbytes() == 6 * encoded.cross[:, :, 0].numel() * 8
    encoded = encoded.select_rows(torch.tensor([0, 1, 2]))
    assert encoded.lengths.tolist() == [4, 3, 2]
    assert encoded.cross.shape[2:5:2] == (3, 4)
    assert encoded.cross.untyped_storage().nbytes() == encoded.cross.numel() * 8


@pytest.mark.parametrize("split", [1, 3])
def test_rows_join_later(verifier: TorchVerifier, split: int) -> None:
    """New rows with shorter or longer sources start at position 0 while the old ones go on."""
    tokens = _tokens(6)
    expected = _all_at_once(verifier, tokens)
    cache, encoded = verifier.new_cache(split), verifier.encode(_source(slice(0, split)))
    _step(verifier, tokens[:split, :3], torch.arange(3).repeat(split, 1), cache, encoded)
    encoded = encoded.concat(verifier.encode(_source(slice(split, 6))))
    cache = cache.append_rows(6 - split)
    past = torch.tensor([3] * split + [0] * (6 - split))
    positions = past[:, None] + torch.arange(3)
    ours = _step(verifier, tokens.gather(1, positions), positions, cache, encoded).scores.logits()
    theirs = expected.gather(1, positions[..., None].expand(-1, -1, 50))
    assert (ours - theirs).abs().max() < 1e-6


def test_asked_queries_in_the_asked_order(verifier: TorchVerifier) -> None:
    tokens, queries = _tokens(4), torch.tensor([[3, 0], [1, 1], [0, 2], [3, 3], [2, 1], [0, 3]])
    expected = _all_at_once(verifier, tokens).gather(1, queries[..., None].expand(-1, -1, 50))
    positions, lengths = torch.arange(4).repeat(6, 1), torch.full((6,), 4)
    output = verifier.decode(
        tokens,
        positions,
        lengths,
        verifier.new_cache(6),
        verifier.encode(_source()),
        Wanted(logits=True, hidden_layers=(2,)),
        queries=queries,
    )
    assert (output.scores.logits() - expected).abs().max() < 1e-6
    assert output.hidden is not None
    assert output.hidden.shape == (6, 4, 1, 16)


def test_banned_ids_score_minus_infinity_and_others_stay(verifier: TorchVerifier) -> None:
    tokens, cache, encoded = _tokens(1), verifier.new_cache(6), verifier.encode(_source())
    positions = torch.zeros(6, 1, dtype=torch.long)
    free = _step(verifier, tokens, positions, cache, encoded).scores
    best = int(free.top(1)[1][0, 0, 0])
    for banned in [(best,), (best, 7), *((best, x) for x in range(MAX_BANNED_SETS)), (best,)]:
        wanted = Wanted(logits=True, banned=banned)
        scores = _step(verifier, tokens, positions, cache, encoded, wanted).scores
        expected = free.logits().clone()
        expected[..., list(banned)] = -torch.inf
        assert torch.equal(scores.logits(), expected)
        assert int(scores.top(1)[1][0, 0, 0]) != best
    assert torch.equal(_step(verifier, tokens, positions, cache, encoded).scores.logits(), free.logits())


def test_padded_queries_may_lie_beyond_the_position_table() -> None:
    torch.manual_seed(4)
    verifier = _verifier(tiny_config(max_positions=6))
    tokens, cache, encoded = _tokens(8), verifier.new_cache(6), verifier.encode(_source())
    expected = _step(verifier, tokens[:, :6], torch.arange(6).repeat(6, 1), cache, encoded).scores.logits()
    lengths = torch.tensor([2, 1, 2, 2, 2, 2])
    output = verifier.decode(
        tokens[:, 4:], torch.arange(4, 8).repeat(6, 1), lengths, cache, encoded, Wanted(logits=True)
    )
    assert cache.capacity == (6, 64)
    assert (output.scores.logits()[:, :2] - expected[:, 4:6]).abs().max() < 1e-6
    assert output.scores.logits().isfinite().all()


def test_scores_are_fp32_whatever_the_network(verifier: TorchVerifier) -> None:
    assert verifier.dtype == torch.float64
    logits = _all_at_once(verifier, _tokens(2))
    assert logits.dtype == torch.float32
    states = verifier.network.project(torch.ones(1, 16, dtype=torch.float64))
    assert states.dtype == torch.float64


def test_long_rows_beside_short_ones() -> None:
    """More slots than one block of the attention kernel, most of them hidden from the short rows."""
    torch.manual_seed(4)
    verifier = _verifier(tiny_config(max_positions=700))
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(3, 50, (6, 600), generator=generator)
    encoded, cache = verifier.encode(_source()), verifier.new_cache(6)
    expected = _step(verifier, tokens, torch.arange(600).repeat(6, 1), cache, encoded).scores.logits()
    past = torch.tensor([2, 598, 40, 550, 1, 300])
    positions = past[:, None] + torch.arange(2)
    ours = _step(verifier, tokens.gather(1, positions), positions, cache, encoded).scores.logits()
    assert (ours - expected.gather(1, positions[..., None].expand(-1, -1, 50))).abs().max() < 1e-6
