"""Loading engines: all from one folder, each in its own way."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spec2seq.decoding.processors import build_processors
from spec2seq.errors import MissingExtraError, UnsupportedModelError
from spec2seq.evaluation.benchmark.engines import CTranslate2Engine, OurEngine, TransformersEngine
from spec2seq.evaluation.benchmark.systems import missing_package
from spec2seq.evaluation.benchmark.task import DecodingTask
from spec2seq.evaluation.ctranslate2_peer import CTranslate2Peer, convert
from spec2seq.evaluation.peers import TransformersPeer, silence_transformers
from spec2seq.option_resolution import resolve_options
from spec2seq.pipelines.pipeline import Pipeline
from spec2seq.tokenization import TargetStart
from spec2seq.weights import read_model_config

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spec2seq.evaluation.benchmark.engines import LoadedEngine
    from spec2seq.evaluation.benchmark.systems import Engine
    from spec2seq.generation_options import ResolvedOptions


class EngineLoader:
    """Loads engines of one model for one task.

    Args:
        model: folder in Hugging Face's layout.
        drafter: as for `Pipeline.from_pretrained`, for the methods of ours that draft.
        task: what the engines will be asked to do.
        scratch: an existing folder for converted models.
        device: "cpu" or "cuda".
    """

    def __init__(
        self, model: Path, drafter: str | None, task: DecodingTask, scratch: Path, device: str = "cpu"
    ) -> None:
        self.model = model
        self.drafter = drafter
        self.task = task
        self.scratch = scratch
        self.device = device

    def as_dict(self) -> dict[str, Any]:
        """For JSON, such as for another process."""
        return {
            "model": str(self.model),
            "drafter": self.drafter,
            "task": asdict(self.task),
            "scratch": str(self.scratch),
            "device": self.device,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> EngineLoader:
        """What `as_dict` made."""
        settings = {**values["task"], "start": TargetStart(**values["task"]["start"])}
        paths = Path(values["model"]), Path(values["scratch"])
        return cls(paths[0], values["drafter"], DecodingTask(**settings), paths[1], values["device"])

    def load(self, engine: Engine) -> LoadedEngine:
        """An engine, ready to run.

        Raises:
            MissingExtraError: its package is not installed.
            UnsupportedModelError: it cannot take this model.
        """
        missing = missing_package(engine)
        if missing:
            raise MissingExtraError(missing)
        if engine.maker == "spec2seq":
            return self.load_ours(engine)
        return self._load_transformers(engine) if engine.maker == "transformers" else self._load_ctranslate2(engine)

    def load_ours(self, engine: Engine) -> OurEngine:
        """An engine of this package."""
        pipeline = Pipeline.from_pretrained(
            self.model,
            self.drafter,
            backend=engine.backend,
            device=self.device,
            dtype=engine.dtype,
            num_threads=engine.threads,
        )
        return OurEngine(pipeline, self.task)

    def _load_transformers(self, engine: Engine) -> TransformersEngine:
        silence_transformers()  # what it prints in each call would be on its clock
        banned = build_processors(self._options(), is_beam=False).static_bans
        return TransformersEngine(TransformersPeer(self.model, self.device), self.task, engine.threads, banned)

    def _load_ctranslate2(self, engine: Engine) -> CTranslate2Engine:
        if self.task.start.decoder_start is not None:
            raise UnsupportedModelError("CTranslate2 takes no decoder start token per text, which this model needs")
        converted = self.scratch / "ctranslate2"
        if not converted.exists():
            silence_transformers()
            convert(self.model, converted)
        return CTranslate2Engine(CTranslate2Peer(converted, engine.dtype, engine.threads), self.task, self._options())

    def _options(self) -> ResolvedOptions:
        config, generation = read_model_config(self.model)
        return resolve_options(generation, config, None, self.task.arguments("greedy", 0))
