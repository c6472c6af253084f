"""Models that transformers has loaded, and the engines that run them here."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from spec2seq.backends.torch_engine import TorchVerifier
from spec2seq.errors import OptionError
from spec2seq.pipelines.drafter_choice import choose_drafter
from spec2seq.pipelines.engines import EngineChoice
from spec2seq.pipelines.pipeline import Pipeline
from spec2seq.weights.sharing import share_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from spec2seq.interfaces import Drafter
    from spec2seq.pipelines.drafter_choice import MakeDrafter

    # a name, a folder, or what makes the drafter of a call
    DrafterChoice = str | Path | Callable[[], Drafter] | None

_LOCK = threading.Lock()
_KNOWN: WeakKeyDictionary[Any, LiveModel] = WeakKeyDictionary()


class LiveModel:
    """The engine of one model object, with memory in common, and the drafters that were loaded for it."""

    def __init__(self, model: Any, tensors: dict[str, Tensor]) -> None:
        name = str(getattr(model.config, "name_or_path", "") or type(model).__name__)
        self._shared = share_model(tensors, model.config.to_dict(), model.generation_config.to_dict(), name)
        self._verifier = TorchVerifier(self._shared.loaded.network, next(iter(tensors.values())).device)
        self._makers: dict[str, MakeDrafter | None] = {}
        self._places = _places(tensors)

    def is_current(self, tensors: dict[str, Tensor]) -> bool:
        """Whether these tensors still are where they were when memory became common."""
        return _places(tensors) == self._places

    def pipeline(self, drafter: DrafterChoice) -> Pipeline:
        """The model with a drafter; what differs in type is copied anew."""
        self._shared.refresh()
        return Pipeline(self._shared.loaded, self._verifier, self._maker(drafter))

    def _maker(self, drafter: DrafterChoice) -> MakeDrafter | None:
        if drafter is not None and not isinstance(drafter, str | Path):
            if callable(drafter):
                return drafter
            raise OptionError(
                f"drafter is a {type(drafter).__name__}; give a name, a folder, or a function that makes a new drafter"
            )
        key = str(drafter)
        if key not in self._makers:
            dtype = str(self._verifier.dtype).removeprefix("torch.")
            engine = EngineChoice("torch", self._verifier.device, dtype)
            self._makers[key] = choose_drafter(drafter, self._shared.loaded, engine)
        return self._makers[key]


def live_model(model: Any) -> LiveModel:
    """The engine of a model object of transformers, made when it is first needed and when its weights have moved.

    Raises:
        UnsupportedModelError, CheckpointError: the model is of another kind, or its weights are not simply there.
    """
    tensors = _stored_tensors(model)
    with _LOCK:
        known = _KNOWN.get(model)
        if known is None or not known.is_current(tensors):
            known = _KNOWN[model] = LiveModel(model, tensors)
        return known


def _stored_tensors(model: Any) -> dict[str, Tensor]:
    """The parameters and stored buffers themselves; a state_dict holds other objects."""
    tensors = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    return {name: tensors[name] for name in model.state_dict()}


def _places(tensors: dict[str, Tensor]) -> list[object]:
    return [(name, tensor.data_ptr(), tensor.dtype, tensor.shape) for name, tensor in tensors.items()]
