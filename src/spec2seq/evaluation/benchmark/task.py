"""What every system of a benchmark is asked to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spec2seq.evaluation.benchmark.systems import NUM_BEAMS
from spec2seq.tokenization import TargetStart

if TYPE_CHECKING:
    from spec2seq.evaluation.benchmark.systems import Method
    from spec2seq.pipelines.arguments import GenerationArguments

RELAXED_TOP_BETA, RELAXED_TAU = 3, 1.0


@dataclass(frozen=True)
class DecodingTask:
    """The same for all systems.

    Attributes:
        max_new_tokens: most tokens per output.
        is_length_fixed: outputs end at that limit and nowhere before: random weights would end anywhere.
        target_lang: language code of the output, None where the model has none.
        start: what that code means for the decoder.
        num_draft_tokens: k of the methods that draft a fixed number; None means the drafter's own.
    """

    max_new_tokens: int = 256
    is_length_fixed: bool = False
    target_lang: str | None = None
    start: TargetStart = field(default_factory=TargetStart)
    num_draft_tokens: int | None = None

    def arguments(self, method: Method, num_draft_tokens: int) -> GenerationArguments:
        """What our pipeline is told."""
        arguments: GenerationArguments = {
            "max_new_tokens": self.max_new_tokens,
            "num_beams": NUM_BEAMS if method == "beam5" else 1,
            "num_return_sequences": 1,
            "do_sample": False,
        }
        if method == "exact":
            arguments["num_draft_tokens"] = num_draft_tokens
        elif method == "relaxed":
            arguments["top_beta"], arguments["tau"] = RELAXED_TOP_BETA, RELAXED_TAU
        elif method == "auto":
            arguments["num_draft_tokens"] = "auto"
        if self.is_length_fixed:
            arguments["eos_token_id"] = arguments["forced_eos_token_id"] = []
        return arguments
