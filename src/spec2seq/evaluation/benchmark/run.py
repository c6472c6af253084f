"""A whole benchmark on a real model, stage by stage."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from spec2seq.errors import MissingExtraError
from spec2seq.evaluation.benchmark.agreement import decode_reference
from spec2seq.evaluation.benchmark.blocks import study_blocks
from spec2seq.evaluation.benchmark.choice import candidates, choose_systems
from spec2seq.evaluation.benchmark.inputs import prepare_inputs
from spec2seq.evaluation.benchmark.loading import EngineLoader
from spec2seq.evaluation.benchmark.measuring import measure
from spec2seq.evaluation.benchmark.memory import note_memory
from spec2seq.evaluation.benchmark.provenance import commit, machine, now
from spec2seq.evaluation.benchmark.records import RecordFile, of_kind, system_as_dict, system_from_dict
from spec2seq.evaluation.benchmark.reporting import write_profile, write_report
from spec2seq.evaluation.benchmark.setup import BenchmarkSetup
from spec2seq.evaluation.benchmark.task import DecodingTask
from spec2seq.evaluation.quality import score_systems
from spec2seq.option_resolution import resolve_options
from spec2seq.pipelines.plans import TextOptions
from spec2seq.weights import read_model_config
from spec2seq.weights.checkpoint import resolve_folder
from spec2seq.weights.fingerprints import weights_fingerprint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spec2seq.evaluation.benchmark.lines import BenchmarkLines
    from spec2seq.evaluation.benchmark.measuring import MeasuredOutputs
    from spec2seq.evaluation.benchmark.records import Record
    from spec2seq.evaluation.benchmark.settings import BenchmarkSettings
    from spec2seq.evaluation.benchmark.systems import System
    from spec2seq.evaluation.benchmark.timing import Clock
    from spec2seq.evaluation.quality import Score


@dataclass(frozen=True)
class BenchmarkOrder:
    """What to compare on.

    Attributes:
        model: folder or Hub id.
        drafter: as for `Pipeline.from_pretrained`; None leaves out what drafts.
        settings: what is measured, and how often.
        source_lang, target_lang, source_prefix: as for `Pipeline.generate`.
        max_new_tokens: most tokens per output, for all systems; None means 256, or what the model has positions for.
        num_draft_tokens: of the methods that draft a fixed number; None means the drafter's own.
        device: "cpu" or "cuda".
        command: as it was called, for the record.
    """

    model: str
    drafter: str | None
    settings: BenchmarkSettings
    source_lang: str | None = None
    target_lang: str | None = None
    source_prefix: str = ""
    max_new_tokens: int | None = None
    num_draft_tokens: int | None = None
    device: str = "cpu"
    command: str = ""


def run_benchmark(
    order: BenchmarkOrder, lines: BenchmarkLines, folder: Path, tell: Callable[[str], None], clock: Clock
) -> list[Record]:
    """Compare systems on lines of text. An interrupted run keeps, and reports, what it has.

    Args:
        order: what to compare on.
        lines: texts, with references where there are any.
        folder: for the results; must not hold any.
        tell: is told what happens.
        clock: seconds.

    Returns:
        The records, as they are in the folder's file.

    Raises:
        OptionError, InputError, ModelNotFoundError, UnsupportedModelError, CheckpointError: a wrong order.
    """
    model = resolve_folder(order.model)
    records = RecordFile(folder)
    with tempfile.TemporaryDirectory(prefix="spec2seq-bench-") as scratch:
        setup = _prepare(order, model, lines, records, Path(scratch), tell, clock)
        try:
            _run_stages(setup, folder)
        finally:
            write_report(records.records, folder, tell)
    return records.records


def _prepare(
    order: BenchmarkOrder,
    model: Path,
    lines: BenchmarkLines,
    records: RecordFile,
    scratch: Path,
    tell: Callable[[str], None],
    clock: Clock,
) -> BenchmarkSetup:
    text_options = TextOptions(order.source_lang, order.target_lang, order.source_prefix, long_input="truncate")
    inputs = prepare_inputs(model, lines, text_options, clock)
    task = DecodingTask(
        max_new_tokens=_max_new_tokens(order, model),
        target_lang=order.target_lang,
        start=inputs.start,
        num_draft_tokens=order.num_draft_tokens,
    )
    record = run_record(order, weights_fingerprint(model), lines.name, len(inputs.sources), task.max_new_tokens)
    records.add("run", {**record, "blank_lines": lines.num_blank, "tokenisation_seconds": inputs.seconds})
    setup = BenchmarkSetup(
        EngineLoader(model, order.drafter, task, scratch, order.device),
        inputs.sources,
        inputs.references,
        inputs.tokenizer.decode,
        order.settings,
        records,
        tell,
        clock,
    )
    candidates(setup)  # a wrong name shows before anything is run
    return setup


def _max_new_tokens(order: BenchmarkOrder, model: Path) -> int:
    if order.max_new_tokens is not None:
        return order.max_new_tokens
    config, _ = read_model_config(model)
    return resolve_options({}, config).max_new_tokens


def run_record(order: BenchmarkOrder, weights: str, input_name: str, num_texts: int, max_new_tokens: int) -> Record:
    """What a run was, and where it was made."""
    return {
        "model": order.model,
        "weights": weights,
        "drafter": order.drafter,
        "input": input_name,
        "texts": num_texts,
        "settings": asdict(order.settings),
        "max_new_tokens": max_new_tokens,
        "device": order.device,
        "date": now(),
        "commit": commit(),
        "command": order.command,
        "machine": machine(),
    }


def _run_stages(setup: BenchmarkSetup, folder: Path) -> None:
    outputs = decode_reference(setup)
    contestants = choose_systems(setup, outputs)
    measured = measure(setup, contestants)
    _note_outputs(setup, measured, outputs)
    first = setup.settings.batch_sizes[0]
    _note_quality(setup, [one for one in measured if one.batch_size == first])
    note_memory(setup, [one.system for one in measured if one.batch_size == first])
    exact = [one.system for one in measured if one.system.contest == "spec2seq-exact"]
    profile = study_blocks(setup, exact[0], text_seconds(setup.records.records, 1)) if exact else None
    if profile:
        write_profile(profile, folder)


def _note_outputs(setup: BenchmarkSetup, measured: Sequence[MeasuredOutputs], expected: Sequence[list[int]]) -> None:
    """How many outputs are those of fp32 greedy search."""
    for one in measured:
        identical = sum(output == other for output, other in zip(one.outputs, expected, strict=True))
        values = {"batch_size": one.batch_size, "texts": len(expected), "identical": identical}
        setup.records.add("outputs", {"system": system_as_dict(one.system), **values})


def _note_quality(setup: BenchmarkSetup, measured: Sequence[MeasuredOutputs]) -> None:
    """Scores of all systems; plain greedy search is what the others are compared with, where it takes part."""
    if setup.references is None or setup.to_text is None or not measured:
        return
    setup.tell("quality")
    ordered = sorted(measured, key=lambda one: one.system.contest != "spec2seq-greedy")
    texts = {str(i): [setup.to_text(output) for output in one.outputs] for i, one in enumerate(ordered)}
    try:
        scores = score_systems(texts, setup.references, setup.settings.task)
    except MissingExtraError as error:
        setup.tell(f"no scores: {error}")
        return
    for i, one in enumerate(ordered):
        _add_scores(setup, one, scores[str(i)])


def _add_scores(setup: BenchmarkSetup, measured: MeasuredOutputs, scores: Sequence[Score]) -> None:
    values = {"batch_size": measured.batch_size, "scores": [asdict(score) for score in scores]}
    setup.records.add("quality", {"system": system_as_dict(measured.system), **values})


def text_seconds(records: Sequence[Record], batch_size: int) -> dict[str, float]:
    """Seconds per text of the fastest system of every contest among the peers, at a batch size."""
    seconds: dict[System, list[float]] = {}
    for record in of_kind(records, "pass"):
        system = system_from_dict(record["system"])
        if record["round"] > 0 and record["batch_size"] == batch_size and system.engine.maker != "spec2seq":
            seconds.setdefault(system, []).append(record["seconds"] / record["texts"])
    best: dict[str, float] = {}
    for system, its_seconds in seconds.items():
        best[system.contest] = min(best.get(system.contest, float("inf")), median(its_seconds))
    return best
