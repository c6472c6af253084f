"""The trie of evaluated prefixes: where nodes live, what they see, and which slots are given to others."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from spec2seq.decoding.draft_tree import DraftLaws, LawRecorder, grow_draft_tree
from spec2seq.decoding.trie import NOWHERE, PrefixTrie
from spec2seq.types import DraftBlock, Prefix

NOTHING = -torch.inf


def start(*prompts: list[int], num_candidates: int = 2) -> PrefixTrie:
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(prompt) for prompt in prompts], batch_first=True)
    return PrefixTrie.start(Prefix(ids, torch.tensor([len(prompt) for prompt in prompts])), num_candidates)


def add(trie: PrefixTrie, parents: list[list[int]], tokens: list[list[int]]) -> list[list[int]]:
    """Insert nodes; a parent of 0 marks a place without one."""
    return trie.insert(torch.tensor(parents), torch.tensor(tokens), torch.tensor(parents) != NOWHERE).tolist()


def texts(trie: PrefixTrie, slots: list[list[int]]) -> list[list[list[int]]]:
    """The prefixes in these slots as lists of ids."""
    ids, lengths = trie.prefixes(torch.tensor(slots))
    return [
        [row[:length] for row, length in zip(group, group_lengths, strict=True)]
        for group, group_lengths in zip(ids.tolist(), lengths.tolist(), strict=True)
    ]


def test_committed_tokens_are_a_chain_to_feed() -> None:
    trie = start([7, 8, 9], [5])
    feed = trie.feed()
    assert feed.lengths.tolist() == [3, 1]
    assert feed.tokens[0].tolist() == [7, 8, 9]
    assert feed.positions[0].tolist() == [0, 1, 2]
    assert feed.slots.tolist() == [[1, 2, 3], [1, NOWHERE, NOWHERE]]
    assert feed.visible[0].long().tolist() == [[0, 1, 0, 0], [0, 1, 1, 0], [0, 1, 1, 1]]
    assert feed.visible[1].long().tolist() == [[0, 1, 0, 0], [0] * 4, [0] * 4]
    assert trie.num_pending.tolist() == [0, 0]
    assert texts(trie, [[3, 2], [1, 1]]) == [[[7, 8, 9], [7, 8]], [[5], [5]]]


def test_nodes_are_found_where_they_were_put_and_nowhere_else() -> None:
    trie = start([7, 8], [5])
    slots = add(trie, [[2, 2, 2], [0, 1, 0]], [[20, 21, 22], [9, 20, 9]])
    assert slots == [[3, 4, 5], [NOWHERE, 2, NOWHERE]]
    parents, tokens = torch.tensor([[2, 2, 1], [1, 1, 2]]), torch.tensor([[22, 23, 20], [20, 21, 20]])
    assert trie.find(parents, tokens).tolist() == [[5, NOWHERE, NOWHERE], [2, NOWHERE, NOWHERE]]
    assert texts(trie, [[4, 5], [2, 2]]) == [[[7, 8, 21], [7, 8, 22]], [[5, 20], [5, 20]]]
    assert trie.find(torch.tensor([[NOWHERE], [NOWHERE]]), torch.tensor([[9], [9]])).tolist() == [[NOWHERE], [NOWHERE]]
    # what is there already is not put there again, nor does it hide behind what was not put anywhere
    again, not_new = torch.tensor([[2], [1]]), torch.tensor([[False], [False]])
    assert trie.insert(again, torch.tensor([[22], [20]]), not_new).tolist() == [[NOWHERE], [NOWHERE]]
    assert trie.find(again, torch.tensor([[22], [20]])).tolist() == [[5], [2]]


def test_only_new_nodes_are_fed_and_see_their_own_prefix() -> None:
    trie = start([7, 8], [5])
    trie.feed()
    add(trie, [[2, 2], [1, 0]], [[20, 21], [30, 9]])
    add(trie, [[4, 0], [2, 2]], [[22, 9], [31, 32]])
    feed = trie.feed()
    assert feed.tokens[0].tolist() == [20, 21, 22]
    assert feed.tokens[1].tolist() == [30, 31, 32]
    assert feed.positions.tolist() == [[2, 2, 3], [1, 2, 2]]
    seen = [[row.nonzero().flatten().tolist() for row in group] for group in feed.visible]
    assert seen == [[[1, 2, 3], [1, 2, 4], [1, 2, 4, 5]], [[1, 2], [1, 2, 3], [1, 2, 4]]]


def test_dead_branches_give_their_slots_to_new_nodes() -> None:
    trie = start([7])
    add(trie, [[1, 1]], [[20, 21]])  # slots 2, 3
    add(trie, [[2, 3, 3]], [[22, 23, 24]])  # slots 4, 5, 6
    trie.feed()
    # One hypothesis lives at 21, one was not guessed and continues 21 as well: 20 and what follows it are dead.
    trie.prune(torch.tensor([[3, NOWHERE]]), torch.tensor([[1, 3]]))
    assert trie.find(torch.tensor([[1, 1, 2, 3, 3]]), torch.tensor([[20, 21, 22, 23, 24]])).tolist() == [
        [0, 3, 0, 5, 6]
    ]
    assert add(trie, [[3, 5, 5]], [[25, 26, 27]]) == [[2, 4, 7]]
    assert texts(trie, [[2, 4, 7]]) == [[[7, 21, 25], [7, 21, 23, 26], [7, 21, 23, 27]]]
    assert trie.feed().tokens.tolist() == [[25, 26, 27]]


def test_what_is_known_of_a_node_stays_with_it() -> None:
    trie = start([7], [8], num_candidates=1)
    slots = torch.tensor([[1, NOWHERE], [NOWHERE, 1]])
    trie.store(slots, torch.tensor([[[-1.0], [-9.0]], [[-9.0], [-2.0]]]), torch.tensor([[[11], [0]], [[0], [12]]]))
    values, ids = trie.candidates(torch.tensor([[1], [1]]))
    assert values.flatten().tolist() == [-1.0, -2.0]
    assert ids.flatten().tolist() == [11, 12]


def test_tries_grow_join_and_leave() -> None:
    long, short = start(list(range(100, 163))), start([5])
    assert (long.num_slots, short.num_slots) == (64, 64)
    slots = add(long, [[63, 63]], [[20, 21]])  # there is no room any more
    assert slots == [[64, 65]]
    assert long.num_slots == 128
    both = short.append(long)
    assert texts(both, [[1], [65]]) == [[[5]], [[*range(100, 163), 21]]]
    assert both.feed().lengths.tolist() == [1, 65]
    last = both.select_groups(torch.tensor([1]))
    assert texts(last, [[64]]) == [[[*range(100, 163), 20]]]
    assert last.num_pending.tolist() == [0]


class TestLawRecorder:
    LOG_PROBS = torch.tensor([[0.5, 0.1, 0.25, 0.15], [0.1, 0.2, 0.3, 0.4]]).log()

    def test_the_likeliest_token_goes_on_and_the_others_are_remembered(self) -> None:
        recorder = LawRecorder(2, torch.tensor([0]))
        first, second = recorder(self.LOG_PROBS, 0), recorder(self.LOG_PROBS.flip(0), 1)
        assert (first.tolist(), second.tolist()) == ([2, 3], [3, 2])
        laws = recorder.laws(DraftBlock(torch.stack([first, second], 1), torch.tensor([2, 1])), 2, 3)
        assert laws.ids[:, 0, :2].tolist() == [[[2, 3], [3, 2]], [[3, 2], [2, 3]]]
        expected = torch.tensor([[[0.25, 0.15], [0.4, 0.3], [0.0, 0.0]], [[0.4, 0.3], [0.0, 0.0], [0.0, 0.0]]])
        torch.testing.assert_close(laws.values[:, 0].exp(), expected)

    def test_a_drafter_that_chooses_nothing_is_certain(self) -> None:
        recorder = LawRecorder(2, torch.tensor([], dtype=torch.long))
        laws = recorder.laws(DraftBlock(torch.tensor([[5, 6], [7, 0]]), torch.tensor([2, 1])), 1, 3)
        assert laws.ids[0, :, :2, 0].tolist() == [[5, 6], [7, 0]]
        assert laws.values[0, :, :, 0].tolist() == [[0.0, 0.0, NOTHING], [0.0, NOTHING, NOTHING]]
        assert bool((laws.values[..., 1] == NOTHING).all())

    def test_an_empty_block_expects_nothing(self) -> None:
        laws = LawRecorder(2, torch.tensor([0])).laws(DraftBlock.empty(4), 2, 3)
        assert laws.values.shape == (2, 2, 3, 2)
        assert bool((laws.values == NOTHING).all())


class TestDraftTree:
    """Two hypotheses, [9, 20] in slot 2 with score -1 and [9, 21] in slot 3 with score -2."""

    SLOTS, SCORES = torch.tensor([[2, 3]]), torch.tensor([[-1.0, -2.0]])

    @pytest.fixture
    def trie(self) -> PrefixTrie:
        trie = start([9])
        add(trie, [[1, 1]], [[20, 21]])
        return trie

    @staticmethod
    def laws(*slots: list[list[tuple[int, float]]]) -> DraftLaws:
        """Per hypothesis and slot, ids with log-probabilities."""
        table = torch.tensor(slots, dtype=torch.float64)[None]
        return DraftLaws(table[..., 1].float(), table[..., 0].long())

    LAWS = (
        [[(30, -0.5), (31, -4.0)], [(40, -0.1), (41, -3.0)]],
        [[(32, -0.2), (33, -1.0)], [(42, -0.3), (43, -9.0)]],
    )

    def grow(self, trie: PrefixTrie, *, width: int = 3, room: int = 9, ends: Tensor | None = None) -> list[list[int]]:
        """Prefixes that were added, without the committed token."""
        ends = torch.tensor([], dtype=torch.long) if ends is None else ends
        before = set(trie.is_used[0].nonzero().flatten().tolist())
        grow_draft_tree(trie, self.SLOTS, self.SCORES, self.laws(*self.LAWS), ends, torch.tensor([room]), width)
        added = sorted(set(trie.is_used[0].nonzero().flatten().tolist()) - before)
        return [row[1:] for row in texts(trie, [added])[0]]

    def test_the_best_prefixes_of_every_length_are_kept(self, trie: PrefixTrie) -> None:
        """Totals: 30: -1.5, 32: -2.2, 33: -3.0, 31: -5.0; then 30 40: -1.6, 32 42: -2.5, 33 42: -3.3, 30 41: -4.5."""
        firsts, seconds = [[20, 30], [21, 32], [21, 33]], [[20, 30, 40], [21, 32, 42], [21, 33, 42]]
        assert self.grow(trie) == firsts + seconds

    def test_ends_and_the_length_limit_stop_it(self, trie: PrefixTrie) -> None:
        assert self.grow(trie, room=1) == [[20, 30], [21, 32], [21, 33]]
        assert self.grow(start_again(), room=0) == []
        assert self.grow(start_again(), ends=torch.tensor([40, 32])) == [
            [20, 30], [21, 33], [20, 31], [21, 33, 42], [20, 30, 41], [20, 31, 41],
        ]  # fmt: skip

    def test_what_the_verifier_said_counts_more_than_the_drafter(self, trie: PrefixTrie) -> None:
        """The first hypothesis was asked about, and so was its continuation by 50."""
        add(trie, [[2]], [[50]])  # slot 4
        trie.feed()
        trie.is_fed[0, 3] = False
        values = torch.tensor([[[-0.1, -0.2], [-0.4, -0.5]]])
        trie.store(torch.tensor([[2, 4]]), values, torch.tensor([[[50, 51], [60, 61]]]))
        expected = [[20, 51], [21, 32], [20, 51, 40], [20, 50, 60], [20, 50, 61]]
        assert self.grow(trie) == expected

    def test_impossible_hypotheses_and_broken_numbers_are_left_alone(self, trie: PrefixTrie) -> None:
        nothing = DraftLaws(torch.full((1, 2, 2, 2), torch.nan), torch.zeros(1, 2, 2, 2, dtype=torch.long))
        no_ends, room = torch.tensor([], dtype=torch.long), torch.tensor([9])
        grow_draft_tree(trie, self.SLOTS, self.SCORES, nothing, no_ends, room, 4)
        grow_draft_tree(trie, self.SLOTS, self.SCORES - 1e9, self.laws(*self.LAWS), no_ends, room, 4)
        assert trie.num_pending.tolist() == [3]


def start_again() -> PrefixTrie:
    trie = start([9])
    add(trie, [[1, 1]], [[20, 21]])
    return trie
