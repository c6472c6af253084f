"""What is asked of an acceleration. Imports no torch, so that --help stays fast."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from spec2seq.errors import OptionError

if TYPE_CHECKING:
    from pathlib import Path

    from spec2seq.training.shapes import Kind

DEFAULT_BUDGET = "2h"
_FLAGS = {"budget_seconds": "--budget", "is_relaxed": "--relaxed", "num_lines": "--lines"}  # others have their own name
_BUDGET = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?")


@dataclass(frozen=True)
class AccelerationRequest:
    """One drafter to make.

    Attributes:
        source: UTF-8 text, one input per line.
        output: the drafter's folder.
        budget_seconds: about how long all of it may take on this machine.
        kind: of the drafter; None: "feature", or what measures faster where there is time to try two.
        is_relaxed: whether a tolerance is chosen too.
        source_lang, target_lang, source_prefix: as for `Pipeline.generate`.
        max_new_tokens: limit of every output; None: the checkpoint's.
        num_lines: lines to distil; None: what the budget allows.
        steps: updates of the training; None: what the budget allows.
        num_measured: held-out lines to measure on; None: what the budget allows.

    Raises:
        OptionError: a value that cannot be.
    """

    source: Path
    output: Path
    budget_seconds: float
    kind: Kind | None = None
    is_relaxed: bool = False
    source_lang: str | None = None
    target_lang: str | None = None
    source_prefix: str = ""
    max_new_tokens: int | None = None
    num_lines: int | None = None
    steps: int | None = None
    num_measured: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "num_lines", "steps", "num_measured"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise OptionError(f"{_flag(name)} {value} is not allowed: use 1 or more")

    def as_job(self) -> dict[str, object]:
        """What decides what comes out, by the names on the command line, beside the contents of model and source."""
        values = asdict(self)
        del values["source"], values["output"]
        return {_flag(name): value for name, value in values.items()}


def _flag(name: str) -> str:
    """What a field is called on the command line."""
    return _FLAGS.get(name, "--" + name.replace("_", "-"))


def seconds_of(budget: str) -> float:
    """Seconds of a time such as "2h", "1h30m" or "90s".

    Raises:
        OptionError: it is no such time.
    """
    match = _BUDGET.fullmatch(budget)
    hours, minutes, seconds = (float(part or 0) for part in match.groups()) if match else (0.0, 0.0, 0.0)
    total = 3600 * hours + 60 * minutes + seconds
    if not total > 0:
        raise OptionError(f"--budget {budget!r} is no time; write 2h, 45m, 1h30m or 90s")
    return total


def told_seconds(seconds: float) -> str:
    """A time for people: "40 s", "12 min" or "1.5 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
