"""What single calls of a loaded engine cost, measured inside the real loop by a watch around every call."""

from __future__ import annotations

from collections import defaultdict
from statistics import median
from typing import TYPE_CHECKING

from spec2seq.decoding.loop import Decoder
from spec2seq.evaluation.benchmark.cost_model import CallCosts
from spec2seq.pipelines.devices import cpu_threads
from spec2seq.pipelines.piece_decoder import decoder_start
from spec2seq.types import SourceBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from spec2seq.evaluation.benchmark.engines import OurEngine
    from spec2seq.evaluation.benchmark.timing import Clock, IdLists
    from spec2seq.interfaces import Cache, Choose, Drafter, EncoderOutput, Verifier
    from spec2seq.types import Acceptance, DecoderOutput, DraftBlock, Prefix, Wanted


class CallTimes:
    """Seconds of every call by its kind and size, such as ("verify", 9)."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._seconds: dict[tuple[str, int], list[float]] = defaultdict(list)

    def add(self, kind: str, size: int, start: float) -> None:
        """Book a call that began at `start` and ends now."""
        self._seconds[kind, size].append(self.clock() - start)

    def typical(self, kind: str) -> float:
        """The mean over all calls of a kind, each call taken for the median of its size: one hiccup of the machine
        counts for nothing. 0.0 where there was no call."""
        groups = [
            (len(seconds), median(seconds)) for (its_kind, _), seconds in self._seconds.items() if its_kind == kind
        ]
        num_calls = sum(count for count, _ in groups)
        return sum(count * seconds for count, seconds in groups) / num_calls if num_calls else 0.0

    def of_size(self, kind: str, size: int) -> float | None:
        """The median of the calls of one size; None where there was none."""
        seconds = self._seconds.get((kind, size))
        return median(seconds) if seconds else None


class TimedVerifier:
    """A `Verifier` whose calls are timed, the best ids they are asked for included."""

    def __init__(self, verifier: Verifier, times: CallTimes) -> None:
        self._verifier = verifier
        self._times = times
        self.config = verifier.config
        self.device = verifier.device

    def encode(self, source: SourceBatch) -> EncoderOutput:
        start = self._times.clock()
        encoded = self._verifier.encode(source)
        self._times.add("encode", 0, start)
        return encoded

    def from_encoder(self, hidden: Tensor, lengths: Tensor) -> EncoderOutput:
        return self._verifier.from_encoder(hidden, lengths)

    def new_cache(self, num_rows: int) -> Cache:
        return self._verifier.new_cache(num_rows)

    def decode(
        self,
        tokens: Tensor,
        positions: Tensor,
        lengths: Tensor,
        cache: Cache,
        encoded: EncoderOutput,
        wanted: Wanted,
        *,
        queries: Tensor | None = None,
        slots: Tensor | None = None,
        visible: Tensor | None = None,
    ) -> DecoderOutput:
        start = self._times.clock()
        output = self._verifier.decode(
            tokens, positions, lengths, cache, encoded, wanted, queries=queries, slots=slots, visible=visible
        )
        output.scores.top(wanted.top)
        self._times.add("verify", tokens.shape[1], start)
        return output


class TimedDrafter:
    """A `Drafter` whose calls are timed."""

    def __init__(self, drafter: Drafter, times: CallTimes) -> None:
        self._drafter = drafter
        self._times = times
        self._num_drafted = 0
        self.hidden_layers = drafter.hidden_layers
        self.default_num_draft_tokens = drafter.default_num_draft_tokens
        self.max_draft_tokens = drafter.max_draft_tokens
        # what it may tell besides; see `Drafter`
        self.survival = getattr(drafter, "survival", None)
        self.chance_of_draft = getattr(drafter, "chance_of_draft", 1.0)
        self.network = getattr(drafter, "network", type(drafter))

    def start(self, source: SourceBatch, encoded: EncoderOutput) -> None:
        start = self._times.clock()
        self._drafter.start(source, encoded)
        self._times.add("start", 0, start)

    def propose(self, prefix: Prefix, num_draft_tokens: int, choose: Choose | None = None) -> DraftBlock:
        self._num_drafted = num_draft_tokens
        start = self._times.clock()
        block = self._drafter.propose(prefix, num_draft_tokens, choose)
        self._times.add("propose", num_draft_tokens, start)
        return block

    def commit(self, prefix: Prefix, acceptance: Acceptance, output: DecoderOutput) -> None:
        start = self._times.clock()
        self._drafter.commit(prefix, acceptance, output)
        self._times.add("commit", self._num_drafted, start)

    def select_rows(self, rows: Tensor) -> None:
        self._drafter.select_rows(rows)


def measure_calls(
    engine: OurEngine,
    sources: IdLists,
    block_sizes: Sequence[int],
    clock: Clock,
    tell: Callable[[str], None],
    *,
    are_blocks_full: bool = False,
) -> CallCosts:
    """Costs of the calls of one engine, from decoding some texts one at a time, plainly and in blocks.

    Args:
        engine: with a drafter, unless there are no block sizes.
        sources: a few typical texts.
        block_sizes: the k to know about, all of which the drafter can do.
        clock: seconds.
        tell: is told which k comes next.
        are_blocks_full: a drafter that proposes fewer tokens now and then is charged for whole blocks nevertheless.
    """
    verify, draft, starts = {}, {}, []
    encode = 0.0
    for num_draft_tokens in (0, *block_sizes):
        tell(f"costs of single calls, {num_draft_tokens} draft tokens")
        times = CallTimes(clock)
        with cpu_threads(engine.pipeline.num_threads):
            _decode(engine, sources, num_draft_tokens, times)
        full = times.of_size("verify", num_draft_tokens + 1) if are_blocks_full else None
        verify[num_draft_tokens] = times.typical("verify") if full is None else full
        if num_draft_tokens:
            draft[num_draft_tokens] = times.typical("propose") + times.typical("commit")
            starts.append(times.typical("start"))
        else:
            encode = times.typical("encode")
    return CallCosts(encode, median(starts or [0.0]), verify, draft)


def _decode(engine: OurEngine, sources: IdLists, num_draft_tokens: int, times: CallTimes) -> None:
    pipeline, config = engine.pipeline, engine.pipeline.model.config
    drafter = pipeline.make_drafter() if num_draft_tokens and pipeline.make_drafter else None
    verifier = TimedVerifier(pipeline.verifier, times)
    decoder = Decoder(verifier, TimedDrafter(drafter, times) if drafter else None, max_rows=1)
    options = engine.options("exact", num_draft_tokens)
    for source in sources:
        batch = SourceBatch.from_lists([source], config.pad_token_id)
        start = engine.task.start
        (request,) = decoder.add(
            batch, options, prompts=[[decoder_start(start, config)]], forced_first_tokens=[start.forced_first]
        )
        while decoder.alive:
            decoder.step()
        decoder.result(request)
