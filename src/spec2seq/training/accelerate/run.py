"""The stages of an acceleration, in their order."""

from __future__ import annotations

import shutil
import warnings
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from spec2seq.errors import InputError
from spec2seq.pipelines.engines import EngineChoice
from spec2seq.pipelines.pipeline import Pipeline
from spec2seq.training.accelerate import budget
from spec2seq.training.accelerate.comparing import Comparing
from spec2seq.training.accelerate.preparation import check_disk, check_packages
from spec2seq.training.accelerate.probes import PROBE_STEPS, search_arguments, time_lines, time_training
from spec2seq.training.accelerate.progress import StageProgress
from spec2seq.training.accelerate.report import write_report
from spec2seq.training.accelerate.request import told_seconds
from spec2seq.training.accelerate.source_split import SourceSplit, check_language, evenly, split_source
from spec2seq.training.accelerate.stages import Stages, write_whole
from spec2seq.training.accelerate.systems import SystemMaker
from spec2seq.training.distillation import Distillation, DistillationSettings
from spec2seq.training.drafter_training import WORK_FOLDER, train_drafter
from spec2seq.training.shards import read_manifest
from spec2seq.training.source_lines import SourceLines
from spec2seq.weights import load_model
from spec2seq.weights.drafter_folder import choose_num_draft_tokens
from spec2seq.weights.fingerprints import VerifierFingerprint

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from spec2seq.training.accelerate.request import AccelerationRequest
    from spec2seq.training.settings import TrainingPlan
    from spec2seq.training.shapes import Kind

NUM_STAGES = 5
SHARD_LINES = 200
MAX_LOOP_SHARE = 0.8  # of the outputs; such text or such a model teaches nothing
_MANY_LOOPS = 0.2


@dataclass(frozen=True)
class Place:
    """What to run on; it may change from one run to the next.

    Attributes:
        backend, device, num_threads: as for `Pipeline.from_pretrained`; the training is torch's in any case.
    """

    backend: str = "auto"
    device: str = "cpu"
    num_threads: int | None = None


def accelerate(model: str, request: AccelerationRequest, place: Place, tell: Callable[[str], None]) -> dict[str, Any]:
    """Make a drafter for a model and measure what it gains. An acceleration that was interrupted goes on.

    Args:
        model: folder or Hub id.
        tell: told what is done, and how long it will take.

    Returns:
        What the measurement came to, see `Comparing.compare`.

    Raises:
        OptionError: the folder holds something else or an acceleration with other arguments; too little disk.
        InputError: too few lines, or text that the model was not made for.
        ModelNotFoundError, CheckpointError, UnsupportedModelError: the model or its tokenizer cannot be loaded.
        MissingExtraError: packages for training are missing.
    """
    return _Acceleration(model, request, place, tell).run()


class _Acceleration:
    def __init__(self, model: str, request: AccelerationRequest, place: Place, tell: Callable[[str], None]) -> None:
        check_packages()
        self._model, self._request, self._place, self._tell = model, request, place, tell
        source = SourceLines.read(request.source)
        self._split = split_source(source)
        engine = EngineChoice.of(place.backend, place.device, "float32", place.num_threads, tell)
        self._pipeline = Pipeline.from_pretrained(
            model, None, place.backend, place.device, num_threads=place.num_threads, on_notice=tell
        )
        check_language(self._split.training, self._pipeline.load_tokenizer(), source.name)
        loaded = self._pipeline.model
        kinds = budget.kinds_to_try(request.kind, request.budget_seconds)
        plan = budget.sized_plan(kinds[-1], request.budget_seconds, budget.MAX_STEPS)
        check_disk(request.output, plan, loaded.config, len(source.raw))
        fingerprint = VerifierFingerprint.of(loaded.path, loaded.config, loaded.tensors)
        job = {"MODEL": fingerprint.weights, "--source": source.digest, **request.as_job()}
        self._stages = Stages(request.output, job)
        self._maker = SystemMaker(self._pipeline, engine, request)
        self._pairs = self._stages.folder / "pairs"

    def run(self) -> dict[str, Any]:
        """All stages; those that are done are not repeated."""
        _tell_split(self._split, self._tell)
        distilling = self._stages.run("distilling", self._plan_distilling)
        self._stages.run("distilled", lambda: self._distil(distilling))
        training = self._stages.run("training", lambda: self._plan_training(distilling))
        self._stages.run("trained", lambda: self._train(training))
        choice = self._stages.run("choice", lambda: self._choose(distilling, training))
        measured = self._stages.run("measured", lambda: self._measure(distilling, choice))
        self._stages.run("reported", lambda: self._report(choice, measured))
        return measured

    def _announce(self, number: int, what: str) -> None:
        self._tell(f"[{number}/{NUM_STAGES}] {what}")

    def _plan_distilling(self) -> dict[str, Any]:
        request, lines = self._request, self._split.training
        batched, single = time_lines(self._pipeline, lines, request)
        num_lines = request.num_lines or budget.lines_to_distil(request.budget_seconds, batched, len(lines))
        return {"num_lines": min(num_lines, len(lines)), "seconds_per_line": batched, "single_seconds": single}

    def _distil(self, plan: dict[str, Any]) -> dict[str, Any]:
        num_lines, request = plan["num_lines"], self._request
        expected = told_seconds(num_lines * plan["seconds_per_line"])
        self._announce(1, f"distil: the model's own outputs for {num_lines} lines, about {expected}")
        file = self._stages.folder / "training.txt"
        write_whole(file, "".join(f"{line}\n" for line in evenly(self._split.training, num_lines)))
        options = self._pipeline.options(**search_arguments(request))
        settings = DistillationSettings(
            options, request.source_lang, request.target_lang, request.source_prefix, shard_lines=SHARD_LINES
        )
        chosen = replace(SourceLines.read(file), name=f"{num_lines} lines of {request.source}")
        distillation = Distillation(self._pipeline, chosen, self._pairs, settings)
        progress, done = StageProgress(self._tell, "lines"), distillation.num_done

        def on_line() -> None:
            nonlocal done
            done += 1
            progress(done, num_lines)

        distillation.run(on_line)
        return {"totals": self._checked_totals()}

    def _checked_totals(self) -> dict[str, Any]:
        """Refuses outputs that teach nothing."""
        totals: dict[str, Any] = read_manifest(self._pairs)["totals"]
        share = totals["num_degenerate"] / max(1, totals["num_pairs"])
        if share > MAX_LOOP_SHARE:
            raise InputError(
                f"{share:.0%} of the model's outputs run in circles up to the limit: it does not know such text, or is "
                "trained too little; give text like that it was trained on"
            )
        if share > _MANY_LOOPS:
            warnings.warn(f"{share:.0%} of the model's outputs run in circles; they are left out", stacklevel=2)
        return totals

    def _plan_training(self, distilling: dict[str, Any]) -> dict[str, Any]:
        """The kind, by trying where there is time, and the number of updates."""
        request = self._request
        kinds = budget.kinds_to_try(request.kind, request.budget_seconds)
        left = request.budget_seconds * (1 - budget.MEASURING)
        left -= distilling["num_lines"] * distilling["seconds_per_line"]
        if len(kinds) == 1:
            return self._sized(kinds[0], left)
        share = request.budget_seconds * budget.TRYING
        tried = {kind: self._try(kind, share / len(kinds), distilling) for kind in kinds}
        best = min(kinds, key=lambda kind: tried[kind]["seconds"] / tried[kind]["greedy_seconds"])
        self._tell(f"going on with kind {best}")
        return {**self._sized(best, left - share), "tried": tried}

    def _try(self, kind: Kind, seconds: float, distilling: dict[str, Any]) -> dict[str, Any]:
        """Train a kind for a while and measure it."""

        def work() -> dict[str, Any]:
            sized = self._sized(kind, seconds)
            self._tell(f"trying kind {kind}: {sized['steps']} updates, about {told_seconds(seconds)}")
            plan = budget.sized_plan(kind, self._request.budget_seconds, sized["steps"])
            folder = self._stages.folder / f"trial-{kind}"
            self._train_in(folder, plan)
            return self._comparing(f"trial-{kind}-runs", distilling).choose(
                folder, plan.shape.block_size, self._split.deciding
            )

        return self._stages.run(f"tried-{kind}", work)

    def _sized(self, kind: Kind, seconds: float) -> dict[str, Any]:
        """How many updates fit into a time."""
        request = self._request
        if request.steps:
            return {"kind": kind, "steps": request.steps, "seconds": None}
        folder = self._stages.folder / f"probe-{kind}"
        shutil.rmtree(folder, ignore_errors=True)
        plan = budget.probe_plan(kind, request.budget_seconds, PROBE_STEPS)
        step = time_training(load_model(self._model), self._pairs, folder, plan, self._place.device)
        shutil.rmtree(folder)
        steps = budget.training_steps(seconds, step)
        return {"kind": kind, "steps": steps, "seconds": steps * step}

    def _train(self, training: dict[str, Any]) -> dict[str, Any]:
        plan = budget.sized_plan(training["kind"], self._request.budget_seconds, training["steps"])
        about = f", about {told_seconds(training['seconds'])}" if training["seconds"] else ""
        self._announce(2, f"train: a drafter of kind {training['kind']}, {training['steps']} updates{about}")
        self._train_in(self._request.output, plan)
        return {"plan": plan.as_job()}

    def _train_in(self, folder: Path, plan: TrainingPlan) -> None:
        progress, total = StageProgress(self._tell, "updates"), plan.settings.steps

        def on_log(step: int, logs: dict[str, float]) -> None:
            rate = logs.get("eval_tokens_per_round")
            progress(step, total, "" if rate is None else f", {rate:.2f} tokens per round")

        train_drafter(load_model(self._model), [self._pairs], folder, plan, self._place.device, on_log)

    def _comparing(self, name: str, distilling: dict[str, Any]) -> Comparing:
        folder = self._stages.folder / name
        return Comparing(self._maker, self._request, folder, distilling["single_seconds"], self._tell)

    def _choose(self, distilling: dict[str, Any], training: dict[str, Any]) -> dict[str, Any]:
        self._announce(3, "choose: how many tokens to draft, on held-out lines")
        output, lines = self._request.output, self._split.deciding
        comparing = self._comparing("runs", distilling)
        plan = budget.sized_plan(training["kind"], self._request.budget_seconds, training["steps"])
        choice = comparing.choose(output, plan.shape.block_size, lines)
        choose_num_draft_tokens(output, choice["num_draft_tokens"])
        if self._request.is_relaxed:
            choice["relaxed"] = comparing.choose_relaxed(output, choice["num_draft_tokens"], lines)
        return choice

    def _measure(self, distilling: dict[str, Any], choice: dict[str, Any]) -> dict[str, Any]:
        self._announce(4, "measure: greedy, beam and speculative search, on other held-out lines")
        chosen = choice.get("relaxed", {}).get("chosen") or {"top_beta": 1, "tau": 1.0}
        settings = {
            "num_draft_tokens": choice["num_draft_tokens"],
            "top_beta": chosen["top_beta"],
            "tau": chosen["tau"],
        }
        return self._comparing("runs", distilling).compare(self._request.output, settings, self._split.measuring)

    def _report(self, choice: dict[str, Any], measured: dict[str, Any]) -> dict[str, Any]:
        output = self._request.output
        self._announce(5, f"write: model card and pictures in {output}")
        write_report(output, choice, measured)
        shutil.rmtree(output / WORK_FOLDER, ignore_errors=True)
        for trial in self._stages.folder.glob("trial-*"):
            shutil.rmtree(trial)
        return {"place": asdict(self._place)}


def _tell_split(split: SourceSplit, tell: Callable[[str], None]) -> None:
    held_out = len(split.deciding) + len(split.measuring)
    left_out = f"; left out, blank or repeated: {split.num_left_out}" if split.num_left_out else ""
    tell(f"{len(split.training)} lines to train on, {held_out} held out{left_out}")
