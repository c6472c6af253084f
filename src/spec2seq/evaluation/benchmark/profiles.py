"""How much of a drafter's blocks is accepted: from its card, or from a file that an earlier benchmark wrote."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from spec2seq.errors import InputError
from spec2seq.evaluation.benchmark.cost_model import tokens_per_round

if TYPE_CHECKING:
    from pathlib import Path

CARD = "README.md"
# | slots | tokens per round | survival |
_CARD_ROW = re.compile(r"^\| (\d+) \| (\d+\.\d+) \| ([\d. -]+) \|$", re.MULTILINE)


@dataclass(frozen=True)
class AcceptanceProfile:
    """Acceptance by the number of drafted tokens.

    Attributes:
        name: where it was measured.
        tokens_per_round: by k; as it was measured, where that is known, else 1 + s_1 + ... + s_k.
        survival: s_1 to s_k by k.
    """

    name: str
    tokens_per_round: Mapping[int, float]
    survival: Mapping[int, tuple[float, ...]]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def profile_of(path: Path) -> AcceptanceProfile:
    """The profile in a JSON file, or on the card of a drafter's folder.

    Raises:
        InputError: there is none.
    """
    if path.is_dir():
        return _from_card(path)
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        survival = {int(k): tuple(float(one) for one in row) for k, row in values["survival"].items()}
        rates = {int(k): float(rate) for k, rate in values.get("tokens_per_round", {}).items()}
    except FileNotFoundError:
        raise InputError(f"profile {path}: there is no such file or folder; check the path") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"profile {path} is no acceptance profile ({type(error).__name__}: {error}); give the profile.json of a "
            'benchmark, or {"survival": {"8": [s_1, ..., s_8]}}'
        ) from error
    return _checked(path, survival, rates)


def _from_card(folder: Path) -> AcceptanceProfile:
    card = folder / CARD
    rows = _CARD_ROW.findall(card.read_text(encoding="utf-8")) if card.is_file() else []
    survival = {int(k): tuple(float(one) for one in row.split() if one != "-") for k, _, row in rows}
    return _checked(folder, survival, {int(k): float(rate) for k, rate, _ in rows})


def _checked(path: Path, survival: Mapping[int, tuple[float, ...]], rates: Mapping[int, float]) -> AcceptanceProfile:
    known = {k: rates.get(k, tokens_per_round(row)) for k, row in survival.items()}
    if not known:
        raise InputError(f"{path} tells no acceptance; give the profile.json of a benchmark, or a trained drafter")
    for k, row in survival.items():
        if len(row) > k or not all(0 <= one <= 1 for one in row):
            raise InputError(f"profile {path}: the survival of {k} tokens must be up to {k} numbers between 0 and 1")
    return AcceptanceProfile(str(path), known, survival)
