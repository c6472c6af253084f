"""The OpenVINO engine computes what the torch engine computes, for every family, however the tokens are fed.

fp32 on both sides. The engine sums in another order and has its own exp and erf: 5e-5 of the largest score is allowed,
ten times what was seen. Where steps are machine code of our own, activations have 15 bits: 2e-3, 1.9e-3 was seen. Their
weights have 8 bits; the networks here are made of weights that are rounded already.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch

from spec2seq.types import SourceBatch, Wanted
from tests.parity.conftest import SOURCE_LENGTHS, in_order, random_ids

pytest.importorskip("openvino", reason="needs pip install 'spec2seq[openvino]'")

from spec2seq.backends.openvino.engine import Engine, ThreadPlan
from spec2seq.backends.openvino.loading import Loader
from spec2seq.backends.openvino.tracing import size_names
from spec2seq.backends.openvino.verifier import OpenVinoVerifier, OwnPrograms
from spec2seq.backends.openvino.verifier_graphs import source_graphs, verifier_inputs
from tests.openvino_families import marked_families, skip_without_own_steps

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from spec2seq.backends.torch_engine import TorchVerifier
    from tests.parity.conftest import Pair

TOLERANCE, OWN_STEP_TOLERANCE = 5e-5, 2e-3
# what steps of our own ask of widths; heads of 16 and of 32
WIDE = {"d_model": 64, "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 128}
OWN_STEPS, WITHOUT_TILES = "own steps ", "without tiles "
LOGITS = Wanted(logits=True)


@dataclass
class Engines:
    """One network on both engines, which get the same calls."""

    torch: TorchVerifier
    openvino: OpenVinoVerifier
    tolerance: float = TOLERANCE

    def both(self, calls: Callable[[Any], list[Tensor]]) -> None:
        """Run `calls(verifier)` on both and compare what it returns."""
        ours, theirs = calls(self.openvino), calls(self.torch)
        assert len(ours) == len(theirs) > 0
        for one, other in zip(ours, theirs, strict=True):
            assert one.shape == other.shape
            assert one.dtype == other.dtype
            assert (one - other).abs().max() <= self.tolerance * other.abs().max()


@pytest.fixture(scope="session")
def make_engines(make_pair: Callable[..., Pair]) -> Callable[[str], Engines]:
    made: dict[str, Engines] = {}

    def make(name: str) -> Engines:
        if name not in made and name.startswith(OWN_STEPS):
            family = name.removeprefix(OWN_STEPS)
            made[name] = _with_own_steps(make_pair(family.removeprefix(WITHOUT_TILES), "float32", WIDE), family)
        elif name not in made:
            verifier = make_pair(name, "float32").verifier
            made[name] = Engines(verifier, Loader("float32", 1).verifier(verifier.network))
        return made[name]

    return make


def _with_own_steps(pair: Pair, family: str) -> Engines:
    from spec2seq.backends.native.packing import rounded
    from spec2seq.backends.native.step_program import StepProgram

    network = pair.verifier.network
    skip_without_own_steps(network.config)
    for layer in network.decoder.layers:
        for sublayer in (layer.attention, layer.cross_attention, layer.ffn):
            for weight in sublayer.weights[::2]:
                weight.copy_(torch.from_numpy(rounded(weight.contiguous().numpy())))
    engine = Engine(source_graphs(network), size_names(verifier_inputs(network.config)), "float32", ThreadPlan(1, 1))
    own = OwnPrograms(StepProgram(network, uses_tiles=False if family.startswith(WITHOUT_TILES) else None))
    return Engines(pair.verifier, OpenVinoVerifier(network.config, engine, own), OWN_STEP_TOLERANCE)


def _own_steps() -> list[str]:
    """Each way of norms, positions and activations, and without tiles where there are some."""
    families = ("marian", "marian_separate", "bart", "mbart_cc25", "m2m100", f"{WITHOUT_TILES}marian")
    return [OWN_STEPS + family for family in families]


@pytest.fixture(params=[*marked_families(), *_own_steps()])
def engines(request: pytest.FixtureRequest, make_engines: Callable[[str], Engines]) -> Engines:
    return make_engines(request.param)


def _source(verifier: Any, rows: slice = slice(None)) -> SourceBatch:
    ids = random_ids(3, 7, seed=1)
    is_padding = torch.arange(7) >= SOURCE_LENGTHS[:, None]
    return SourceBatch(ids.masked_fill(is_padding, verifier.config.pad_token_id)[rows], SOURCE_LENGTHS[rows])


def _logits(verifier: Any, tokens: Tensor, positions: Tensor, cache: Any, encoded: Any, **placement: Any) -> Tensor:
    lengths = torch.full((len(tokens),), tokens.shape[1])
    scores = verifier.decode(tokens, positions, lengths, cache, encoded, LOGITS, **placement).scores
    return scores.logits()


def test_encoder_states_equal(engines: Engines) -> None:
    def calls(verifier: Any) -> list[Tensor]:
        encoded = verifier.encode(_source(verifier))
        again = verifier.from_encoder(encoded.hidden, encoded.lengths)
        tokens, positions = random_ids(3, 2, seed=2), in_order(3, 2)
        is_real = torch.arange(7) < SOURCE_LENGTHS[:, None]
        return [encoded.hidden[is_real], _logits(verifier, tokens, positions, verifier.new_cache(3), again)]

    engines.both(calls)


@pytest.mark.parametrize("width", [1, 3, 18])
def test_feeding_a_few_tokens_at_a_time_equals(engines: Engines, width: int) -> None:
    """Past the first sixteen slots, and with more queries than are run without padding."""

    def calls(verifier: Any) -> list[Tensor]:
        tokens, positions = random_ids(3, 18, seed=2), in_order(3, 18)
        cache, encoded = verifier.new_cache(3), verifier.encode(_source(verifier))
        return [
            _logits(verifier, tokens[:, i : i + width], positions[:, i : i + width], cache, encoded)
            for i in range(0, 18, width)
        ]

    engines.both(calls)


def test_one_row_equals(engines: Engines) -> None:
    def calls(verifier: Any) -> list[Tensor]:
        tokens, positions = random_ids(1, 9, seed=2), in_order(1, 9)
        cache, encoded = verifier.new_cache(1), verifier.encode(_source(verifier, slice(1, 2)))
        return [
            _logits(verifier, tokens[:, part], positions[:, part], cache, encoded)
            for part in (slice(0, 4), slice(4, 5), slice(5, 9))
        ]

    engines.both(calls)


def test_ragged_rows_with_padded_queries_equal(engines: Engines) -> None:
    """Every row is at its own position; row 1 has one real query of three, and its padded ones leave no trace."""

    def calls(verifier: Any) -> list[Tensor]:
        tokens, cache, encoded = random_ids(3, 9, seed=2), verifier.new_cache(3), verifier.encode(_source(verifier))
        _logits(verifier, tokens[:, :4], in_order(3, 4), cache, encoded)
        past, real = torch.tensor([4, 2, 3]), torch.tensor([3, 1, 3])
        positions = past[:, None] + torch.arange(3)
        fed = tokens.gather(1, positions)
        fed[1, 1:] = 7
        queries = torch.tensor([[2, 0], [0, 0], [1, 2]])
        first = verifier.decode(fed, positions, real, cache, encoded, LOGITS, queries=queries).scores.logits()
        follow = (past + real)[:, None] + torch.arange(2)
        return [first, _logits(verifier, tokens.gather(1, follow), follow, cache, encoded)]

    engines.both(calls)


def test_rolling_back_forgets(engines: Engines) -> None:
    def calls(verifier: Any) -> list[Tensor]:
        tokens, rejected = random_ids(3, 9, seed=2), random_ids(3, 9, seed=5)
        cache, encoded = verifier.new_cache(3), verifier.encode(_source(verifier))
        _logits(verifier, rejected, in_order(3, 9), cache, encoded)
        first = _logits(verifier, tokens[:, :4], in_order(3, 4), cache, encoded)
        _logits(verifier, rejected[:, 4:], in_order(3, 9)[:, 4:], cache, encoded)
        return [first, _logits(verifier, tokens[:, 4:], in_order(3, 9)[:, 4:], cache, encoded)]

    engines.both(calls)


@pytest.mark.parametrize("poison", [1e4, 1e30])
@pytest.mark.parametrize("rows", [1, 3])
def test_stale_slots_are_never_read(engines: Engines, poison: float, rows: int) -> None:
    verifier = engines.openvino
    tokens, past = random_ids(rows, 9, seed=2), torch.tensor([5, 2, 3])[:rows]
    encoded = verifier.encode(_source(verifier, slice(0, rows)))
    positions = past[:, None] + torch.arange(3)
    results = []
    for value in (0.0, poison):
        cache = verifier.new_cache(rows)
        _logits(verifier, tokens[:, :5], in_order(rows, 5), cache, encoded)
        is_stale = torch.arange(cache.num_slots) >= past[:, None]
        cache._buffer[:, :, is_stale] = value
        results.append(_logits(verifier, tokens.gather(1, positions), positions, cache, encoded))
    assert torch.equal(*results)
    assert results[0].isfinite().all()


def test_alternatives_in_one_call_equal(engines: Engines) -> None:
    """After three tokens two alternatives of the fourth, a continuation of each, and padding that sees nothing."""

    def calls(verifier: Any) -> list[Tensor]:
        cache, encoded = verifier.new_cache(3), verifier.encode(_source(verifier))
        _logits(verifier, random_ids(3, 3, seed=3), in_order(3, 3), cache, encoded)
        visible = torch.zeros(3, 5, 8, dtype=torch.bool)
        visible[:, :4, :3] = True
        for query, seen in enumerate([[3], [4], [3, 5], [4, 6]]):
            visible[:, query, seen] = True
        branches = verifier.decode(
            random_ids(3, 5, seed=6),
            torch.tensor([3, 3, 4, 4, 0]).repeat(3, 1),
            torch.tensor([4, 4, 4]),
            cache,
            encoded,
            LOGITS,
            slots=torch.tensor([3, 4, 5, 6, 7]).repeat(3, 1),
            visible=visible,
        ).scores.logits()
        # the second branch goes on: its slots are 4 and 6
        path = torch.zeros(3, 1, 8, dtype=torch.bool)
        path[..., [0, 1, 2, 4, 6, 7]] = True
        five, slot = torch.full((3, 1), 5), torch.full((3, 1), 7)
        more = _logits(verifier, random_ids(3, 1, seed=7), five, cache, encoded, slots=slot, visible=path)
        return [branches[:, :4], more]

    engines.both(calls)


def test_hidden_states_and_banned_ids_equal(engines: Engines) -> None:
    last = engines.torch.config.decoder_layers

    def calls(verifier: Any) -> list[Tensor]:
        tokens, lengths = random_ids(3, 5, seed=2), torch.full((3,), 5)
        wanted = Wanted(logits=True, top=3, hidden_layers=(last, 0, 1), banned=(7, 11))
        cache, encoded = verifier.new_cache(3), verifier.encode(_source(verifier))
        output = verifier.decode(tokens, in_order(3, 5), lengths, cache, encoded, wanted)
        logits = output.scores.logits()
        assert (logits[..., [7, 11]] == -torch.inf).all()
        values, ids = output.scores.top(3)
        return [output.hidden, logits[..., 12:], values, ids.float(), output.scores.log_sum_exp()]

    engines.both(calls)


@pytest.mark.parametrize("name", ["marian", "t5_v1_1", f"{OWN_STEPS}marian"])
@pytest.mark.parametrize("rows", [[0, 2], [2, 0], [1, 1, 0, 2]])
def test_rows_leave_join_and_repeat(name: str, rows: list[int], make_engines: Callable[[str], Engines]) -> None:
    engines, index = make_engines(name), torch.tensor(rows)

    def calls(verifier: Any) -> list[Tensor]:
        tokens = random_ids(3, 9, seed=2)
        cache, encoded = verifier.new_cache(3), verifier.encode(_source(verifier))
        _logits(verifier, tokens[:, :4], in_order(3, 4), cache, encoded)
        cache, encoded = cache.select_rows(index), encoded.select_rows(index)
        wide = SourceBatch(random_ids(2, 20, seed=8), torch.tensor([20, 17]))
        cache, encoded = cache.append_rows(2), encoded.concat(verifier.encode(wide))
        tokens = torch.cat([tokens[index], random_ids(2, 9, seed=9)])
        positions = torch.tensor([4] * len(rows) + [0, 0])[:, None] + torch.arange(3)
        joined = _logits(verifier, tokens.gather(1, positions), positions, cache, encoded)
        left = torch.tensor([len(rows) + 1, 0])
        cache, encoded = cache.select_rows(left), encoded.select_rows(left)
        positions = torch.tensor([[3], [7]])
        return [joined, _logits(verifier, tokens[left].gather(1, positions), positions, cache, encoded)]

    engines.both(calls)


@pytest.mark.parametrize("name", ["marian", f"{OWN_STEPS}marian", f"{OWN_STEPS}{WITHOUT_TILES}marian"])
def test_many_rows_leave_one_by_one(name: str, make_engines: Callable[[str], Engines]) -> None:
    """More rows than are run without padding, down to none."""

    def calls(verifier: Any) -> list[Tensor]:
        tokens, source = random_ids(11, 12, seed=2), random_ids(11, 9, seed=3)
        cache, encoded = verifier.new_cache(11), verifier.encode(SourceBatch(source, torch.arange(11) % 9 + 1))
        alive, outputs = list(range(11)), []
        for position, leaver in enumerate([1, 0, 8, 2, 0, 5, 3, 0, 2, 1, 0]):
            here, places = torch.tensor(alive), torch.full((len(alive), 1), position)
            outputs.append(_logits(verifier, tokens[here].gather(1, places), places, cache, encoded))
            rows = list(range(len(alive)))
            rows[leaver], alive[leaver] = rows[-1], alive[-1]
            rows, alive = rows[:-1], alive[:-1]
            index = torch.tensor(rows, dtype=torch.long)
            cache, encoded = cache.select_rows(index), encoded.select_rows(index)
        assert cache.num_rows == len(encoded.lengths) == 0
        return outputs

    make_engines(name).both(calls)


@pytest.mark.parametrize(
    "name",
    [
        "m2m100",
        f"{OWN_STEPS}m2m100",
        pytest.param("nllb", marks=pytest.mark.exhaustive),
    ],
)
def test_pads_take_no_position(name: str, make_engines: Callable[[str], Engines]) -> None:
    def calls(verifier: Any) -> list[Tensor]:
        source, tokens = random_ids(2, 6, seed=1), random_ids(2, 6, seed=2)
        source[0, 2] = source[1, 4] = tokens[0, 2] = tokens[1, 5] = verifier.config.pad_token_id
        encoded = verifier.encode(SourceBatch(source, torch.tensor([6, 6])))
        return [encoded.hidden, _logits(verifier, tokens, in_order(2, 6), verifier.new_cache(2), encoded)]

    make_engines(name).both(calls)


@pytest.mark.parametrize("name", ["bart", f"{OWN_STEPS}bart"])
def test_padded_queries_may_lie_beyond_the_position_table(name: str, make_engines: Callable[[str], Engines]) -> None:
    def calls(verifier: Any) -> list[Tensor]:
        cache, encoded = verifier.new_cache(3), verifier.encode(_source(verifier))
        _logits(verifier, random_ids(3, 127, seed=4), in_order(3, 127), cache, encoded)
        positions = torch.arange(127, 131).repeat(3, 1)
        output = verifier.decode(random_ids(3, 4, seed=5), positions, torch.ones(3).long(), cache, encoded, LOGITS)
        assert output.scores.logits().isfinite().all()
        return [output.scores.logits()[:, :1]]

    make_engines(name).both(calls)


@pytest.mark.parametrize("rows", [1, 3, 20])
def test_own_steps_do_not_depend_on_what_else_is_computed(rows: int, make_engines: Callable[[str], Engines]) -> None:
    """Bit for bit: how many rows and queries a call has, and whether tiles compute it."""
    tokens, lengths = random_ids(rows, 24, seed=2), torch.arange(rows) % 7 + 1
    source = SourceBatch(random_ids(rows, 7, seed=1), lengths)
    found = []
    for name in (f"{OWN_STEPS}marian", f"{OWN_STEPS}{WITHOUT_TILES}marian"):
        verifier = make_engines(name).openvino
        encoded = verifier.encode(source)
        for width in (1, 3, 24):
            cache = verifier.new_cache(rows)
            parts = [slice(first, first + width) for first in range(0, 24, width)]
            found.append(
                [_logits(verifier, tokens[:, part], in_order(rows, 24)[:, part], cache, encoded) for part in parts]
            )
        for row in range(0, rows, 7):
            alone, cache = encoded.select_rows(torch.tensor([row])), verifier.new_cache(1)
            logits = _logits(verifier, tokens[row : row + 1], in_order(1, 24), cache, alone)
            assert torch.equal(logits[0], torch.cat(found[-1], dim=1)[row])
            encoded = verifier.encode(source)  # selecting used its memory
    for other in found[1:]:
        assert torch.equal(torch.cat(other, dim=1), torch.cat(found[0], dim=1))
