"""The network computes what transformers computes, for every family, however the tokens are fed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from spec2seq.types import SourceBatch, Wanted
from tests.families import FAMILIES
from tests.parity.conftest import in_order, random_ids

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from tests.parity.conftest import Pair

POISONS = (1e4, 1e30)


def test_encoder_states_equal(pair: Pair) -> None:
    ids, mask = pair.source()
    theirs = pair.hf.get_encoder()(input_ids=ids, attention_mask=mask).last_hidden_state
    pair.assert_close(pair.encode().hidden[mask.bool()], theirs[mask.bool()])


def test_a_full_forward_equals(pair: Pair) -> None:
    tokens = random_ids(3, 9, seed=2)
    ours = pair.logits(tokens, in_order(3, 9), pair.verifier.new_cache(3), pair.encode())
    pair.assert_close(ours, pair.hf_logits(tokens))


@pytest.mark.parametrize("name", FAMILIES)
def test_fp32_logits_equal(name: str, make_pair: Callable[..., Pair]) -> None:
    pair = make_pair(name, "float32")
    tokens = random_ids(3, 9, seed=2)
    scores = pair.verifier.decode(
        tokens,
        in_order(3, 9),
        torch.full((3,), 9),
        pair.verifier.new_cache(3),
        pair.encode(),
        Wanted(logits=True),
    ).scores
    theirs = pair.hf_logits(tokens)
    assert (scores.logits() - theirs).abs().max() <= 2e-5 * theirs.abs().max()


@pytest.mark.parametrize("width", [1, 3])
def test_feeding_a_few_tokens_at_a_time_equals(pair: Pair, width: int) -> None:
    tokens, cache, encoded = random_ids(3, 9, seed=2), pair.verifier.new_cache(3), pair.encode()
    parts = [
        pair.logits(tokens[:, i : i + width], in_order(3, 9)[:, i : i + width], cache, encoded)
        for i in range(0, 9, width)
    ]
    pair.assert_close(torch.cat(parts, dim=1), pair.hf_logits(tokens))


def test_one_unpadded_row_equals(pair: Pair) -> None:
    rows = torch.tensor([0])
    tokens, cache, encoded = random_ids(1, 9, seed=2), pair.verifier.new_cache(1), pair.encode().select_rows(rows)
    first = pair.logits(tokens[:, :4], in_order(1, 4), cache, encoded)
    rest = pair.logits(tokens[:, 4:], in_order(1, 9)[:, 4:], cache, encoded)
    pair.assert_close(torch.cat([first, rest], dim=1), pair.hf_logits(tokens, rows))


def test_one_padded_row_equals(pair: Pair) -> None:
    encoded = pair.encode()
    # the row keeps the padding of its former neighbours
    alone = type(encoded).of(encoded.hidden[1:2], encoded.lengths[1:2], encoded.cross[:, :, 1:2])
    tokens = random_ids(1, 6, seed=2)
    ours = pair.logits(tokens, in_order(1, 6), pair.verifier.new_cache(1), alone)
    pair.assert_close(ours, pair.hf_logits(tokens, torch.tensor([1])))


def test_ragged_positions_equal(pair: Pair) -> None:
    """Rows with 5, 2 and 8 cached tokens get four more in one call."""
    past, tokens = torch.tensor([5, 2, 8]), random_ids(3, 12, seed=2)
    cache, encoded = pair.verifier.new_cache(3), pair.encode()
    pair.logits(tokens[:, :8], in_order(3, 8), cache, encoded)
    positions = past[:, None] + torch.arange(4)
    ours = pair.logits(tokens.gather(1, positions), positions, cache, encoded)
    theirs = pair.hf_logits(tokens).gather(1, positions[..., None].expand(-1, -1, ours.shape[2]))
    pair.assert_close(ours, theirs)


def test_padded_queries_disturb_nobody(pair: Pair) -> None:
    """Row 1 has one real query of three; what its padded ones leave behind is overwritten and never seen."""
    tokens, encoded, cache = random_ids(3, 9, seed=2), pair.encode(), pair.verifier.new_cache(3)
    past, real = torch.tensor([4, 4, 4]), torch.tensor([3, 1, 3])
    pair.logits(tokens[:, :4], in_order(3, 4), cache, encoded)
    positions = past[:, None] + torch.arange(3)
    fed = tokens.gather(1, positions)
    fed[1, 1:] = 7
    ours = pair.logits(fed, positions, cache, encoded)
    follow = (past + real)[:, None] + torch.arange(2)
    ours_next = pair.logits(tokens.gather(1, follow), follow, cache, encoded)
    theirs = pair.hf_logits(tokens)
    pair.assert_close(ours[:, :1], theirs[:, 4:5])
    pair.assert_close(ours[[0, 2]], theirs[[0, 2], 4:7])
    pair.assert_close(ours_next, theirs.gather(1, follow[..., None].expand(-1, -1, theirs.shape[2])))


def test_rolling_back_forgets(pair: Pair) -> None:
    """Tokens of a rejected draft leave no trace, back to the very first slot too."""
    tokens, encoded, cache = random_ids(3, 9, seed=2), pair.encode(), pair.verifier.new_cache(3)
    rejected = random_ids(3, 9, seed=5)
    pair.logits(rejected, in_order(3, 9), cache, encoded)
    pair.logits(tokens[:, :4], in_order(3, 4), cache, encoded)
    pair.logits(rejected[:, 4:], in_order(3, 9)[:, 4:], cache, encoded)
    ours = pair.logits(tokens[:, 4:], in_order(3, 9)[:, 4:], cache, encoded)
    pair.assert_close(ours, pair.hf_logits(tokens)[:, 4:])


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", FAMILIES)
def test_stale_slots_are_never_read(name: str, poison: float, rows: int, make_pair: Callable[..., Pair]) -> None:
    pair = make_pair(name, "float32")
    tokens, encoded = random_ids(rows, 9, seed=2), pair.encode().select_rows(torch.arange(rows))
    past = torch.tensor([5, 2, 3])[:rows]
    positions = past[:, None] + torch.arange(3)
    fed = tokens.gather(1, positions)
    results = []
    for value in (0.0, poison):
        cache = pair.verifier.new_cache(rows)
        pair.logits(tokens[:, :5], in_order(rows, 5), cache, encoded)
        is_stale = torch.arange(cache.capacity[1]) >= past[:, None]
        cache._buffer[:, is_stale] = value
        results.append(pair.logits(fed, positions, cache, encoded))
    assert torch.equal(*results)
    assert results[0].isfinite().all()


def test_alternatives_in_one_call_equal_separate_decodes(pair: Pair) -> None:
    """After three tokens, two alternatives of the fourth and a continuation of each, all in one call."""
    prefix, encoded = random_ids(3, 3, seed=2), pair.encode()
    branches = random_ids(3, 4, seed=6)  # first a, first b, second a, second b
    cache = pair.verifier.new_cache(3)
    pair.logits(prefix, in_order(3, 3), cache, encoded)
    positions, slots = torch.tensor([3, 3, 4, 4]).repeat(3, 1), torch.tensor([3, 4, 5, 6]).repeat(3, 1)
    ours = pair.logits(branches, positions, cache, encoded, slots, _tree([[3], [4], [3, 5], [4, 6]]))
    for branch in (0, 1):
        path = branches[:, [branch, branch + 2]]
        pair.assert_close(ours[:, [branch, branch + 2]], pair.hf_logits(torch.cat([prefix, path], 1))[:, 3:])
    # the cached branch b goes on: its ancestors are the prefix, slots 4 and 6
    more = random_ids(3, 1, seed=7)
    ours = pair.logits(more, torch.full((3, 1), 5), cache, encoded, torch.full((3, 1), 7), _tree([[4, 6, 7]]))
    path = torch.cat([prefix, branches[:, [1, 3]], more], dim=1)
    pair.assert_close(ours, pair.hf_logits(path)[:, 5:])


def _tree(seen: list[list[int]]) -> Tensor:
    """[3, n, 8] of a tree below a prefix of three tokens: the slots that each query sees besides them."""
    visible = torch.zeros(len(seen), 8, dtype=torch.bool)
    visible[:, :3] = True
    for query, slots in enumerate(seen):
        visible[query, slots] = True
    return visible.repeat(3, 1, 1)


def test_hidden_states_are_those_of_transformers(pair: Pair) -> None:
    tokens, (ids, mask) = random_ids(3, 5, seed=2), pair.source()
    theirs = pair.hf(
        input_ids=ids, attention_mask=mask, decoder_input_ids=tokens, use_cache=False, output_hidden_states=True
    ).decoder_hidden_states
    last = pair.verifier.config.decoder_layers
    ours = pair.verifier.decode(
        tokens,
        in_order(3, 5),
        torch.full((3,), 5),
        pair.verifier.new_cache(3),
        pair.encode(),
        Wanted(hidden_layers=(last, 0, 1)),
    ).hidden
    assert ours is not None
    pair.assert_close(ours, torch.stack([theirs[last], theirs[0], theirs[1]], dim=2))


@pytest.mark.parametrize("name", ["m2m100", "nllb"])
def test_pads_inside_a_target_take_no_position(name: str, make_pair: Callable[..., Pair]) -> None:
    """transformers, decoding with its cache, gives a pad the table's row of zeros and its followers their places."""
    pair = make_pair(name)
    tokens = random_ids(3, 6, seed=2)
    tokens[0, 2] = tokens[2, 4] = pair.verifier.config.pad_token_id
    ids, mask = pair.source()
    encoder_outputs, theirs, past = pair.hf.get_encoder()(input_ids=ids, attention_mask=mask), [], None
    for i in range(6):
        output = pair.hf(
            encoder_outputs=encoder_outputs,
            attention_mask=mask,
            decoder_input_ids=tokens[:, i : i + 1],
            cache=past,
            use_cache=True,
        )
        past = output.cache
        theirs.append(output.logits)
    cache, encoded = pair.verifier.new_cache(3), pair.encode()
    first = pair.logits(tokens[:, :1], in_order(3, 1), cache, encoded)
    rest = pair.logits(tokens[:, 1:], in_order(3, 6)[:, 1:], cache, encoded)
    pair.assert_close(torch.cat([first, rest], dim=1), torch.cat(theirs, dim=1))


@pytest.mark.parametrize("name", ["m2m100", "nllb"])
def test_pads_inside_a_source_take_no_position(name: str, make_pair: Callable[..., Pair]) -> None:
    pair = make_pair(name)
    ids = random_ids(2, 6, seed=1)
    ids[0, 2] = ids[1, 4] = pair.verifier.config.pad_token_id
    theirs = pair.hf.get_encoder()(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
    pair.assert_close(pair.verifier.encode(SourceBatch(ids, torch.tensor([6, 6]))).hidden, theirs)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_close(
    pair: Pair, dtype: str, make_pair: Callable[..., Pair], request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.params["pair"]
    half = make_pair(name, dtype)
    tokens = random_ids(3, 5, seed=2)
    scores = half.verifier.decode(
        tokens, in_order(3, 5), torch.full((3,), 5), half.verifier.new_cache(3), half.encode(), Wanted(logits=True)
    ).scores
    exact = pair.hf_logits(tokens).float()
    assert scores.logits().dtype == torch.float32
    # rounding errors of a random model: bf16 keeps 8 bits, fp16 keeps 11
    allowed = 0.15 if dtype == "bfloat16" else 0.02
    assert (scores.logits() - exact).abs().max() <= allowed * exact.abs().max()
    assert half.verifier.dtype == getattr(torch, dtype)
