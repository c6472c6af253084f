"""What there is to compare: engines that run a model, methods of decoding on them, and which of them a run is about.

Imports no torch: the command line reads it for its help.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

from spec2seq.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Maker = Literal["spec2seq", "transformers", "ctranslate2"]
Method = Literal["greedy", "beam5", "exact", "relaxed", "auto", "assisted"]

METHODS: Mapping[Maker, tuple[Method, ...]] = {
    "spec2seq": ("greedy", "beam5", "exact", "relaxed", "auto"),
    "transformers": ("greedy", "beam5", "assisted"),
    "ctranslate2": ("greedy", "beam5"),
}
NUM_BEAMS = 5
DRAFTING: tuple[Method, ...] = ("exact", "relaxed", "auto")
# transformers drafts for one text at a time
MAX_BATCH: Mapping[Method, int] = {"assisted": 1}


@dataclass(frozen=True)
class Engine:
    """What runs a model: whose it is, on what, in which precision, with how many threads."""

    maker: Maker
    backend: str
    dtype: str
    threads: int

    @property
    def name(self) -> str:
        """Without the threads: all that may change an output."""
        return f"{self.backend}-{self.dtype}"

    @property
    def label(self) -> str:
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        return f"{self.precision}, {threads}"

    @property
    def precision(self) -> str:
        """The backend, where the maker has several, and the type of the weights."""
        return self.dtype if self.backend == self.maker else f"{self.backend} {self.dtype}"


@dataclass(frozen=True)
class System:
    """A method of decoding on an engine."""

    method: Method
    engine: Engine

    @property
    def contest(self) -> str:
        """What only the best engine is shown for, unless all are asked for: "spec2seq-exact"."""
        return f"{self.engine.maker}-{self.method}"

    @property
    def label(self) -> str:
        return f"{self.engine.maker} {self.method} ({self.engine.label})"

    def takes(self, batch_size: int) -> bool:
        """Whether it can decode so many texts at once."""
        return batch_size <= MAX_BATCH.get(self.method, batch_size)


ENGINES: Mapping[Maker, tuple[tuple[str, str], ...]] = {
    "spec2seq": (
        ("torch", "float32"),
        ("torch", "bfloat16"),
        ("openvino", "float32"),
        ("openvino", "bfloat16"),
        ("openvino", "int8"),
    ),
    "transformers": (("transformers", "float32"),),
    "ctranslate2": (("ctranslate2", "float32"), ("ctranslate2", "int8")),
}
ENGINE_NAMES = tuple(f"{backend}-{dtype}" for pairs in ENGINES.values() for backend, dtype in pairs)
CONTESTS = tuple(f"{maker}-{method}" for maker, methods in METHODS.items() for method in methods)
# the outputs that all others are compared with are this engine's
REFERENCE_BACKEND, REFERENCE_DTYPE = "torch", "float32"

_EXTRAS = {"openvino": ("openvino", "openvino"), "ctranslate2": ("ctranslate2", "bench")}


def catalogue(threads: Sequence[int], device: str = "cpu") -> list[System]:
    """Every system, with each of these numbers of threads; on a GPU only what runs there, and one number of threads."""
    counts = list(dict.fromkeys(threads)) if device == "cpu" else [threads[0]]
    return [
        System(method, Engine(maker, backend, dtype, count))
        for maker, methods in METHODS.items()
        for method in methods
        for backend, dtype in ENGINES[maker]
        if device == "cpu" or backend in ("torch", "transformers")
        for count in counts
    ]


def select(systems: Iterable[System], contests: Sequence[str] = (), engines: Sequence[str] = ()) -> list[System]:
    """Those that were named; all where nothing was.

    Args:
        systems: to choose from.
        contests: a maker ("ctranslate2") or a maker with a method ("spec2seq-exact").
        engines: as in `ENGINE_NAMES`.

    Raises:
        OptionError: a name is unknown, or nothing is left.
    """
    _check_names("systems", contests, (*METHODS, *CONTESTS))
    _check_names("engines", engines, ENGINE_NAMES)
    wanted = [
        system
        for system in systems
        if (not contests or system.contest in contests or system.engine.maker in contests)
        and (not engines or system.engine.name in engines)
    ]
    if not wanted:
        raise OptionError(
            f"no system is left of systems={','.join(contests)} on engines={','.join(engines)}; name more"
        )
    return wanted


def _check_names(option: str, names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise OptionError(f"{option}: {name!r} does not exist; the names are {', '.join(known)}")


def missing_package(engine: Engine) -> str | None:
    """Why an engine cannot be used here, with the remedy; None where its package is installed."""
    if engine.backend not in _EXTRAS:
        return None
    package, extra = _EXTRAS[engine.backend]
    return None if find_spec(package) else f"{package} is not installed: pip install 'spec2seq[{extra}]'"
