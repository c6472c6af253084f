"""HTML whose text is to be translated and whose tags are to stay."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# Possessive repetitions: what does not match fails at once, however long it is.
_MARKUP = re.compile(
    r"""<!--.*?(?:-->|\Z)       # a comment; one without an end takes all the rest, as in a browser
      | <[!?][^>]*+(?:>|\Z)    # a declaration
      | <(?P<slash>/?)(?P<name>[a-zA-Z][^\s/<>]*+)(?P<attributes>(?:"[^"]*+"|'[^']*+'|[^"'<>])*+)>""",
    re.VERBOSE | re.DOTALL,
)
_UNTRANSLATED_TAGS = {"script", "style", "code", "pre", "textarea", "kbd", "samp", "var", "math", "svg"}
_RAW_TEXT_TAGS = {"script", "style", "textarea"}
_VOID_TAGS = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
# An end tag closes the nearest element of its name, if that is not further out than this.
_MAX_UNCLOSED = 50
# What says that an element is a name or a link, not prose: HTML's own attribute, and the classes that federated
# networks put on mentions, hashtags and shortened links.
_UNTRANSLATED = re.compile(
    r"""\btranslate\s*=\s*["']?no\b|\bclass\s*=\s*(?:"[^"]*|'[^']*|)\b(?:notranslate|mention|hashtag|invisible|ellipsis)\b""",
    re.IGNORECASE,
)
_SPACE = re.compile(r"\s+")


@dataclass
class HtmlText:
    """Markup, and the pieces of text between it.

    Attributes:
        texts: to be translated, without markup, entities or outer white space.
    """

    texts: list[str] = field(default_factory=list)
    _fixed: list[str] = field(default_factory=lambda: [""])

    @classmethod
    def parse(cls, source: str) -> HtmlText:
        """Cut HTML up. Anything is taken: what is no proper tag is text."""
        document = cls()
        open_tags: list[str] = []  # from the outermost element that is left alone, inwards
        end = 0
        while markup := _MARKUP.search(source, end):
            document._add_text(source[end : markup.start()], is_kept=bool(open_tags))
            document._add_fixed(markup.group())
            is_raw = _follow(open_tags, markup)
            end = markup.end()
            if is_raw:
                start, end = end, _end_of_raw_text(source, end, markup["name"])
                document._add_fixed(source[start:end])
        document._add_text(source[end:], is_kept=bool(open_tags))
        return document

    def join(self, translations: Sequence[str]) -> str:
        """The HTML with these in place of `texts`."""
        escaped = [html.escape(text, quote=False) for text in translations]
        return self._fixed[0] + "".join(text + fixed for text, fixed in zip(escaped, self._fixed[1:], strict=True))

    def _add_fixed(self, source: str) -> None:
        self._fixed[-1] += source

    def _add_text(self, source: str, *, is_kept: bool) -> None:
        """`is_kept`: it is not to be translated. Nor is what has no letter in it."""
        text = html.unescape(source)
        if is_kept or not any(character.isalpha() for character in text):
            self._add_fixed(source)
            return
        inner = text.strip()
        start = text.index(inner)
        self._add_fixed(html.escape(text[:start], quote=False))
        self.texts.append(_SPACE.sub(" ", inner))  # white space is all the same in HTML, newlines too
        self._fixed.append(html.escape(text[start + len(inner) :], quote=False))


def _end_of_raw_text(source: str, start: int, name: str) -> int:
    """Where the end tag is of an element in which nothing else is markup, comments neither."""
    end_tag = re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE).search(source, start)
    return len(source) if end_tag is None else end_tag.start()


def _follow(open_tags: list[str], markup: re.Match[str]) -> bool:
    """Keep account of the elements that are open within one that is not to be translated. Returns whether raw text
    follows."""
    name = (markup["name"] or "").lower()
    if not name or name in _VOID_TAGS:
        return False
    if markup["slash"]:
        if name in open_tags[-_MAX_UNCLOSED:]:
            while open_tags.pop() != name:
                continue
        return False
    is_empty = markup["attributes"].endswith("/")
    is_kept = name in _UNTRANSLATED_TAGS or _UNTRANSLATED.search(markup["attributes"])
    if not is_empty and (open_tags or is_kept):
        open_tags.append(name)
    return name in _RAW_TEXT_TAGS and not is_empty
