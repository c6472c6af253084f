"""Lines in, lines out: what `generate` and `translate` share."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from spec2seq.cli.lines import Line, in_chunks, open_lines
from spec2seq.cli.options import tell
from spec2seq.cli.output import is_resumable, open_output
from spec2seq.cli.progress import line_progress
from spec2seq.cli.speed_up import NUM_LINES, speed_up_text
from spec2seq.cli.summary import Summary
from spec2seq.cli.writing import LineWriter
from spec2seq.errors import OptionError
from spec2seq.pipelines import Pipeline

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spec2seq.cli.lines import LineSource
    from spec2seq.cli.output import Output
    from spec2seq.pipelines.arguments import GenerationArguments, LongInput

# Enough for sorting by length to fill batches with equals, few enough that results come out soon.
CHUNK_LINES = 1024


@dataclass(frozen=True)
class TextFlags:
    """Flags that decide what the output is, together with the model, the input and the generation options."""

    source_lang: str | None = None
    target_lang: str | None = None
    source_prefix: str = ""
    long_input: LongInput | None = None
    jsonl: bool = False


@dataclass(frozen=True)
class EngineFlags:
    """Flags that decide how fast the output comes."""

    threads: int | None
    backend: str
    dtype: str
    device: str
    batch_tokens: int


@dataclass(frozen=True)
class Run:
    """A model to run over lines.

    Attributes:
        model: folder or Hub id.
        drafter: as for `Pipeline.from_pretrained`.
        generation: options that were said.
        stats: whether a summary goes to stderr at the end.
    """

    model: str
    drafter: str | None
    text: TextFlags
    engine: EngineFlags
    generation: GenerationArguments
    stats: bool

    def over_file(self, input_path: Path | None, output_path: Path | None) -> None:
        """Run over a file or stdin, line by line, continuing an interrupted run of the same job."""
        if input_path and output_path and input_path.is_file() and input_path.resolve() == output_path.resolve():
            raise OptionError(f"--output {output_path} is the input itself and would replace it; name another file")
        source = open_lines(input_path, is_resumable=is_resumable(output_path))
        pipeline = self._load()
        output = open_output(output_path, self._job(source))
        chunk_size = 1 if source.stream is not None and sys.stdin.isatty() else CHUNK_LINES
        summary = Summary()
        first_lines: list[Line] = []
        with line_progress(source.num_lines, output.num_done) as advance:
            for chunk in in_chunks(source.lines(), chunk_size):
                first_lines.extend(chunk[: NUM_LINES - len(first_lines)])
                rest = [line for line in chunk if line.number > output.num_done]
                self._generate(pipeline, rest, LineWriter(output, rest, self.text.jsonl, summary), advance)
        output.finish()
        self._finish(summary, pipeline, first_lines)

    def over_texts(self, texts: Sequence[str]) -> None:
        """Run over texts given as arguments; outputs go to stdout."""
        pipeline = self._load()
        lines = [Line(number, text, "\n") for number, text in enumerate(texts, start=1)]
        summary = Summary()
        output: Output = open_output(None, {})
        self._generate(pipeline, lines, LineWriter(output, lines, self.text.jsonl, summary))
        self._finish(summary, pipeline, lines[:NUM_LINES])

    def _load(self) -> Pipeline:
        """The model with its tokenizer, so that nothing is loaded once the clock runs."""
        engine = self.engine
        pipeline = Pipeline.from_pretrained(
            self.model, self.drafter, engine.backend, engine.device, engine.dtype, engine.threads, tell
        )
        pipeline.load_tokenizer()
        return pipeline

    def _job(self, source: LineSource) -> dict[str, object]:
        """All that decides what the output is."""
        model = str(Path(self.model).resolve()) if Path(self.model).exists() else self.model
        engine = {
            "model": model,
            "drafter": self.drafter,
            "backend": self.engine.backend,
            "dtype": self.engine.dtype,
        }
        return {"input": source.digest, **engine, **asdict(self.text), **self.generation}

    def _generate(
        self,
        pipeline: Pipeline,
        lines: Sequence[Line],
        writer: LineWriter | None = None,
        advance: Callable[[], None] = lambda: None,
        generation: GenerationArguments | None = None,
    ) -> None:
        text = self.text
        pipeline.generate(
            [line.text for line in lines],
            source_lang=text.source_lang,
            target_lang=text.target_lang,
            source_prefix=text.source_prefix,
            long_input=text.long_input,
            batch_tokens=self.engine.batch_tokens,
            on_result=writer.take if writer else None,
            on_progress=lambda finished, total: advance(),
            label=lambda index: f"line {lines[index].number}",
            **(generation or self.generation),
        )

    def _finish(self, summary: Summary, pipeline: Pipeline, lines: Sequence[Line]) -> None:
        """Print what --stats asks for. `lines` are some of those that were decoded."""
        if not self.stats:
            return
        typer.echo(summary.text(), err=True)
        options = pipeline.options(**self.generation)
        if pipeline.make_drafter and lines and options.num_draft_tokens and options.num_beams == 1:
            plain: GenerationArguments = {**self.generation, "num_draft_tokens": 0}
            text = speed_up_text(
                lambda: self._generate(pipeline, lines),
                lambda: self._generate(pipeline, lines, generation=plain),
                len(lines),
            )
            typer.echo(text, err=True)
