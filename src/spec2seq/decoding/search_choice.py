"""Which search, acceptance rule and number of draft tokens the options of a request mean."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spec2seq.acceptance import ExactMatch, SpeculativeSampling, TopBetaTolerance
from spec2seq.decoding.beam_search import BeamSearch
from spec2seq.decoding.controller import Controller, FixedLength
from spec2seq.decoding.costs import costs_of
from spec2seq.decoding.drafting import Drafting
from spec2seq.decoding.sampling import SamplingSearch
from spec2seq.decoding.speculative import SpeculativeSearch
from spec2seq.decoding.speculative_beam import DEFAULT_NUM_DRAFT_TOKENS, SpeculativeBeamSearch
from spec2seq.decoding.survival import Survival
from spec2seq.errors import OptionError

if TYPE_CHECKING:
    from spec2seq.config import ModelConfig
    from spec2seq.decoding.controller import DraftLength
    from spec2seq.decoding.search import Search
    from spec2seq.generation_options import ResolvedOptions
    from spec2seq.interfaces import AcceptanceRule, Drafter, Verifier

# a model without a position table sets no limit of its own
MAX_DRAFT_TOKENS = 1024


def make_search(verifier: Verifier, drafter: Drafter | None, options: ResolvedOptions) -> Search:
    """An empty search for requests with these options.

    Raises:
        OptionError: as `resolve_num_draft_tokens`.
    """
    num_draft_tokens = resolve_num_draft_tokens(drafter, options, verifier.config)
    if options.num_beams > 1:
        if drafter is None or num_draft_tokens == 0:
            return BeamSearch(verifier, options)
        return SpeculativeBeamSearch(verifier, drafter, options, num_draft_tokens)
    kind = SamplingSearch if options.do_sample else SpeculativeSearch
    drafting = None
    if drafter is not None and num_draft_tokens:
        drafting = Drafting(drafter, _length(verifier, drafter, options, num_draft_tokens))
    return kind(verifier, drafting, _rule(options, verifier.config.pad_token_id), options)


def resolve_num_draft_tokens(drafter: Drafter | None, options: ResolvedOptions, config: ModelConfig) -> int:
    """How many tokens this drafter is asked for per round, at most; 0 where nothing is to be drafted.

    Raises:
        OptionError: more than the drafter can propose or the model, of this configuration, has positions for; or a
            drafter that cannot draft for beams.
    """
    is_beam = options.num_beams > 1
    if drafter is None or (is_beam and not options.speculative_beams):
        return 0
    if is_beam and drafter.hidden_layers:
        raise OptionError(
            "speculative_beams=True: this drafter reads the verifier's hidden states and cannot draft for beams; "
            "pass speculative_beams=False, or another drafter"
        )
    if options.num_draft_tokens == "auto":
        default = drafter.default_num_draft_tokens
        return min(default, DEFAULT_NUM_DRAFT_TOKENS) if is_beam else default
    limit = drafter.max_draft_tokens or config.max_target_positions or MAX_DRAFT_TOKENS
    if options.num_draft_tokens > limit:
        raise OptionError(
            f"num_draft_tokens={options.num_draft_tokens} exceeds the {limit} that can be drafted at once; "
            "use fewer (5 to 25 are usual), or auto"
        )
    return options.num_draft_tokens


def _length(verifier: Verifier, drafter: Drafter, options: ResolvedOptions, num_draft_tokens: int) -> DraftLength:
    """Who says how many tokens to draft. Relaxed outputs depend on it: they get the same number always."""
    if options.num_draft_tokens != "auto" or options.top_beta > 1:
        return FixedLength(num_draft_tokens)
    costs = costs_of(verifier, drafter, is_sampling=options.do_sample)
    return Controller(costs, Survival.expected_of(drafter), num_draft_tokens)


def _rule(options: ResolvedOptions, pad_token_id: int) -> AcceptanceRule:
    if options.do_sample and not options.is_seeded:
        return SpeculativeSampling()
    if options.top_beta == 1:
        return ExactMatch()
    return TopBetaTolerance(
        options.top_beta,
        options.tau,
        eos_token_ids=options.eos_token_ids,
        pad_token_id=pad_token_id,
        guard_eos=options.guard_eos,
    )
