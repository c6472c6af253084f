"""Batches of equal options and like sources, each a decoder of its own; one of them runs a round at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from spec2seq.pipelines.piece_decoder import PieceDecoder

if TYPE_CHECKING:
    from collections.abc import Callable

    from spec2seq.decoding.loop import Decoder
    from spec2seq.generation_options import ResolvedOptions
    from spec2seq.pipelines.piece_decoder import PieceNews
    from spec2seq.serving.jobs import Job

    MakeDecoder = Callable[[ResolvedOptions], Decoder]

# The lanes share the model's time, so each further one makes everybody wait longer.
MAX_LANES = 4
# A lane's share grows with the number of its jobs, but only so far: one job alone is not left far behind.
MAX_WEIGHT = 4
# What one job may hold of a lane's rows: some stay free for whoever comes next.
MAX_SHARE = 0.75
# Source tokens. All rows of a batch are padded to its longest source, and every newcomer moves what all of them hold:
# a page beside thirty sentences would cost each of these as much as a page.
LONG_SOURCE = 128


class Entry(NamedTuple):
    """A piece of a job. `is_alone`: it was in a batch that the model failed on, and is tried again by itself."""

    job: Job
    piece: int
    is_alone: bool = False

    @property
    def source_length(self) -> int:
        """Source tokens."""
        return len(self.job.pieces[self.piece].source_ids)


class LaneKey(NamedTuple):
    """Entries with equal keys may share a lane."""

    options: ResolvedOptions
    is_alone: bool
    is_long: bool

    @classmethod
    def of(cls, entry: Entry) -> LaneKey:
        return cls(entry.job.options, entry.is_alone, entry.source_length > LONG_SOURCE)


class Lane:
    """One batch.

    Attributes:
        used: seconds of the model's time, divided by the lane's weight when they were spent; the lane with the least is
            next.
    """

    def __init__(self, key: LaneKey, decoder: Decoder, used: float = 0.0) -> None:
        self.key = key
        self.decoder = decoder
        self.used = used
        self._weight = 1
        self._pieces: PieceDecoder[Entry] = PieceDecoder(decoder)
        self._requests: dict[Entry, int] = {}

    @property
    def entries(self) -> list[Entry]:
        """What is in it."""
        return list(self._requests)

    def has_room(self, entry: Entry, max_tokens: int) -> bool:
        """Whether the entry could join now, with so many tokens left for this lane. An empty lane always has room."""
        size = self.decoder.size
        if size.num_rows == 0:
            return True
        joined = size.joined(rows_of(entry), entry.source_length)
        return not entry.is_alone and joined.is_within(self.decoder.max_rows, max_tokens)

    def is_share_used(self, job: Job) -> bool:
        """Whether a job holds as many rows as one may."""
        num_rows = sum(rows_of(entry) for entry in self.entries if entry.job is job)
        return num_rows >= MAX_SHARE * self.decoder.max_rows

    def add(self, entry: Entry) -> None:
        """Let an entry in. Raises InputError or OptionError where it does not suit the model."""
        job, piece = entry.job, entry.job.pieces[entry.piece]
        (self._requests[entry],) = self._pieces.add([piece], job.options, [entry])

    def step(self) -> list[PieceNews[Entry]]:
        """One round for all entries; finished ones leave."""
        self._weight = min(len({entry.job for entry in self._requests}), MAX_WEIGHT)
        news = self._pieces.step()
        for one in news:
            if one.outcome is not None:
                del self._requests[one.owner]
        return news

    def charge(self, seconds: float) -> None:
        """The last round took so long."""
        self.used += seconds / self._weight

    def drop(self, job: Job) -> None:
        """A job's entries leave."""
        for entry in [entry for entry in self._requests if entry.job is job]:
            self._pieces.cancel(self._requests.pop(entry))


def rows_of(entry: Entry) -> int:
    """How many rows of a verifier call the entry takes up."""
    options = entry.job.options
    return options.num_return_sequences if options.do_sample else options.num_beams


class LaneSet:
    """The lanes, which share the model's time.

    Args:
        make_decoder: a new one for these options.
        max_tokens: of all lanes together.
    """

    def __init__(self, make_decoder: MakeDecoder, max_tokens: int) -> None:
        self._make_decoder = make_decoder
        self._max_tokens = max_tokens
        self._lanes: dict[LaneKey, Lane] = {}

    @property
    def entries(self) -> list[Entry]:
        """What is in any of them. May be asked for in any thread."""
        return [entry for lane in list(self._lanes.values()) for entry in lane.entries]

    def find(self, entry: Entry) -> Lane | None:
        """The lane for this entry, opened if need be; None where too many are open.

        Raises:
            OptionError: the options do not suit the drafter.
        """
        key = LaneKey.of(entry)
        if key not in self._lanes and len(self._lanes) < MAX_LANES:
            used = min((lane.used for lane in self._lanes.values()), default=0.0)  # no claim on the past
            self._lanes[key] = Lane(key, self._make_decoder(key.options), used)
        return self._lanes.get(key)

    def has_room(self, lane: Lane, entry: Entry) -> bool:
        """Whether the entry could join the lane now."""
        others = sum(other.decoder.size.tokens for other in self._lanes.values() if other is not lane)
        return lane.has_room(entry, self._max_tokens - others)

    def smallest(self) -> Lane:
        """The lane with the fewest rows."""
        return min(self._lanes.values(), key=lambda lane: lane.decoder.size.num_rows)

    def next(self) -> Lane | None:
        """The lane whose turn it is, None where nothing is to be done. Empty lanes are closed."""
        self._lanes = {key: lane for key, lane in self._lanes.items() if lane.entries}
        return min(self._lanes.values(), key=lambda lane: lane.used, default=None)

    def close(self, lane: Lane) -> list[Entry]:
        """Give up a lane. Returns what was in it."""
        del self._lanes[lane.key]
        return lane.entries

    def drop(self, job: Job) -> None:
        """A job's entries leave."""
        for lane in self._lanes.values():
            lane.drop(job)
