"""See for yourself that speculation changes nothing: plain and speculative search, token for token."""

import sys
from pathlib import Path

from spec2seq import Pipeline

MODEL = Path(__file__).parent.parent / "models" / "debian-en-it"
TEXTS = Path(__file__).with_name("sentences.txt").read_text().splitlines()


def main(model: str | Path = MODEL) -> None:
    plain = Pipeline.from_pretrained(model, drafter=None).generate(TEXTS)
    speculative = Pipeline.from_pretrained(model, drafter="prompt_lookup").generate(TEXTS)
    for before, after in zip(plain, speculative, strict=True):
        verdict = "same" if before.token_ids == after.token_ids else "DIFFERENT"
        print(f"{verdict}, {before.stats.num_rounds} -> {after.stats.num_rounds} verifier calls: {after.text}")


if __name__ == "__main__":
    main(*sys.argv[1:])
