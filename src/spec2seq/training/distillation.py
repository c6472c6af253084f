"""Sequence-level distillation: a verifier's own outputs for a text file, shard by shard (Kim and Rush 2016)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING

from spec2seq.errors import OptionError
from spec2seq.pipelines.arguments import DEFAULT_BATCH_TOKENS
from spec2seq.pipelines.plans import TextOptions
from spec2seq.training.records import DistilledPair, SkippedLine
from spec2seq.training.shards import DEFAULT_SHARD_LINES, ShardWriter, read_shard, shard_path
from spec2seq.weights.fingerprints import VerifierFingerprint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from spec2seq.generation_options import ResolvedOptions
    from spec2seq.pipelines.pipeline import Pipeline
    from spec2seq.pipelines.plans import Piece
    from spec2seq.training.records import Record
    from spec2seq.training.source_lines import SourceLines
    from spec2seq.types import DecodedRequest

# only the outputs are kept, and they must not depend on the drafter or on chance
_NEUTRAL: dict[str, object] = {
    "do_sample": False,
    "num_return_sequences": 1,
    "top_beta": 1,
    "output_scores": False,
    "output_logits": False,
    "output_margin": False,
}
# options that change how fast the same outputs come
_SPEED_ONLY = ("num_draft_tokens", "speculative_beams")


@dataclass(frozen=True)
class DistillationSettings:
    """How to distil.

    Attributes:
        options: greedy or beam search.
        source_lang, target_lang, source_prefix: as for `Pipeline.generate`.
        truncates: whether lines longer than the model's positions lose their end; they are skipped otherwise.
        shard_lines: lines of the source per shard, what an interrupted run loses at most.
        batch_tokens: most rows x (source + target) tokens in one batch.
    """

    options: ResolvedOptions
    source_lang: str | None = None
    target_lang: str | None = None
    source_prefix: str = ""
    truncates: bool = False
    shard_lines: int = DEFAULT_SHARD_LINES
    batch_tokens: int = DEFAULT_BATCH_TOKENS

    def __post_init__(self) -> None:
        if self.shard_lines < 1:
            raise OptionError(f"shard_lines={self.shard_lines} is not allowed: use 1 or more")
        for name, neutral in _NEUTRAL.items():
            value = getattr(self.options, name)
            if value != neutral:
                raise OptionError(
                    f"{name}={value} has no place in distillation, which keeps one output of a greedy or beam search "
                    f"per line; use {name}={neutral}"
                )

    def as_job(self) -> dict[str, object]:
        """All of it that decides what comes out."""
        values = asdict(self)
        for name in _SPEED_ONLY:
            del values["options"][name]
        del values["batch_tokens"]
        return values


@dataclass
class DistillationReport:
    """What a finished distillation holds, and how fast this run was.

    Attributes:
        num_pairs, num_target_tokens: in all shards, target tokens with their ends of sequence.
        num_degenerate, num_cut: outputs that run in circles; that the limit cut.
        skipped: numbers of the lines without a pair, by reason.
        run_lines, run_tokens, run_seconds: what this run decoded.
        num_elsewhere: shards that another process is still at; the last one to finish completes the folder.
    """

    num_pairs: int = 0
    num_target_tokens: int = 0
    num_degenerate: int = 0
    num_cut: int = 0
    skipped: dict[str, list[int]] = field(default_factory=dict)
    run_lines: int = 0
    run_tokens: int = 0
    run_seconds: float = 0.0
    num_elsewhere: int = 0

    def count(self, record: Record) -> None:
        """Add a record to the totals."""
        if isinstance(record, SkippedLine):
            self.skipped.setdefault(record.skipped, []).append(record.line)
            return
        self.num_pairs += 1
        self.num_target_tokens += len(record.target_ids)
        self.num_degenerate += record.is_degenerate
        self.num_cut += record.finish_reason == "length"


class Distillation:
    """A verifier's outputs for a text, written to a folder. One interrupted before goes on where it was.

    Several at once, in processes of their own, share the shards of one folder.

    Args:
        pipeline: the verifier; a drafter only changes the speed.
        source: the text.
        folder: where the shards and the manifest go.

    Raises:
        OptionError: the folder holds another distillation.
        CheckpointError: a file of the folder or of the model is damaged.
    """

    def __init__(self, pipeline: Pipeline, source: SourceLines, folder: Path, settings: DistillationSettings) -> None:
        self._pipeline = pipeline
        self._source = source
        self._settings = settings
        model = pipeline.model
        fingerprint = VerifierFingerprint.of(model.path, model.config, model.tensors)
        job = {
            "source_sha256": source.digest,
            "num_lines": len(source.raw),
            "model": asdict(fingerprint),
            "dtype": str(model.network.dtype).removeprefix("torch."),
            **settings.as_job(),
        }
        self._shards = ShardWriter(folder, job, {"model": model.name, "source": source.name})
        self.num_lines = len(source.raw)

    @property
    def num_done(self) -> int:
        """Lines in the shards that are written."""
        return sum(len(self._lines(i)) for i in range(len(self._starts())) if self._shards.is_done(i))

    def run(
        self, on_line: Callable[[], None] | None = None, on_shard: Callable[[DistillationReport], None] | None = None
    ) -> DistillationReport:
        """Distil what is missing and in no other process's hands.

        Args:
            on_line: called after each line of this run.
            on_shard: called after each shard with what this run has done so far.

        Returns:
            The totals over all shards that are written.

        Raises:
            OptionError: a language code is wrong, or missing.
            OSError: a shard cannot be written.
        """
        report, start = DistillationReport(), perf_counter()
        for index in self._shards.missing(len(self._starts())):
            records = self._distil(index, on_line or _ignore)
            self._shards.write(index, records)
            report.run_lines += len(records)
            report.run_tokens += sum(len(one.target_ids) for one in records if isinstance(one, DistilledPair))
            report.run_seconds = perf_counter() - start
            if on_shard:
                on_shard(report)
        self._finish(report)
        return report

    def _finish(self, report: DistillationReport) -> None:
        num_shards = len(self._starts())
        done = [index for index in range(num_shards) if self._shards.is_done(index)]
        for index in done:
            for record in read_shard(shard_path(self._shards.folder, index)):
                report.count(record)
        report.num_elsewhere = num_shards - len(done)
        if report.num_elsewhere:
            return
        totals = {name: getattr(report, name) for name in ("num_pairs", "num_target_tokens", "num_degenerate")}
        num_skipped = {reason: len(lines) for reason, lines in report.skipped.items()}
        self._shards.finish({"num_shards": num_shards, **totals, "num_cut": report.num_cut, "skipped": num_skipped})

    def _starts(self) -> range:
        return range(0, self.num_lines, self._settings.shard_lines)

    def _lines(self, shard: int) -> range:
        start = self._starts()[shard]
        return range(start, min(start + self._settings.shard_lines, self.num_lines))

    def _distil(self, shard: int, on_line: Callable[[], None]) -> list[Record]:
        """One record per line of a shard, in order."""
        lines = self._lines(shard)
        records: dict[int, Record] = {}
        texts: dict[int, str] = {}
        for i in lines:
            decoded = _decoded(self._source.raw[i], i + 1)
            if isinstance(decoded, str):
                texts[i] = decoded
            else:
                records[i] = decoded
        pieces = self._pieces(texts, records)
        for _ in records:
            on_line()
        records.update(self._decode(pieces, texts, on_line))
        return [records[i] for i in lines]

    def _pieces(self, texts: dict[int, str], records: dict[int, Record]) -> dict[int, Piece]:
        """What the verifier is asked for each text; texts it cannot be asked for get their record."""
        settings, numbers = self._settings, list(texts)
        text_options = TextOptions(
            settings.source_lang,
            settings.target_lang,
            settings.source_prefix,
            "truncate" if settings.truncates else "split",
            lambda index: f"line {numbers[index] + 1}",
        )
        pieces = {}
        for i, plan in zip(
            numbers, self._pipeline.plan(list(texts.values()), settings.options, text_options), strict=True
        ):
            if len(plan.pieces) == 1:
                pieces[i] = plan.pieces[0]
            else:
                records[i] = SkippedLine(i + 1, "too long" if plan.pieces else "blank")
        return pieces

    def _decode(
        self, pieces: dict[int, Piece], texts: dict[int, str], on_line: Callable[[], None]
    ) -> Iterator[tuple[int, Record]]:
        outcomes: dict[int, DecodedRequest] = {}
        numbers = list(pieces)

        def take(index: int, outcome: DecodedRequest) -> None:
            outcomes[numbers[index]] = outcome
            on_line()

        options = self._settings.options
        self._pipeline.decode(list(pieces.values()), options, take, self._settings.batch_tokens)
        for i, outcome in outcomes.items():
            yield i, self._record(i + 1, texts[i], pieces[i], outcome)

    def _record(self, line: int, text: str, piece: Piece, outcome: DecodedRequest) -> Record:
        if outcome.finish_reason == "error":
            return SkippedLine(line, "model failed", outcome.error or "")
        target_ids, stats = outcome.hypotheses[0].token_ids, outcome.stats
        target = self._pipeline.tokenizer.decode(target_ids)
        return DistilledPair(
            line,
            text,
            target,
            piece.source_ids,
            target_ids,
            stats.num_forced,
            outcome.finish_reason,
            is_degenerate=stats.is_degenerate,
            decoder_start=piece.start.decoder_start,
        )


def _decoded(raw: bytes, line: int) -> str | SkippedLine:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return SkippedLine(line, "not UTF-8", f"byte {error.start + 1} (0x{raw[error.start]:02x})")
    # it would be two lines for the pipeline
    return SkippedLine(line, "carriage return inside") if "\r" in text else text


def _ignore() -> None:
    pass
