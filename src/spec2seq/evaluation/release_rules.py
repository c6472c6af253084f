"""Decoding by the rules of the paper's released code, to compare with its outputs and its figures.

Where they differ from ours: an end of sequence may be accepted by tolerance like any other token, and an output is cut
at `max_length` tokens out of whatever was accepted, its end of sequence not counted. One rule stays ours: a drafted
padding token passes only as the verifier's own choice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spec2seq.errors import OptionError
from spec2seq.generation_options import GenerationOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from spec2seq.pipelines import Pipeline
    from spec2seq.types import Emission

MAX_LENGTH = 200  # of the released scripts


@dataclass(frozen=True)
class ReleaseRules:
    """Options of the released scripts, by our names.

    Attributes:
        num_draft_tokens: slots laid in every round; 0 is plain greedy search.
        top_beta, tau: of the acceptance; 1 and 0.0 are exact, the released setting is 5 and 3.0.
        max_length: most tokens of an output.
    """

    num_draft_tokens: int
    top_beta: int = 1
    tau: float = 0.0
    max_length: int = MAX_LENGTH

    def options(self) -> GenerationOptions:
        """The options of a call. The budget leaves room for a whole block at the last position that may start one."""
        return GenerationOptions(
            max_new_tokens=self.max_length + self.num_draft_tokens + 1,
            num_beams=1,
            num_draft_tokens=self.num_draft_tokens,
            top_beta=self.top_beta,
            tau=self.tau,
            guard_eos=False,
        )


@dataclass
class ReleaseOutput:
    """One output: its token ids without end of sequence, and how many of them each round gained."""

    token_ids: list[int] = field(default_factory=list)
    gained: list[int] = field(default_factory=list)

    def add(self, emission: Emission, eos_token_ids: Sequence[int], max_length: int) -> bool:
        """Take in what a round gave. Returns whether the output is complete."""
        room = max_length - len(self.token_ids)
        ends = [i for i, token in enumerate(emission.token_ids) if token in eos_token_ids]
        num_gained = min([len(emission.token_ids), room, *ends])
        self.token_ids += emission.token_ids[:num_gained]
        self.gained.append(num_gained)
        return bool(ends) or len(emission.token_ids) > room


def decode_as_released(
    pipeline: Pipeline, source_ids: Sequence[Sequence[int]], rules: ReleaseRules, num_rows: int = 1
) -> list[ReleaseOutput]:
    """Decode sources by the rules of the release; the released script has one row at a time.

    Args:
        pipeline: a converted model with its drafter.
        source_ids: token ids with all that the model expects.
        rules: what to do.
        num_rows: how many sources share a batch.

    Raises:
        OptionError: there is no drafter, or the model has too few positions.
    """
    # the rules are defaults of flags, and --help must not load torch
    from spec2seq.decoding.loop import Decoder
    from spec2seq.types import SourceBatch

    if rules.num_draft_tokens and pipeline.make_drafter is None:
        raise OptionError(f"num_draft_tokens={rules.num_draft_tokens} needs a drafter; give one, or use 0")
    drafter = pipeline.make_drafter() if pipeline.make_drafter and rules.num_draft_tokens else None
    config, resolved = pipeline.model.config, pipeline.options(rules.options())
    decoder = Decoder(pipeline.verifier, drafter, max_rows=num_rows)
    requests = decoder.add(SourceBatch.from_lists(source_ids, config.pad_token_id), resolved)
    outputs = {request: ReleaseOutput() for request in requests}
    done: set[int] = set()
    while decoder.alive:
        for emission in decoder.step():
            request = emission.request
            if request not in done and outputs[request].add(emission, resolved.eos_token_ids, rules.max_length):
                done.add(request)
                decoder.cancel(request)
    return [outputs[request] for request in requests]


def accepted_counts(outputs: Iterable[ReleaseOutput]) -> tuple[int, int]:
    """Tokens and rounds: the release's mean accepted tokens is one by the other.

    Correction and bonus tokens count, ends of sequences do not; the round that ends a sequence counts.
    """
    rounds = [gained for output in outputs for gained in output.gained]
    return sum(rounds), len(rounds)
