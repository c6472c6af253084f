#!/usr/bin/env python3
"""Write docs/options.md from the options themselves, so that the two cannot drift apart."""

from pathlib import Path

from spec2seq.generation_options import OPTION_NAMES, option_info

PAGE = Path(__file__).with_name("options.md")

INTRODUCTION = """\
# Generation options

Written by `make docs` from `spec2seq.generation_options.GenerationOptions`; edit the options there, not this page.

Names and meanings are those of transformers' `generate`, except the last ones, which are this package's own. Every
option is a keyword of `Pipeline.generate`, a field of `GenerationOptions`, and, but for `output_scores` and
`output_logits`, a flag of `spec2seq generate` (with dashes). Where several places name an option, the first of these
counts:

1. the argument or flag of the call,
2. the `GenerationOptions` object that the call was given,
3. the checkpoint: `generation_config.json`, or `config.json` where there is no such file,
4. the default in this table.

`Pipeline.options(...)` and `spec2seq generate --print-options` show what applies in the end. An option of transformers
that is not listed is accepted only with a value that changes nothing; anything else is an error.

| option | default | value | meaning |
| --- | --- | --- | --- |
"""


def render() -> str:
    """The whole page."""
    return INTRODUCTION + "".join(_row(name) for name in OPTION_NAMES)


def _row(name: str) -> str:
    info = option_info(name)
    default = "" if info.default is None or info.default == () else f"`{info.default}`"
    cells = (f"`{name}`", default, info.allowed, info.help)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
