"""Write a drafter: an object with four methods. This one guesses that the last token comes again."""

import sys
from pathlib import Path

import torch

from spec2seq import Pipeline
from spec2seq.types import DraftBlock, Prefix

MODEL = Path(__file__).parent.parent / "models" / "debian-en-it"


class EchoDrafter:
    hidden_layers = ()
    default_num_draft_tokens = 2
    max_draft_tokens = None

    def start(self, source, encoded):
        pass  # rows join behind those already there

    def propose(self, prefix: Prefix, num_draft_tokens: int, choose=None) -> DraftBlock:
        last = prefix.ids.gather(1, prefix.lengths[:, None] - 1)
        return DraftBlock(last.repeat(1, num_draft_tokens), torch.full_like(prefix.lengths, num_draft_tokens))

    def commit(self, prefix, acceptance, output):
        pass  # a drafter with a cache would roll it back here

    def select_rows(self, rows):
        pass  # and drop its finished rows here


def main(model: str | Path = MODEL) -> None:
    loaded = Pipeline.from_pretrained(model, drafter=None)
    pipeline = Pipeline(loaded.model, loaded.verifier, make_drafter=EchoDrafter)
    print(pipeline.generate("a very very long text")[0].text)


if __name__ == "__main__":
    main(*sys.argv[1:])
