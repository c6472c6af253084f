"""Which engine runs a network, and in what precision."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

from spec2seq.backends.native.support import can_draft
from spec2seq.backends.openvino.library import has_nncf, is_installed, load_openvino
from spec2seq.errors import OptionError, UnsupportedModelError
from spec2seq.pipelines.devices import find_device

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    import torch

    from spec2seq.backends.openvino.loading import Loader
    from spec2seq.interfaces import DraftNetwork, FeatureNetwork, Verifier
    from spec2seq.nn.feature_drafter import FeatureDrafterNetwork
    from spec2seq.nn.seq2seq import Seq2Seq
    from spec2seq.nn.spec_drafter import SpecDrafterNetwork

    Backend = Literal["torch", "openvino"]
    OnNotice = Callable[[str], None]

T = TypeVar("T")

BACKENDS: tuple[Backend, ...] = ("torch", "openvino")
BACKEND_VARIABLE = "SPEC2SEQ_BACKEND"

_DTYPES: dict[Backend, tuple[str, ...]] = {
    "torch": ("float32", "bfloat16", "float16", "float64"),
    "openvino": ("float32", "bfloat16", "int8"),
}


@dataclass(frozen=True)
class EngineChoice:
    """What every network of a pipeline runs on.

    Attributes:
        backend: the engine.
        device: of torch's tensors; the CPU for OpenVINO.
        dtype: "float32", "bfloat16", ..., "int8".
        num_threads: CPU threads that were asked for.
        on_notice: told in a sentence what takes long.
    """

    backend: Backend
    device: torch.device
    dtype: str
    num_threads: int | None = None
    on_notice: OnNotice | None = None

    @classmethod
    def of(
        cls,
        backend: str,
        device: str | None,
        dtype: str,
        num_threads: int | None = None,
        on_notice: OnNotice | None = None,
    ) -> EngineChoice:
        """What these settings, as users say them, mean here.

        Raises:
            OptionError: there is no such backend, device or dtype, or they do not go together.
            MissingExtraError: OpenVINO is asked for and not installed.
        """
        place = find_device(device)
        name = os.environ.get(BACKEND_VARIABLE, backend) if backend == "auto" else backend
        if name not in (*BACKENDS, "auto"):
            raise OptionError(f"backend={name!r} does not exist; use {', '.join(BACKENDS)} or auto")
        if dtype not in {known for dtypes in _DTYPES.values() for known in dtypes}:
            known = ", ".join(dict.fromkeys(known for dtypes in _DTYPES.values() for known in dtypes))
            raise OptionError(f"dtype={dtype!r} does not exist; use one of {known}")
        chosen = _best(place, dtype) if name == "auto" else cast("Backend", name)
        if chosen == "openvino":
            _check_openvino(place)
        if dtype not in _DTYPES[chosen]:
            raise OptionError(_unsupported(dtype, chosen))
        return cls(chosen, place, dtype, num_threads, on_notice)

    @property
    def weights_dtype(self) -> str:
        """In what precision networks are loaded. OpenVINO converts from fp32."""
        return "float32" if self.backend == "openvino" else self.dtype

    def verifier(self, network: Seq2Seq, hidden_layers: tuple[int, ...] = ()) -> Verifier:
        """The engine of a network that was loaded in `weights_dtype`; `hidden_layers` are what its drafter reads."""
        if self.backend == "torch":
            from spec2seq.backends.torch_engine import TorchVerifier

            return TorchVerifier(network, self.device)
        return self._openvino.verifier(network, hidden_layers)

    def draft_network(self, network: SpecDrafterNetwork) -> DraftNetwork:
        """The engine of a Spec-Drafter that was loaded in `weights_dtype`."""
        if self.backend == "torch":
            return network.to(self.device)
        return self._drafting(lambda loader: loader.draft_network(network), has_int8=has_nncf())

    def feature_network(self, network: FeatureDrafterNetwork) -> FeatureNetwork:
        """The engine of a drafter on states that was loaded in `weights_dtype` and attached to its verifier."""
        if self.backend == "torch":
            return network
        has_int8 = has_nncf() or can_draft(network.config)
        return self._drafting(lambda loader: loader.feature_network(network), has_int8=has_int8)

    @property
    def _openvino(self) -> Loader:
        return self._loader(self.dtype)

    def _drafting(self, load: Callable[[Loader], T], *, has_int8: bool) -> T:
        """A drafter's engine, in int8 where that can be: it is fastest, and rounding costs acceptance but no output."""
        if has_int8:
            with suppress(UnsupportedModelError):
                return load(self._loader("int8"))
        return load(self._openvino)

    def _loader(self, dtype: str) -> Loader:
        from spec2seq.backends.openvino.loading import Loader
        from spec2seq.backends.openvino.precision import PRECISIONS

        precision = next(known for known in PRECISIONS if known == dtype)
        return Loader(precision, self.num_threads, on_convert=partial(self._tell_conversion, dtype))

    def _tell_conversion(self, dtype: str) -> None:
        if self.on_notice:
            self.on_notice(f"converting a model for OpenVINO ({dtype}); this is done once and takes a while")


def _best(device: torch.device, dtype: str) -> Backend:
    """OpenVINO on CPUs where it is there and has the dtype, or where nothing else has it."""
    if dtype not in _DTYPES["torch"]:
        return "openvino"
    return "openvino" if device.type == "cpu" and dtype in _DTYPES["openvino"] and is_installed() else "torch"


def _check_openvino(device: torch.device) -> None:
    if device.type != "cpu":
        raise OptionError(
            f"device={device.type!r}: OpenVINO runs on the CPU here; use device='cpu', or backend='torch' with a "
            "dtype that it has"
        )
    if not is_installed():
        load_openvino()  # raises with the way out


def _unsupported(dtype: str, backend: Backend) -> str:
    other = next(name for name in BACKENDS if dtype in _DTYPES[name])
    return (
        f"dtype={dtype!r} is not supported with backend={backend!r}; use {', '.join(_DTYPES[backend])}, or "
        f"backend={other!r}"
    )
