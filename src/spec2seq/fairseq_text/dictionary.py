"""fairseq's dictionaries: a line per symbol with its count, behind four special symbols that no file names."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from spec2seq.errors import CheckpointError, ModelNotFoundError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

START, PAD, END, UNKNOWN = "<s>", "<pad>", "</s>", "<unk>"
SPECIAL_SYMBOLS = (START, PAD, END, UNKNOWN)
END_ID, UNKNOWN_ID = SPECIAL_SYMBOLS.index(END), SPECIAL_SYMBOLS.index(UNKNOWN)


@dataclass(frozen=True)
class Dictionary:
    """Symbols in the order of their ids, special ones included."""

    symbols: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> Dictionary:
        """Read a dict.*.txt.

        Raises:
            ModelNotFoundError: no such file.
            CheckpointError: a line without a count, a symbol twice, or symbols out of order: fairseq writes them by
                falling count.
        """
        symbols = list(SPECIAL_SYMBOLS)
        last_count = None
        for number, line in enumerate(_lines(path), start=1):
            symbol, _, text = line.rstrip().rpartition(" ")
            if not symbol or not text.isdigit():
                raise CheckpointError(f"{path}: line {number} is no symbol with a count: {line.rstrip()[:40]!r}")
            if last_count is not None and int(text) > last_count:
                raise CheckpointError(
                    f"{path}: line {number} counts {text} after {last_count}: the symbols are not in the order that "
                    "fairseq gave them, and ids would be mixed up; give the dictionary as it came with the model"
                )
            last_count = int(text)
            symbols.append(symbol)
        dictionary = cls(tuple(symbols))
        dictionary._check(path)
        return dictionary

    def __len__(self) -> int:
        return len(self.symbols)

    @cached_property
    def ids(self) -> dict[str, int]:
        """The id of every symbol."""
        return {symbol: i for i, symbol in enumerate(self.symbols)}

    def encode(self, symbols: Sequence[str]) -> list[int]:
        """Ids of symbols; unknown ones become `<unk>`."""
        return [self.ids.get(symbol, UNKNOWN_ID) for symbol in symbols]

    def _check(self, path: Path) -> None:
        if len(self) == len(SPECIAL_SYMBOLS):
            raise CheckpointError(f"{path} holds no symbol: get the dictionary again")
        if len(self.ids) < len(self):
            twice, _ = Counter(self.symbols).most_common(1)[0]
            raise CheckpointError(f"{path} holds {twice!r} twice: get the dictionary again")


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        raise ModelNotFoundError(f"there is no dictionary {path}")
    try:
        with path.open(encoding="utf-8") as file:
            return list(file)
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is not UTF-8 text ({error.reason}): get the dictionary again") from error
