"""The stand-ins must be honest: the verifier notices wrong slots and positions, the drafters do what they promise."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from spec2seq.errors import InputError
from spec2seq.interfaces import Drafter
from spec2seq.testing import ConstantDrafter, OracleDrafter, RandomDrafter, TableVerifier, WrongDrafter, tiny_config
from spec2seq.types import Acceptance, DecoderOutput, Prefix, SourceBatch, TensorScores, Wanted, pad_rows

SOURCES = [[5, 6, 2], [7, 2]]
OUTPUTS = {(5, 6, 2): [10, 11, 12, 13, 2], (7, 2): [20, 2]}


def encode(model: TableVerifier, sources: list[list[int]] = SOURCES):  # type: ignore[no-untyped-def]
    return model.encode(SourceBatch.from_lists(sources, 1))


def score_all(model: TableVerifier, rows: list[list[int]], sources: list[list[int]] = SOURCES) -> torch.Tensor:
    """Scores [B, T, V] of whole prefixes in one call."""
    tokens, lengths = pad_rows(rows, 7)
    positions = torch.arange(tokens.shape[1]).expand(tokens.shape)
    cache = model.new_cache(len(rows))
    return model.decode(tokens, positions, lengths, cache, encode(model, sources), Wanted()).scores.logits()


@pytest.fixture(params=[2, None])
def model(request: pytest.FixtureRequest) -> TableVerifier:
    return TableVerifier(context=request.param)


class TestTableVerifier:
    def test_one_call_equals_many_at_ragged_positions(self, model: TableVerifier) -> None:
        rows = [[2, 3, 4, 5, 6, 8], [2, 9, 10, 11, 12, 13]]
        whole = score_all(model, rows)
        tokens, cache, encoded = torch.tensor(rows), model.new_cache(2), encode(model)
        starts = torch.tensor([[0], [0]])
        for widths in ([2, 1], [1, 3], [2, 1]):
            positions = starts + torch.arange(max(widths))
            output = model.decode(
                tokens.gather(1, positions), positions, torch.tensor(widths), cache, encoded, Wanted()
            )
            for row, width in enumerate(widths):
                first = int(starts[row])
                assert torch.equal(output.scores.logits()[row, :width], whole[row, first : first + width])
            starts = starts + torch.tensor(widths)[:, None]

    def test_overwritten_slots_leave_no_trace(self, model: TableVerifier) -> None:
        cache, encoded, one = model.new_cache(1), encode(model, SOURCES[:1]), torch.tensor([3])
        model.decode(torch.tensor([[2, 3, 4]]), torch.arange(3)[None], one, cache, encoded, Wanted())
        output = model.decode(torch.tensor([[8, 9, 4]]), torch.tensor([[1, 2, 3]]), one, cache, encoded, Wanted())
        expected = score_all(model, [[2, 8, 9, 4]], SOURCES[:1])[:, 1:]
        assert torch.equal(output.scores.logits(), expected)

    def test_a_stale_token_changes_the_answer(self) -> None:
        model = TableVerifier(context=None)
        scores = score_all(model, [[2, 3, 4, 5], [2, 8, 4, 5]], [SOURCES[0]] * 2)
        assert not torch.equal(scores[0, -1], scores[1, -1])

    def test_short_context_repeats_itself(self) -> None:
        scores = score_all(TableVerifier(context=2), [[2, 3, 4, 5], [2, 8, 4, 5]], [SOURCES[0]] * 2)
        assert torch.equal(scores[0, -1], scores[1, -1])
        assert not torch.equal(scores[0, 1], scores[1, 1])

    def test_answers_depend_on_the_source_and_not_on_its_padding(self, model: TableVerifier) -> None:
        batch = score_all(model, [[2, 3], [2, 3]])
        alone = score_all(model, [[2, 3]], [SOURCES[1]])
        assert torch.equal(batch[1], alone[0])
        assert not torch.equal(batch[0], batch[1])

    def test_another_seed_is_another_model(self) -> None:
        assert not torch.equal(score_all(TableVerifier(), [[2], [2]]), score_all(TableVerifier(seed=1), [[2], [2]]))

    def test_a_hole_in_the_prefix_is_refused(self, model: TableVerifier) -> None:
        cache, encoded, one = model.new_cache(1), encode(model, SOURCES[:1]), torch.tensor([1])
        model.decode(torch.tensor([[2]]), torch.tensor([[0]]), one, cache, encoded, Wanted())
        with pytest.raises(AssertionError, match=r"row 0: the query at position 2 sees positions \[0, -1, 2\]"):
            model.decode(torch.tensor([[3]]), torch.tensor([[2]]), one, cache, encoded, Wanted())

    def test_rows_and_slots_move_together(self, model: TableVerifier) -> None:
        cache, encoded = model.new_cache(2), encode(model)
        model.decode(torch.tensor([[2], [2]]), torch.zeros(2, 1).long(), torch.ones(2).long(), cache, encoded, Wanted())
        rows = torch.tensor([1, 0])
        cache, encoded = cache.select_rows(rows).append_rows(1), encoded.select_rows(rows)
        encoded = encoded.concat(encode(model, [[30, 31, 32, 33, 2]]))
        tokens, positions = torch.tensor([[9, 0], [8, 0], [2, 10]]), torch.tensor([[1, 2], [1, 2], [0, 1]])
        output = model.decode(tokens, positions, torch.tensor([1, 1, 2]), cache, encoded, Wanted())
        expected = score_all(model, [[2, 9], [2, 8], [2, 10]], [SOURCES[1], SOURCES[0], [30, 31, 32, 33, 2]])
        assert torch.equal(output.scores.logits()[0, 0], expected[0, 1])
        assert torch.equal(output.scores.logits()[1, 0], expected[1, 1])
        assert torch.equal(output.scores.logits()[2], expected[2])

    def test_a_tree_of_hypotheses_in_free_slots(self, model: TableVerifier) -> None:
        """Two continuations of one prefix side by side, told apart by the visibility mask."""
        cache, encoded, two = model.new_cache(1), encode(model, SOURCES[:1]), torch.tensor([2])
        model.decode(torch.tensor([[2, 3]]), torch.tensor([[0, 1]]), two, cache, encoded, Wanted())
        visible = torch.tensor([[[True, True, True, False], [True, True, False, True]]])
        output = model.decode(
            torch.tensor([[8, 9]]),
            torch.tensor([[2, 2]]),
            two,
            cache,
            encoded,
            Wanted(),
            slots=torch.tensor([[2, 3]]),
            visible=visible,
        )
        expected = score_all(model, [[2, 3, 8], [2, 3, 9]], [SOURCES[0]] * 2)[:, -1]
        assert torch.equal(output.scores.logits()[0], expected)

    def test_asked_queries_hidden_states_and_bans(self, model: TableVerifier) -> None:
        tokens, positions, lengths = torch.tensor([[2, 3, 4]]), torch.arange(3)[None], torch.tensor([3])
        encoded = encode(model, SOURCES[:1])
        whole = score_all(model, [[2, 3, 4]], SOURCES[:1])
        wanted = Wanted(hidden_layers=(0, 2), banned=(5,))
        output = model.decode(
            tokens, positions, lengths, model.new_cache(1), encoded, wanted, queries=torch.tensor([[2, 0]])
        )
        expected = whole[:, [2, 0]].clone()
        expected[..., 5] = -torch.inf
        assert torch.equal(output.scores.logits(), expected)
        assert output.hidden is not None
        assert output.hidden.shape == (1, 3, 2, 16)
        assert output.hidden.unique().numel() == output.hidden.numel()

    def test_encoder_states_carry_the_source(self, model: TableVerifier) -> None:
        encoded = encode(model)
        again = model.from_encoder(encoded.hidden, encoded.lengths)
        assert torch.equal(again.keys, encoded.keys)

    def test_parts_that_do_not_fit_are_refused(self, model: TableVerifier) -> None:
        arguments = (torch.tensor([[2]]), torch.tensor([[0]]), torch.tensor([1]))
        with pytest.raises(AssertionError, match="1 rows, 2 sources, 1 cached rows"):
            model.decode(*arguments, model.new_cache(1), encode(model), Wanted())
        with pytest.raises(AssertionError, match=r"ids 50..50 are not in the vocabulary"):
            model.decode(torch.tensor([[50]]), *arguments[1:], model.new_cache(1), encode(model, SOURCES[:1]), Wanted())
        with pytest.raises(InputError, match="source of 3 tokens exceeds 2 positions; shorten it"):
            encode(TableVerifier(tiny_config(max_positions=2)))


def started(drafter: Drafter) -> Drafter:
    batch = SourceBatch.from_lists(SOURCES, 1)
    drafter.start(batch, TableVerifier().encode(batch))
    return drafter


def propose(drafter: Drafter, rows: list[list[int]], count: int) -> list[list[int]]:
    block = drafter.propose(Prefix(*pad_rows(rows, 7)), count)
    assert block.tokens.shape == (len(rows), count)
    return [row[:length] for row, length in zip(block.tokens.tolist(), block.lengths.tolist(), strict=True)]


class TestDrafters:
    def test_oracle_knows_what_comes_next(self) -> None:
        drafter = started(OracleDrafter(OUTPUTS))
        assert propose(drafter, [[2], [2]], 3) == [[10, 11, 12], [20, 2]]
        assert propose(drafter, [[2, 10, 11], [2, 20]], 2) == [[12, 13], [2]]
        drafter.select_rows(torch.tensor([1]))
        assert propose(drafter, [[2]], 1) == [[20]]

    def test_oracle_refuses_unknown_sources(self) -> None:
        with pytest.raises(InputError, match=r"no output known for source \[7, 2\]"):
            started(OracleDrafter({(5, 6, 2): [10]}))

    def test_wrong_is_never_right(self) -> None:
        drafter = started(WrongDrafter({**OUTPUTS, (7, 2): [49, 2]}))
        assert propose(drafter, [[2], [2]], 3) == [[11, 12, 13], [0, 3]]

    def test_constant(self) -> None:
        assert propose(started(ConstantDrafter(2)), [[2], [2, 3]], 3) == [[2, 2, 2]] * 2

    def test_random_is_ragged_repeatable_and_sometimes_right(self) -> None:
        def run(outputs: dict[tuple[int, ...], list[int]]) -> list[list[int]]:
            drafter = started(RandomDrafter(3, vocab_size=50, outputs=outputs))
            return [row for _ in range(50) for row in propose(drafter, [[2], [2]], 5)]

        drafts = run(OUTPUTS)
        assert drafts == run(OUTPUTS)
        assert {len(row) for row in drafts} == set(range(6))
        right = sum(token == OUTPUTS[(5, 6, 2)][i] for row in drafts[::2] for i, token in enumerate(row))
        assert 0.6 < right / sum(map(len, drafts[::2])) < 0.8
        blind = run({})
        assert sum(row[:1] == [10] for row in blind[::2]) < 5

    @pytest.mark.parametrize("make", [lambda: ConstantDrafter(3), RandomDrafter, lambda: OracleDrafter(OUTPUTS)])
    def test_a_loop_out_of_step_is_noticed(self, make: Callable[[], Drafter]) -> None:
        drafter = started(make())
        nothing = DecoderOutput(TensorScores(torch.zeros(0)))
        two, one = Prefix(*pad_rows([[2], [2]], 1)), Prefix(*pad_rows([[2]], 1))
        drafter.commit(two, Acceptance(torch.zeros(2).long(), torch.zeros(2).long()), nothing)
        with pytest.raises(AssertionError, match="1 rows of prefixes, 2 sources were given"):
            drafter.propose(one, 3)
        with pytest.raises(AssertionError, match="1 rows of prefixes, 2 sources were given"):
            drafter.commit(one, Acceptance(torch.zeros(1).long(), torch.zeros(1).long()), nothing)
        with pytest.raises(AssertionError, match="1 rows accepted, 2 were drafted for"):
            drafter.commit(two, Acceptance(torch.zeros(1).long(), torch.zeros(1).long()), nothing)
