"""Translate with the bundled model and see what speculation saved."""

import sys
from pathlib import Path

from spec2seq import Pipeline

MODEL = Path(__file__).parent.parent / "models" / "debian-en-it"


def main(model: str | Path = MODEL) -> None:
    pipeline = Pipeline.from_pretrained(model)
    for result in pipeline.generate(["This package contains the documentation.", "a library for reading image files"]):
        stats = result.stats
        print(f"{result.text}  ({stats.num_tokens} tokens, {stats.num_rounds} rounds)")


if __name__ == "__main__":
    main(*sys.argv[1:])
