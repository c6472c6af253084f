"""The drafter on the verifier's states as machine code with int8 weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from spec2seq.backends.native import support
from spec2seq.types import Wanted
from tests.feature_rounds import Rounds, compare, many, ragged, single
from tests.tiny_drafters import tiny_feature_drafter
from tests.unit.test_nn_feature_drafter import random_verifier

pytest.importorskip("openvino", reason="needs pip install 'spec2seq[openvino]'")
pytest.importorskip("numba", reason="needs pip install 'spec2seq[openvino]'")
if not support.has_processor():
    pytest.skip("needs a processor with AVX512-VNNI", allow_module_level=True)

from spec2seq.backends.native.block_program import BlockProgram
from spec2seq.backends.native.packing import rounded
from spec2seq.backends.native.walk import walk
from spec2seq.backends.openvino.engine import Engine, ThreadPlan
from spec2seq.backends.openvino.feature_graphs import feature_inputs, source_reader_graph
from spec2seq.backends.openvino.feature_network import OpenVinoFeatureNetwork
from spec2seq.backends.openvino.loading import Loader
from spec2seq.backends.openvino.tracing import size_names

TOLERANCE = 1e-3  # of the largest score: activations are rounded to 15 bits; 2.6e-4 was seen
WIDE = {"d_model": 64, "decoder_heads": 2, "head_dim": 32, "decoder_ffn_dim": 64}
OWN = {"width": 64, "num_heads": 2, "head_dim": 32, "ffn_dim": 128, "bigram_rank": 16}
SHAPES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"activation": "relu"}, {"block_attention": "causal", "states": "last", "num_layers": 1}),
    ({"activation": "silu"}, {"states": "none", "bigram_rank": 0}),
    ({"is_pre_norm": True, "has_final_norm": True, "norm_eps": 1e-2}, {"shortlist_size": 30, "bigram_candidates": 7}),
    ({}, {"width": 128, "num_heads": 4, "head_dim": 16, "shortlist_size": 33, "bigram_candidates": 40}),
]


@pytest.fixture(autouse=True)
def _inference() -> object:
    with torch.inference_mode():
        yield


def _network(verifier: dict[str, Any], drafter: dict[str, Any]) -> Any:
    """A random network whose weights are what they are rounded to."""
    model = random_verifier(torch.float32, **WIDE, **verifier)
    _round(model.output_weight)
    network = tiny_feature_drafter(model, **{**OWN, **drafter})
    embedding = network.embedding
    _round(network.prefix_reader.weight, embedding.state_weight, embedding.anchor_weight)
    for layer in network.layers:
        for sublayer in (layer.attention, layer.cross_attention, layer.ffn):
            _round(*sublayer.weights[::2])
    if network.output_weight is not None:
        _round(network.output_weight)
    return network


def _round(*weights: Any) -> None:
    for weight in weights:
        weight.copy_(torch.from_numpy(rounded(weight.contiguous().numpy())) / weight.shape[1] ** 0.5)


def _drafting(network: Any, *, uses_tiles: bool | None = None) -> OpenVinoFeatureNetwork:
    sizes = size_names(feature_inputs(network.config))
    engine = Engine(source_reader_graph(network), sizes, "float32", ThreadPlan(1, 1))
    return OpenVinoFeatureNetwork(network, engine, BlockProgram(network, uses_tiles=uses_tiles))


@pytest.mark.parametrize(("verifier", "drafter"), SHAPES, ids=str)
def test_drafts_equal(verifier: dict[str, Any], drafter: dict[str, Any]) -> None:
    network = _network(verifier, drafter)
    drafting = _drafting(network)
    for rounds in (ragged, single, many):
        compare(rounds(drafting), rounds(network), TOLERANCE)


def test_drafts_are_the_same_without_tiles() -> None:
    network = _network({}, {})
    for rounds in (ragged, single, many):
        for one, other in zip(rounds(_drafting(network)), rounds(_drafting(network, uses_tiles=False)), strict=True):
            assert torch.equal(one.tokens, other.tokens)
            assert torch.equal(one.scores, other.scores)


@pytest.mark.parametrize("rows", [1, 3, 11])
def test_a_rows_draft_depends_on_nothing_else(rows: int) -> None:
    """Bit for bit: what other rows there are, how many states came with the call, and how many only pad."""
    network = _network({}, {})
    drafting = _drafting(network)
    rounds = Rounds(drafting, [5 + row for row in range(rows)])
    states, padding = rounds.random(rows, 6, len(network.config.hidden_layers), 64), rounds.random(rows, 2, 3, 64)
    anchors = torch.arange(rows) + 3
    known, zeros = torch.full((rows,), 6), torch.zeros(rows, dtype=torch.long)
    found = []
    for parts in ([6], [2, 4], [1, 1, 3, 1]):
        cache, first = drafting.new_cache(rows), 0
        for width in parts:
            drafting.remember(states[:, first : first + width], zeros + first, cache)
            first += width
        found.append(drafting.draft(anchors, known, known, 5, cache, rounds.source, Wanted(logits=True)))
    cache = drafting.new_cache(rows)
    drafting.remember(torch.cat([states, padding], dim=1), zeros, cache)
    found.append(drafting.draft(anchors, known, known, 5, cache, rounds.source, Wanted(logits=True)))
    assert all(torch.equal(block.scores, found[0].scores) for block in found)
    last, cache = torch.tensor([rows - 1]), drafting.new_cache(1)
    drafting.remember(states[last], zeros[:1], cache)
    source = rounds.source.select_rows(last)
    alone = drafting.draft(anchors[last], known[:1], known[:1], 5, cache, source, Wanted(logits=True))
    assert torch.equal(alone.scores[0], found[0].scores[-1])


@pytest.mark.parametrize(("outputs", "candidates"), [(50, 16), (7, 7), (640, 5), (33, 1)])
def test_a_walk_goes_to_the_best_candidate_behind_the_last(outputs: int, candidates: int) -> None:
    random = np.random.default_rng(0)
    for step in (0.5, 0.001):  # with scores that are often equal, and with some that are not
        scores = np.zeros(4 * outputs + 16, np.float32)
        slots = scores[: 4 * outputs].reshape(4, outputs)
        slots[:] = np.round(random.normal(size=slots.shape) / step) * step
        before = np.round(random.normal(size=16)).astype(np.float32)
        pairs = np.round(random.normal(size=(outputs, 2, 16))).astype(np.float32)
        walked, room = np.zeros(4, np.int64), (np.zeros(candidates, np.float32), np.zeros(candidates, np.int64))
        places = scores.ctypes.data, outputs, 4, before.ctypes.data, pairs.ctypes.data, 16
        walk(*places, *room, walked)
        for slot in range(4):
            best = np.argsort(-slots[slot], kind="stable")[:candidates]
            last = before if slot == 0 else pairs[walked[slot - 1], 0]
            assert walked[slot] == best[(slots[slot][best] + pairs[best, 1] @ last).argmax()]


def test_drafters_with_int8_run_this_way_and_others_do_not(tmp_path: Any) -> None:
    told: list[str] = []
    network = _network({}, {"num_layers": 1})
    for _ in range(2):
        loader = Loader("int8", 1, tmp_path, on_convert=lambda: told.append("compiling"))
        drafting = loader.feature_network(network)
        assert drafting.engine.graphs.keys() == {"source"}
        one, other = many(drafting)[0].scores[: 11 * 5 * 50], many(network)[0].scores[: 11 * 5 * 50]
        assert 0 < (one - other).square().mean() <= 1e-3 * other.square().mean()
    assert told == ["compiling"]
    assert Loader("float32", 1, tmp_path).feature_network(network).engine.graphs.keys() == {"source", "read", "draft"}


@pytest.mark.parametrize("change", [{"width": 96}, {"ffn_dim": 96}, {"head_dim": 8}, {"bigram_rank": 8}])
def test_other_drafters_do_not_fit(change: dict[str, Any]) -> None:
    config = _network({}, {}).config
    assert support.can_draft(config)
    assert not support.can_draft(replace(config, **change))
    assert not support.can_draft(replace(config, verifier=replace(config.verifier, norm="rms")))
