"""Drafting by copying: what followed the last tokens elsewhere in the source or earlier in the prefix comes next."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from spec2seq.errors import OptionError
from spec2seq.types import DraftBlock

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from spec2seq.config import ModelConfig
    from spec2seq.interfaces import Choose, EncoderOutput
    from spec2seq.types import Acceptance, DecoderOutput, Prefix, SourceBatch

    Ints = NDArray[np.int64]

_NOTHING = -1  # fills the text searched wherever there is no token
_PLACE_BITS = 24  # of a distance and of a column: text of 16 million tokens
_STEP = 1 << _PLACE_BITS  # one matching token outweighs any difference in position


class PromptLookupDrafter:
    """Copies the continuation of the last n-gram of the prefix from the source or from earlier in the prefix.

    The place where most of the last tokens match wins, newer tokens counting more; among equals the one nearest to the
    current position, counted from the start of the source or of the prefix. On translations and on lightly corrected
    text this accepted more than any fixed order of source and prefix, first and last place. A copy from the prefix
    that reaches its end repeats, as loops do.

    It works on the host in NumPy, whose small operations cost a third of torch's. Tokens are compared one by one only
    where the newest one matches, or the one before it: there are few such places.

    Args:
        config: of the verifier; the source is searched only where both sides share their ids.
        max_ngram: how many of the last tokens are compared, 1 to 8.
        min_ngram: fewest newest tokens that must match in a row. With 1, a place where the newest token differs and
            all other compared ones (two or more) match is taken too: there a word was replaced.

    Raises:
        OptionError: n-gram sizes out of order or range.
    """

    hidden_layers: tuple[int, ...] = ()
    default_num_draft_tokens = 10
    max_draft_tokens: int | None = None
    # as translation repeats its source; what is corrected or extracted repeats more, and that is soon seen
    survival: ClassVar[dict[int, tuple[float, ...]]] = {
        10: (0.15, 0.075, 0.05, 0.036, 0.03, 0.026, 0.023, 0.02, 0.018, 0.016)
    }
    chance_of_draft = 0.4

    def __init__(self, config: ModelConfig, *, max_ngram: int = 3, min_ngram: int = 1) -> None:
        if not 1 <= min_ngram <= max_ngram <= 8:
            raise OptionError(f"min_ngram={min_ngram}, max_ngram={max_ngram}; use 1 <= min_ngram <= max_ngram <= 8")
        self._searches_source = config.shares_vocabulary
        self._border = max(max_ngram - 1, 1)  # columns of nothing that keep a window of n tokens within one text
        self._ages = np.arange(max_ngram)  # of the compared tokens, newest first
        self._points = _STEP << self._ages[::-1]  # of a match
        self._steps_over = _steps_over(max_ngram, min_ngram)
        self._threshold = _STEP * _fewest_points(max_ngram, min_ngram) - _STEP // 2
        self._source: Ints = np.zeros((0, 0), np.int64)  # [B, S'], the sources between columns of nothing
        self._places: Ints = np.zeros(0, np.int64)  # [S' + T], position of each column in its own text

    def start(self, source: SourceBatch, encoded: EncoderOutput) -> None:
        """As `Drafter.start`."""
        ids, lengths = source.ids.cpu().numpy(), source.lengths.cpu().numpy()
        if not self._searches_source:
            ids = ids[:, :0]
        border = self._border
        num_known, num_columns = len(self._source), ids.shape[1] + 2 * border
        joined = np.full((num_known + len(ids), max(self._source.shape[1], num_columns)), _NOTHING)
        joined[:num_known, : self._source.shape[1]] = self._source
        is_real = np.arange(ids.shape[1]) < lengths[:, None]
        joined[num_known:, border : border + ids.shape[1]] = np.where(is_real, ids, _NOTHING)
        self._source = joined
        self._number_columns(0)

    def propose(self, prefix: Prefix, num_draft_tokens: int, choose: Choose | None = None) -> DraftBlock:
        """As `Drafter.propose`; rows without a match get an empty block. Nothing is drawn: `choose` is ignored."""
        newest = prefix.lengths.cpu().numpy() - 1
        text = self._lay_out(prefix.ids.cpu().numpy(), newest, num_draft_tokens)
        rows, places = self._find_places(text, newest)
        if not len(rows):
            return DraftBlock.empty(len(text), prefix.ids.device)
        # after `period` tokens a copy from the prefix arrives at what it is copied to
        period = self._source.shape[1] + newest[rows] - places
        columns = (places + 1)[:, None] + np.arange(num_draft_tokens) % period[:, None]
        copied = text[rows[:, None], columns]
        lengths = np.zeros(len(text), np.int64)
        lengths[rows] = np.logical_and.accumulate(copied >= 0, axis=1).sum(1)
        tokens = np.zeros((len(text), int(lengths.max())), np.int64)
        tokens[rows] = np.maximum(copied[:, : tokens.shape[1]], 0)  # what lies beyond the lengths must still be an id
        device = prefix.ids.device
        return DraftBlock(torch.from_numpy(tokens).to(device), torch.from_numpy(lengths).to(device))

    def commit(self, prefix: Prefix, acceptance: Acceptance, output: DecoderOutput) -> None:
        """As `Drafter.commit`: there is nothing to remember."""

    def select_rows(self, rows: torch.Tensor) -> None:
        """As `Drafter.select_rows`."""
        self._source = self._source[rows.cpu().numpy()]

    def _lay_out(self, ids: Ints, newest: Ints, num_draft_tokens: int) -> Ints:
        """Source, prefix, and nothing in num_draft_tokens + 1 columns."""
        source_width, longest = self._source.shape[1], int(np.maximum.reduce(newest)) + 1
        width = source_width + longest
        if width > len(self._places):
            self._number_columns(2 * longest)
        text = np.full((len(ids), width + num_draft_tokens + 1), _NOTHING)
        text[:, :source_width] = self._source
        text[:, source_width:width] = ids[:, :longest]
        if len(ids) > 1:
            text[:, source_width:width][self._places[source_width:width] > newest[:, None]] = _NOTHING
        return text

    def _find_places(self, text: Ints, newest: Ints) -> tuple[Ints, Ints]:
        """Rows in which something is like the end of the prefix, and the column of the place that is most like it."""
        ages, source_width = self._ages, self._source.shape[1]
        last = text[np.arange(len(text))[:, None], source_width + np.maximum(newest[:, None] - ages, 0)]
        is_hit = text[:, :-1] == last[:, :1]
        if self._steps_over:
            is_hit[:, 1:] |= text[:, :-2] == last[:, 1:2]
        rows, places = is_hit.nonzero()
        goes_on = text[rows, places + 1] >= 0
        rows, places = rows[goes_on], places[goes_on]
        if not len(rows):
            return rows, places
        points = (text[rows[:, None], places[:, None] - ages] == last[rows]) @ self._points
        points -= np.abs(self._places[places] - newest[rows])
        is_alike = points > self._threshold
        rows, places, points = rows[is_alike], places[is_alike], points[is_alike]
        return _best_of_each_row(rows, places, points) if len(rows) else (rows, places)

    def _number_columns(self, target_width: int) -> None:
        """Prepare for prefixes of up to `target_width` tokens."""
        source_places = np.arange(self._source.shape[1]) - self._border
        self._places = np.concatenate((source_places, np.arange(target_width)))


def _best_of_each_row(rows: Ints, places: Ints, points: Ints) -> tuple[Ints, Ints]:
    """Of the entries of every row, which come one after another, the place with most points; the first of equals."""
    keys = (points << _PLACE_BITS) - places
    starts = np.concatenate(([0], (rows[1:] != rows[:-1]).nonzero()[0] + 1))
    return rows[starts], -np.maximum.reduceat(keys, starts) & (_STEP - 1)


def _steps_over(max_ngram: int, min_ngram: int) -> bool:
    """Whether all compared tokens but the newest are enough of a match."""
    return min_ngram == 1 and max_ngram >= 3


def _fewest_points(max_ngram: int, min_ngram: int) -> int:
    """Points of the weakest match that is copied from, in units of the oldest compared token."""
    if _steps_over(max_ngram, min_ngram):
        return (1 << max_ngram - 1) - 1  # all but the newest
    return (1 << max_ngram) - (1 << max_ngram - min_ngram)
