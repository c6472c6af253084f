"""The drafter on the verifier's states: what it caches, it would compute from scratch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from spec2seq.backends.torch_engine import TorchVerifier
from spec2seq.drafters.feature import FeatureDrafter
from spec2seq.evaluation.known_outputs import KnownOutputs, forced_states
from spec2seq.nn.bigrams import BigramTable, follow
from spec2seq.nn.feature_blocks import Blocks, Surroundings, block_states
from spec2seq.nn.feature_drafter import BlockAnswer, FeatureDrafterNetwork
from spec2seq.nn.seq2seq import Seq2Seq
from spec2seq.testing import tiny_config
from spec2seq.types import Acceptance, DecoderOutput, Prefix, SourceBatch, TensorScores, Wanted, pad_rows
from tests.tiny_drafters import tiny_feature_drafter

SOURCES = [[5, 6, 7, 2], [8, 2], [9, 9, 10, 11, 12, 2], [30, 31, 2]]
TARGETS = [torch.randint(3, 50, (50,), generator=torch.Generator().manual_seed(i)).tolist() for i in range(4)]
SHAPES: list[dict[str, Any]] = [
    {},
    {"block_attention": "causal", "states": "last", "num_layers": 1},
    {"states": "none", "bigram_rank": 0},
    {"width": 12, "num_heads": 3, "head_dim": 6, "shortlist_size": 30, "bigram_candidates": 7},
]


def random_verifier(dtype: torch.dtype = torch.float64, **changes: Any) -> Seq2Seq:
    network = Seq2Seq(replace(tiny_config(max_positions=64), **changes), dtype)
    generator = torch.Generator().manual_seed(5)
    for name, parameter in network.named_parameters():
        parameter.data.normal_(0.0, 0.4 if parameter.dim() > 1 else 0.05, generator=generator)
        if name.endswith("norm.weight"):
            parameter.data += 1.0
    return network


class Scratch:
    """Plain functions of one row at a time that keep nothing."""

    def __init__(self, verifier: TorchVerifier, network: FeatureDrafterNetwork) -> None:
        self.verifier, self.network = verifier, network

    def states(self, source: list[int], prefix: list[int]) -> tuple[Tensor, Tensor]:
        """Encoder states [S, D], and those of the decoder's chosen layers over the prefix but its last token."""
        network, verifier = self.verifier.network, self.verifier
        encoded = verifier.encode(SourceBatch.from_lists([source], 1))
        tokens = torch.tensor([prefix])
        layers = network.decode(
            tokens,
            torch.arange(len(prefix))[None],
            torch.tensor([len(prefix)]),
            verifier.new_cache(1),
            encoded.layers,
            None,
        )
        chosen = torch.stack([layers[i][0, :-1] for i in self.network.config.hidden_layers], 1)
        return encoded.hidden[0], chosen

    def read(self, reader: Any, states: Tensor) -> Tensor:
        """Keys and values [L, 2, H, n, d] of states [n, N, D]."""
        read = (self.mixed(reader, states) @ reader.weight.t() + reader.bias).view(len(states), *reader.shape)
        return read.permute(1, 2, 3, 0, 4)

    def mixed(self, reader: Any, states: Tensor) -> Tensor:
        centred = states - states.mean(-1, keepdim=True)
        states = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return states[:, 0] if reader.mixture is None else torch.einsum("knd,n->kd", states, reader.mixture)

    def scores(self, source: list[int], prefix: list[int], k: int, num_known: int | None = None) -> Tensor:
        """[k, V'] without the bigram table."""
        network, config = self.network, self.network.config
        encoded, states = self.states(source, prefix)
        states = states[: len(states) if num_known is None else num_known]
        past, cross = self.read(network.prefix_reader, states), self.read(network.source_reader, encoded[:, None])
        places = network.embedding.positions[: len(encoded)] @ network.source_reader.position_weight.t()
        cross[:, 0] += places.view(len(encoded), *cross.shape[0:1], *cross.shape[2:3], -1).permute(1, 2, 0, 3)
        begin = len(prefix) - 1
        x = torch.stack([network.embedding.places[min(i, 4)] for i in range(k)])
        x = x + network.embedding.positions[begin : begin + k]
        tables = network.tables
        if len(states):
            x = x + network.embedding.state_weight @ self.mixed(network.prefix_reader, states)[-1]
        x[0] += network.embedding.anchor_weight @ (tables.tokens[prefix[-1]] * tables.embedding_scale)
        for number, layer in enumerate(network.layers):
            x = self.layer(layer, x, past[number], cross[number], config.block_attention == "causal")
        if network.output_weight is not None:
            x = x @ network.output_weight.t()
        scores = x @ tables.weight.t() * tables.output_scale
        return scores if tables.bias is None else scores + tables.bias

    def layer(self, layer: Any, x: Tensor, past: Tensor, cross: Tensor, is_causal: bool) -> Tensor:
        own = layer.attention
        heads, inner = own.num_heads, own.num_heads * own.head_dim
        q, k, v = (x @ own.qkv_weight.t() + own.qkv_bias).split(inner, dim=1)
        out = torch.zeros(len(x), inner, dtype=x.dtype)
        for i in range(len(x)):
            seen = i + 1 if is_causal else len(x)
            for h in range(heads):
                part = slice(h * own.head_dim, (h + 1) * own.head_dim)
                keys = torch.cat([past[0, h], k[:seen, part]])
                values = torch.cat([past[1, h], v[:seen, part]])
                out[i, part] = (keys @ q[i, part] * own.scale).softmax(0) @ values
        x = self.norm(own.norm, x + out @ own.output_weight.t() + own.output_bias)
        across = layer.cross_attention
        q, out = x @ across.query_weight.t() + across.query_bias, torch.zeros_like(out)
        for h in range(heads):
            part = slice(h * own.head_dim, (h + 1) * own.head_dim)
            out[:, part] = (q[:, part] @ cross[0, h].t() * across.scale).softmax(-1) @ cross[1, h]
        x = self.norm(across.norm, x + out @ across.output_weight.t() + across.output_bias)
        inner = torch.nn.functional.gelu(x @ layer.ffn.input_weight.t() + layer.ffn.input_bias)
        return self.norm(layer.ffn.norm, x + inner @ layer.ffn.output_weight.t() + layer.ffn.output_bias)

    def norm(self, norm: Any, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight + norm.bias


class Recording(FeatureDrafter):
    """Remembers the scores of its last block."""

    scores: Tensor

    def __init__(self, network: FeatureDrafterNetwork) -> None:
        super().__init__(network)
        draft = network.draft

        def recorded(*arguments: Any) -> BlockAnswer:
            answer = draft(*arguments)
            self.scores = answer.scores
            return answer

        network.draft = recorded  # type: ignore[method-assign]


class Rounds:
    """A drafter and the rows it drafts for, moved on by hand."""

    def __init__(self, shape: dict[str, Any], prompts: list[list[int]]) -> None:
        self.verifier = TorchVerifier(random_verifier())
        self.network = tiny_feature_drafter(self.verifier.network, **shape)
        self.scratch = Scratch(self.verifier, self.network)
        self.drafter = Recording(self.network)
        self.rows: list[int] = []
        self.prefixes: list[list[int]] = []
        self.num_fed: list[int] = []
        self.join(range(len(prompts)), prompts)

    def join(self, rows: Any, prompts: list[list[int]]) -> None:
        source = SourceBatch.from_lists([SOURCES[i] for i in rows], 1)
        self.drafter.start(source, self.verifier.encode(source))
        self.rows += rows
        self.prefixes += [list(prompt) for prompt in prompts]
        self.num_fed += [0] * len(prompts)

    def select(self, places: list[int]) -> None:
        self.drafter.select_rows(torch.tensor(places, dtype=torch.long))
        self.rows, self.num_fed = [self.rows[i] for i in places], [self.num_fed[i] for i in places]
        self.prefixes = [list(self.prefixes[i]) for i in places]

    def check(self, k: int) -> None:
        self.drafter.propose(Prefix(*pad_rows(self.prefixes, 17)), k)
        for i, row in enumerate(self.rows):
            # a block whose places see later ones is as long as in training at least
            places = k if self.drafter.network.config.block_attention == "causal" else max(k, 5)
            expected = self.scratch.scores(SOURCES[row], self.prefixes[i], places, self.num_fed[i])
            torch.testing.assert_close(self.drafter.scores[i], expected.float(), rtol=1e-6, atol=1e-6)

    def round(self, accepted: list[int], k: int) -> None:
        """A verifier call over what it has not seen and k tokens, of which so many are right."""
        longest = max(len(p) - n for p, n in zip(self.prefixes, self.num_fed, strict=True))
        hidden = []
        for i, row in enumerate(self.rows):
            right = TARGETS[row][len(self.prefixes[i]) - 1 :][: accepted[i]]
            drafted = [*right, *[49] * k][:k]
            _, states = self.scratch.states(SOURCES[row], [*self.prefixes[i], *drafted, 3])
            fed = states[self.num_fed[i] :]
            junk = torch.full((longest + k - len(fed), *fed.shape[1:]), 1e4, dtype=fed.dtype)
            hidden.append(torch.cat([fed, junk]))
        prefix = Prefix(*pad_rows(self.prefixes, 17))
        for i, row in enumerate(self.rows):
            self.num_fed[i] = len(self.prefixes[i]) + accepted[i]
            start = len(self.prefixes[i]) - 1
            self.prefixes[i] += TARGETS[row][start : start + accepted[i] + 1]
        following = torch.tensor([prefix[-1] for prefix in self.prefixes])
        acceptance = Acceptance(torch.tensor(accepted), following)
        output = DecoderOutput(TensorScores(torch.empty(0)), torch.stack(hidden))
        self.drafter.commit(prefix, acceptance, output)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_cached_step_is_one_from_scratch(shape: dict[str, Any]) -> None:
    rounds = Rounds(shape, [[2], [2, 40], [2]])
    for accepted in ([0, 3, 5], [5, 0, 1], [2, 2, 0], [4, 1, 3]):
        rounds.check(5)
        rounds.round(accepted, 5)
    rounds.check(3)
    rounds.select([2, 0])
    rounds.join([3], [[2, 44, 7]])
    rounds.check(5)
    rounds.round([1, 0, 4], 5)
    rounds.check(2)
    rounds.select([1, 1, 2, 0])
    rounds.check(5)
    rounds.round([0, 0, 0, 0], 0)
    rounds.check(7)
    rounds.select([3])
    for accepted in range(6):
        rounds.round([accepted], 5)
        rounds.check(5)
    rounds.select([])
    rounds.join([1], [[2]])
    rounds.check(5)


@pytest.mark.parametrize("shape", SHAPES)
def test_blocks_in_training_are_those_of_decoding(shape: dict[str, Any]) -> None:
    verifier = TorchVerifier(random_verifier())
    network = tiny_feature_drafter(verifier.network, **shape)
    scratch = Scratch(verifier, network)
    pairs = [
        type("Pair", (), {"source_ids": s, "target_ids": t, "num_forced": 0, "decoder_start": None})
        for s, t in zip(SOURCES, TARGETS, strict=True)
    ]
    known = KnownOutputs.of(pairs, verifier.config, verifier.device)  # type: ignore[arg-type]
    encoded = verifier.encode(known.source)
    states = forced_states(verifier, encoded, known, network.config.hidden_layers)
    assert states is not None
    around = Surroundings.read(network, states, encoded.hidden, known.source.lengths)
    starts = torch.tensor([[0, 4, 9], [1, 1, 20], [23, 2, 7], [5, 6, 0]])
    blocks = Blocks(known.inputs.gather(1, starts), starts, starts.clamp(max=9))
    scores = network.answer(block_states(network, around, blocks, 5).flatten(0, 1), starts.flatten()).scores
    for i, start in enumerate(starts.flatten().tolist()):
        prefix = [2, *TARGETS[i // 3]][: start + 1]
        expected = scratch.scores(SOURCES[i // 3], prefix, 5, min(start, 9))
        torch.testing.assert_close(scores[i], expected.float(), rtol=1e-6, atol=1e-6)


def test_stale_slots_are_never_read() -> None:
    plain, poisoned = Rounds({}, [[2], [2, 40]]), Rounds({}, [[2], [2, 40]])
    for rounds in (plain, poisoned):
        rounds.round([2, 5], 5)
    cache: Any = poisoned.drafter._known_rows().cache
    for row, num_fed in enumerate(poisoned.num_fed):
        cache._buffer[:, row, num_fed:] = 1e30
    plain.check(5)
    poisoned.check(5)


def table(before: list[list[float]], after: list[list[float]]) -> BigramTable:
    bigrams = BigramTable(len(before), len(after), len(before[0]), torch.float32)
    bigrams.before.data, bigrams.after.data = torch.tensor(before), torch.tensor(after)
    return bigrams


def test_a_walk_by_hand() -> None:
    # token 1 is followed by 2, 2 by 0 and 0 by nothing in particular
    bigrams = table([[0.0, 0.0], [4.0, 0.0], [0.0, 3.0]], [[0.0, 1.0], [0.0, 0.0], [1.0, 0.0]])
    values = torch.tensor([[[0.5, 0.4, 0.0], [1.0, 0.9, 0.0], [2.0, 1.0, 0.0]]])
    ids = torch.tensor([[[0, 1, 2], [1, 0, 2], [1, 0, 2]]])
    # behind 1: 2 has 0 + 4; then 0 has 0.9 + 0 behind 2: 0 + 3 = 3.9; then 1 has 2 behind 0
    successors = bigrams.successors(values, ids, ids, torch.tensor([1]))
    assert follow(successors).tolist() == [[2, 1, 0]]
    assert ids.gather(2, follow(successors)[..., None])[..., 0].tolist() == [[2, 0, 1]]
    # behind 0 nothing changes: 0 (0.5), 1 (1.0), and behind 1 it is 2 (0 + 4)
    successors = bigrams.successors(values, ids, ids, torch.tensor([0]))
    assert ids.gather(2, follow(successors)[..., None])[..., 0].tolist() == [[0, 1, 2]]


def test_a_walk_goes_on_from_each_rows_own_candidate() -> None:
    successors = torch.tensor([[[1, 1], [0, 1], [1, 0]], [[0, 0], [1, 0], [0, 1]]])
    assert follow(successors).tolist() == [[1, 1, 0], [0, 1, 1]]


@pytest.mark.parametrize("shape", SHAPES)
def test_laws_are_those_of_scores_and_table_behind_the_token_before(shape: dict[str, Any]) -> None:
    verifier = random_verifier()
    network = tiny_feature_drafter(verifier, **shape)
    states = torch.randn(3, 4, network.config.width, dtype=torch.float64)
    answer = network.answer(states, torch.tensor([5, 6, 7]))
    previous = torch.tensor([9, 49, 0])
    law = answer.log_probs(2, previous)
    assert law.shape == (3, 50)
    ids = range(50) if network.shortlist is None else network.shortlist.tolist()
    for row in range(3):
        scores = answer.scores[row, 2].double()
        if network.bigrams is not None:
            scores = scores + network.bigrams.after @ network.bigrams.before[previous[row]]
        expected = dict(zip(ids, scores.log_softmax(0).tolist(), strict=True))
        assert law[row].tolist() == pytest.approx([expected.get(i, -torch.inf) for i in range(50)], abs=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_with_all_tokens_as_candidates_the_best_tokens_are_those_of_the_laws(shape: dict[str, Any]) -> None:
    network = tiny_feature_drafter(random_verifier(), **{**shape, "bigram_candidates": 30})
    if network.shortlist is None:
        network = tiny_feature_drafter(random_verifier(), **{**shape, "bigram_candidates": 50})
    anchors = torch.tensor([5, 6, 7, 8])
    answer = network.answer(torch.randn(4, 6, network.config.width, dtype=torch.float64), anchors)
    last, greedy = anchors, []
    for slot in range(6):
        last = answer.log_probs(slot, last).argmax(-1)
        greedy.append(last)
    assert answer.tokens().tolist() == torch.stack(greedy, 1).tolist()


def test_only_its_own_layers_are_parameters() -> None:
    verifier = random_verifier()
    network = tiny_feature_drafter(verifier)
    names = {name.split(".")[0] for name, _ in network.named_parameters()}
    assert names == {"prefix_reader", "source_reader", "embedding", "layers", "bigrams"}
    assert network.tables.weight is verifier.output_weight


def test_laws_are_wanted_or_not() -> None:
    rounds = Rounds({}, [[2]])
    answer = rounds.network.draft(
        torch.tensor([2]),
        torch.tensor([0]),
        torch.tensor([0]),
        3,
        rounds.network.new_cache(1),
        rounds.network.encode(torch.randn(1, 4, 16, dtype=torch.float64), torch.tensor([4])),
        Wanted(logits=True),
    )
    assert answer.tokens().shape == (1, 3)
