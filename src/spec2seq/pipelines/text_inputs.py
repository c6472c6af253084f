"""Texts that a caller brings."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from spec2seq.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

# left behind by errors="surrogateescape" and by cutting UTF-16 in the middle of a character
_SURROGATE = re.compile("[\ud800-\udfff]")


def checked_texts(texts: str | Sequence[str]) -> list[str]:
    """One text or several as a list.

    Raises:
        InputError: something else than text, or half a character in it.
    """
    if isinstance(texts, str):
        texts = [texts]
    if not isinstance(texts, Iterable) or isinstance(texts, bytes):
        raise InputError(f"texts is a {type(texts).__name__}; pass a str or several of them")
    texts = list(texts)
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"texts[{i}] is a {type(text).__name__}, not a str; pass token ids to generate_ids")
        check_whole(f"texts[{i}]", text)
    return texts


def check_whole(name: str, text: str) -> None:
    """Raises InputError where half a character is in a text; `name` is what the message calls the text."""
    surrogate = _SURROGATE.search(text)
    if surrogate:
        raise InputError(
            f"{name} holds {surrogate.group()!r} at character {surrogate.start()}, half a character that no "
            "tokenizer takes; decode the bytes it came from as what they are, or with errors='replace'"
        )
