"""Drafting by copying: what followed the last tokens elsewhere in the source or earlier in the prefix comes next."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
_STEP = 1 << 32  # one matching token outweighs any difference in position


class PromptLookupDrafter:
    """Copies the continuation of the last n-gram of the prefix from the source or from earlier in the prefix.

    The place where most of the last tokens match wins, newer tokens counting more; among equals the one nearest to the
    current position, counted from the start of the source or of the prefix. On translations and on lightly corrected
    text this accepted more than any fixed order of source and prefix, first and last place. A copy from the prefix
    that reaches its end repeats, as loops do.

    It works on the host in NumPy, whose small operations cost a third of torch's.

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

    def __init__(self, config: ModelConfig, *, max_ngram: int = 3, min_ngram: int = 1) -> None:
        if not 1 <= min_ngram <= max_ngram <= 8:
            raise OptionError(f"min_ngram={min_ngram}, max_ngram={max_ngram}; use 1 <= min_ngram <= max_ngram <= 8")
        self._searches_source = config.shares_vocabulary
        self._size = max_ngram
        self._border = max(max_ngram - 1, 1)  # columns of nothing that keep a window of n tokens within one text
        self._points = [_STEP << (max_ngram - 1 - age) for age in range(max_ngram)]  # of a match, newest token first
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
        newest = prefix.lengths.cpu().numpy()[:, None] - 1
        text, width = self._lay_out(prefix.ids.cpu().numpy(), newest, num_draft_tokens)
        starts = np.arange(0, text.size, text.shape[1])[:, None]  # of the rows, for flat indices
        offsets = self._places[:width] - newest
        best, place = self._find_place(text, starts, newest, offsets)
        is_found = best > self._threshold
        if not is_found.any():
            return DraftBlock.empty(len(text), prefix.ids.device)
        # after `period` tokens a copy from the prefix arrives at what it is copied to
        period = self._source.shape[1] + newest - place
        tokens = text.take(starts + place + 1 + np.arange(num_draft_tokens) % period)
        lengths = np.logical_and.accumulate(tokens >= 0, axis=1).sum(1) * is_found
        np.maximum(tokens, 0, out=tokens)  # what lies beyond the lengths must still be an id
        device = prefix.ids.device
        return DraftBlock(torch.from_numpy(tokens).to(device), torch.from_numpy(lengths).to(device))

    def commit(self, prefix: Prefix, acceptance: Acceptance, output: DecoderOutput) -> None:
        """As `Drafter.commit`: there is nothing to remember."""

    def select_rows(self, rows: torch.Tensor) -> None:
        """As `Drafter.select_rows`."""
        self._source = self._source[rows.cpu().numpy()]

    def _lay_out(self, ids: Ints, newest: Ints, num_draft_tokens: int) -> tuple[Ints, int]:
        """Source, prefix, and nothing in num_draft_tokens + 1 columns: the text, and its width without the last."""
        source_width, longest = self._source.shape[1], int(newest.max()) + 1
        width = source_width + longest
        if width > len(self._places):
            self._number_columns(2 * longest)
        text = np.full((len(ids), width + num_draft_tokens + 1), _NOTHING)
        text[:, :source_width] = self._source
        text[:, source_width:width] = ids[:, :longest]
        if len(ids) > 1:
            text[:, source_width:width][self._places[source_width:width] > newest] = _NOTHING
        return text, width

    def _find_place(self, text: Ints, starts: Ints, newest: Ints, offsets: Ints) -> tuple[Ints, Ints]:
        """Points [B] and column [B, 1] of the place in the text that is most like the end of the prefix."""
        width, first = offsets.shape[1], self._size - 1
        points = -np.abs(offsets[:, first:])
        for age, points_of_match in enumerate(self._points):
            token = text.take(starts + self._source.shape[1] + np.maximum(newest - age, 0))
            points += (text[:, first - age : width - age] == token) * points_of_match
        points[text[:, first + 1 : width + 1] < 0] = _NOTHING  # nothing follows there
        return points.max(1), points.argmax(1)[:, None] + first

    def _number_columns(self, target_width: int) -> None:
        """Prepare for prefixes of up to `target_width` tokens."""
        source_places = np.arange(self._source.shape[1]) - self._border
        self._places = np.concatenate((source_places, np.arange(target_width)))


def _fewest_points(max_ngram: int, min_ngram: int) -> int:
    """Points of the weakest match that is copied from, in units of the oldest compared token."""
    if min_ngram == 1 and max_ngram >= 3:
        return (1 << max_ngram - 1) - 1  # all but the newest
    return (1 << max_ngram) - (1 << max_ngram - min_ngram)
