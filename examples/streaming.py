"""Show an output while it is made. What is shown is never taken back."""

import sys
from pathlib import Path

from spec2seq import Pipeline

MODEL = Path(__file__).parent.parent / "models" / "debian-en-it"


def main(model: str | Path = MODEL) -> None:
    pipeline = Pipeline.from_pretrained(model)
    text = "This package contains the documentation. It also contains examples for developers."
    for part in pipeline.stream(text, num_beams=1):
        print(part, end="", flush=True)
    print()


if __name__ == "__main__":
    main(*sys.argv[1:])
