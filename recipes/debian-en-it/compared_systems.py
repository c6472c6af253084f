"""The ways of decoding that the recipe compares."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from spec2seq import Pipeline
from spec2seq.evaluation.drafter_alone import DrafterAlone
from spec2seq.evaluation.pipeline_runner import PipelineRunner
from spec2seq.weights.fingerprints import file_fingerprint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spec2seq.evaluation.benchmark.timing import Runner
    from spec2seq.pipelines.arguments import GenerationArguments

GREEDY, BEAMS, ALONE = "greedy", "beam 5", "drafter alone"
NUM_BEAMS = 5
RELAXED = ((3, 1.0), (5, 3.0))  # top_beta and tau: this project's, and the paper's
PROMPT_LOOKUP = "prompt_lookup"
WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class ComparedSystem:
    """One row of a table.

    Attributes:
        name: of the row.
        drafter: folder, "prompt_lookup", or None for plain search.
        num_draft_tokens: k; None means the drafter's own.
        arguments: of `Pipeline.generate_ids`.
        is_alone: the drafter writes unchecked.
    """

    name: str
    drafter: str | None = None
    num_draft_tokens: int | None = None
    arguments: GenerationArguments = field(default_factory=lambda: {"num_beams": 1})
    is_alone: bool = False

    @property
    def file_name(self) -> str:
        """For its runs."""
        return re.sub(r"[^A-Za-z0-9.+]+", "_", self.name).strip("_") + ".jsonl"

    def job(self) -> dict[str, object]:
        """What decides the system's outputs, beside the model."""
        folder = Path(self.drafter or "")
        weights = file_fingerprint(folder / WEIGHTS) if self.drafter not in (None, PROMPT_LOOKUP) else self.drafter
        return {
            "drafter": weights,
            "num_draft_tokens": self.num_draft_tokens,
            "arguments": self.arguments,
            "is_alone": self.is_alone,
        }


@dataclass(frozen=True)
class NamedDrafter:
    """A drafter from the command line.

    Attributes:
        name: for the table.
        folder: or "prompt_lookup".
        slots: numbers of draft tokens; empty means the drafter's own.
    """

    name: str
    folder: str
    slots: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> NamedDrafter:
        """NAME=FOLDER, or NAME=FOLDER:5,10.

        Raises:
            ArgumentTypeError: it is something else.
        """
        match = re.fullmatch(r"([^=]+)=(.+?)(?::(\d+(?:,\d+)*))?", text)
        if not match:
            raise ArgumentTypeError(f"{text!r} is not NAME=FOLDER or NAME=FOLDER:5,10")
        name, folder, slots = match.groups()
        return cls(name, folder, tuple(int(number) for number in slots.split(",")) if slots else ())


def main_systems(drafter: str | None, num_draft_tokens: int | None) -> list[ComparedSystem]:
    """Plain search, and everything that a Spec-Drafter can be used for."""
    plain = [ComparedSystem(GREEDY), ComparedSystem(BEAMS, arguments={"num_beams": NUM_BEAMS})]
    if drafter is None:
        return plain
    relaxed: list[ComparedSystem] = [
        ComparedSystem(
            f"relaxed ({top_beta}, {tau})",
            drafter,
            num_draft_tokens,
            {"num_beams": 1, "top_beta": top_beta, "tau": tau},
        )
        for top_beta, tau in RELAXED
    ]
    exact = ComparedSystem("exact", drafter, num_draft_tokens)
    return [*plain, exact, *relaxed, ComparedSystem(ALONE, drafter, num_draft_tokens, is_alone=True)]


def exact_systems(drafters: Sequence[NamedDrafter]) -> list[ComparedSystem]:
    """Exact search with further drafters."""
    return [
        ComparedSystem(
            f"{drafter.name}, k = {slots}" if len(drafter.slots) > 1 else drafter.name, drafter.folder, slots
        )
        for drafter in drafters
        for slots in drafter.slots or (None,)
    ]


class SystemLoader:
    """Loads systems of one model; those with the same drafter share a pipeline.

    Args:
        model: its folder.
        backend: as for `Pipeline.from_pretrained`.
        num_threads: CPU threads.
        dtype: as for `Pipeline.from_pretrained`.
    """

    def __init__(self, model: Path, backend: str, num_threads: int, dtype: str = "float32") -> None:
        self.model = model
        self.backend = backend
        self.num_threads = num_threads
        self.dtype = dtype
        self._pipelines: dict[str | None, Pipeline] = {}

    def resolved(self, system: ComparedSystem) -> ComparedSystem:
        """The same with the number of draft tokens that will be asked for; none in plain search."""
        make_drafter = self.pipeline(system.drafter).make_drafter
        if make_drafter is None or system.num_draft_tokens:
            return system
        return replace(system, num_draft_tokens=make_drafter().default_num_draft_tokens)

    def load(self, system: ComparedSystem) -> Runner:
        """A resolved system, ready to run."""
        pipeline, count = self.pipeline(system.drafter), system.num_draft_tokens
        if pipeline.make_drafter is None or count is None:
            return PipelineRunner(pipeline, system.arguments)
        if not system.is_alone:
            return PipelineRunner(pipeline, {**system.arguments, "num_draft_tokens": count})
        device, options = pipeline.verifier.device, pipeline.options(num_beams=1)
        return DrafterAlone(pipeline.make_drafter(), pipeline.model.config, device, options, count)

    def pipeline(self, drafter: str | None) -> Pipeline:
        """The model with a drafter, or without one."""
        if drafter not in self._pipelines:
            self._pipelines[drafter] = Pipeline.from_pretrained(
                self.model, drafter, backend=self.backend, dtype=self.dtype, num_threads=self.num_threads
            )
        return self._pipelines[drafter]
