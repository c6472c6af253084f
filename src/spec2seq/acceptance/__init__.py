"""Acceptance rules: how much of a draft is kept, and which token follows it. Pure functions on tensors.

Row i of the scores judges draft token i. Slots beyond a row's length are never accepted, whatever they hold.
"""

from spec2seq.acceptance.matching import ExactMatch, TopBetaTolerance
from spec2seq.acceptance.sampling import SpeculativeSampling, draw_tokens

__all__ = ["ExactMatch", "SpeculativeSampling", "TopBetaTolerance", "draw_tokens"]
