"""The contracts between models, drafters, acceptance rules and the loop. See `types` for the letters in the shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from spec2seq.config import ModelConfig
    from spec2seq.drafter_config import FeatureDrafterConfig, SpecDrafterConfig
    from spec2seq.types import Acceptance, DecoderOutput, DraftBlock, Prefix, Scores, SourceBatch, Wanted

    Choose = Callable[[Tensor, int], Tensor]


class EncoderOutput(Protocol):
    """Encoded sources of a batch with the cross-attention keys and values made from them."""

    hidden: Tensor  # [B, S, D]
    lengths: Tensor  # [B]

    def select_rows(self, rows: Tensor) -> Self:
        """The rows `rows` [B'] (int64, on the engine's device) in that order; may repeat rows. May reuse memory: the
        old object must not be used afterwards."""

    def concat(self, other: Self) -> Self:
        """Both batches, self first; the shorter source is padded."""


class Cache(Protocol):
    """Self-attention keys and values of committed tokens. Slot index = absolute position unless told otherwise."""

    num_rows: int

    def select_rows(self, rows: Tensor) -> Self:
        """As `EncoderOutput.select_rows`."""

    def append_rows(self, count: int) -> Self:
        """The same cache with `count` more empty (zero-filled) rows at the end."""


class Verifier(Protocol):
    """An encoder-decoder that scores several target tokens per row in one call."""

    config: ModelConfig
    device: torch.device

    def encode(self, source: SourceBatch) -> EncoderOutput:
        """Run the encoder and make the cross-attention keys and values. Raises InputError beyond the positions."""

    def from_encoder(self, hidden: Tensor, lengths: Tensor) -> EncoderOutput:
        """The same from encoder states [B, S, D] computed elsewhere."""

    def new_cache(self, num_rows: int) -> Cache:
        """An empty cache."""

    def decode(
        self,
        tokens: Tensor,
        positions: Tensor,
        lengths: Tensor,
        cache: Cache,
        encoded: EncoderOutput,
        wanted: Wanted,
        *,
        queries: Tensor | None = None,
        slots: Tensor | None = None,
        visible: Tensor | None = None,
    ) -> DecoderOutput:
        """Feed n tokens per row, write their keys and values, score what follows them.

        Args:
            tokens: [B, n] target ids.
            positions: [B, n] absolute positions, on the device or on the host, where nobody waits for a GPU to read
                them; only the look-up in the position table is clamped.
            lengths: [B] real queries of each row; padded ones come last and have increasing positions too.
            cache: grown as needed; keys and values go to `slots`.
            encoded: the sources of the same rows.
            wanted: what the answer must be able to tell.
            queries: [B, m] indices into n of the queries to score; all n in order when None.
            slots: [B, n] where keys and values are written; `positions` when None.
            visible: [B, n, T'] bool, True where a query sees a slot; slot <= position when None.

        Returns:
            Scores of the asked queries [B, m, V]; hidden states of all n queries where wanted.
        """


class Drafter(Protocol):
    """Something that proposes the next tokens of every row.

    In beam search the rows are the running hypotheses of all sources. Between `propose` and `commit` of a round they
    then go through `select_rows`, which may repeat rows: several hypotheses continue one. `commit` comes with the rows
    in the new order, and behind the accepted tokens and the next one there may be more that were not drafted.

    Besides what is below, a drafter may tell those who decide how much it drafts (`decoding.controller`):
    `survival: Mapping[int, Sequence[float]]`, number of slots -> the chance that a block is kept up to and with each
    slot; `chance_of_draft: float`, how often a row is proposed anything, if not always; and `network`, which computes
    its drafts and with which the time that these take is remembered. One that reads no hidden layers is not started
    before it pays, and then with rows that have generated something; only from then on is it told of rounds.
    """

    hidden_layers: tuple[int, ...]  # verifier layers that `commit` must bring
    default_num_draft_tokens: int  # what "auto" asks for at most; in beam search and relaxed decoding always
    max_draft_tokens: int | None  # hard limit, None when there is none

    def start(self, source: SourceBatch, encoded: EncoderOutput) -> None:
        """Take in rows; they are appended behind the rows already there."""

    def propose(self, prefix: Prefix, num_draft_tokens: int, choose: Choose | None = None) -> DraftBlock:
        """Propose up to `num_draft_tokens` tokens for every row; never raises for rows it cannot serve (lengths 0).

        `choose(log_probs [B, V], i) -> tokens [B]` picks token i of the block; None means argmax. It warps the law as
        the verifier's is, draws from it and remembers it: the loop itself puts it into the block's `log_probs`. A
        drafter has all of a block's slots chosen or none; one whose choice does not come from a law ignores it.
        Whether slot i is proposed may depend on tokens before it, never on token i.
        """

    def commit(self, prefix: Prefix, acceptance: Acceptance, output: DecoderOutput) -> None:
        """Called after every round, also when nothing was drafted; `prefix` is the one that `propose` was given,
        before this round's tokens were appended."""

    def select_rows(self, rows: Tensor) -> None:
        """Keep the rows `rows` [B'] in that order; may repeat rows."""


class DraftSource(Protocol):
    """Encoded sources of a `DraftNetwork`, with all that its decoder reads of them."""

    def select_rows(self, rows: Tensor) -> Self:
        """As `EncoderOutput.select_rows`."""

    def concat(self, other: Self) -> Self:
        """As `EncoderOutput.concat`."""


class DraftNetwork(Protocol):
    """The Spec-Drafter's network on some engine: all tokens of a block from one pass."""

    config: SpecDrafterConfig

    def encode(self, source: SourceBatch) -> DraftSource:
        """Run the encoder; sources longer than its positions are cut: a draft may be wrong."""

    def draft(self, prefix: Prefix, num_draft_tokens: int, source: DraftSource, wanted: Wanted) -> Scores:
        """Scores [B, k, V] of the k tokens after every prefix, drafted independently of each other.

        Exactly k = `num_draft_tokens` slots are laid after each prefix. The scores of rows whose slots would run past
        the positions mean nothing.
        """


class BlockScores(Protocol):
    """What a `FeatureNetwork` expects of the slots of a block [B, k], each behind the token before it."""

    def tokens(self) -> Tensor:
        """The best token of every slot behind the best one of the slot before, [B, k]."""

    def log_probs(self, slot: int, previous: Tensor) -> Tensor:
        """The law [B, V] of a slot when the token before it is `previous` [B]; to be called where `Wanted.logits` was
        said."""


class FeatureNetwork(Protocol):
    """The network of the drafter that reads the verifier's states, on some engine. It knows the verifier's weights."""

    config: FeatureDrafterConfig

    def encode(self, hidden: Tensor, lengths: Tensor) -> DraftSource:
        """What its cross-attention reads of the verifier's encoder states hidden [B, S, D], lengths [B]."""

    def new_cache(self, num_rows: int) -> Cache:
        """An empty cache of keys and values."""

    def remember(self, states: Tensor, firsts: Tensor, cache: Cache) -> None:
        """Keep what is needed of the verifier's states [B, n, N, D] of the layers `config.hidden_layers` at n positions
        from `firsts` [B] on; what was there is overwritten. An engine may put the work off to the next `draft`: the
        states must not change until then."""

    def draft(
        self,
        anchors: Tensor,
        positions: Tensor,
        num_known: Tensor,
        num_draft_tokens: int,
        cache: Cache,
        source: DraftSource,
        wanted: Wanted,
    ) -> BlockScores:
        """Scores of the k tokens behind every anchor.

        Args:
            anchors: [B] last committed tokens, which the verifier has not seen yet.
            positions: [B] theirs. Those of the block may be overwritten in the cache.
            num_known: [B] how many positions from 0 on are read from the cache; all before the anchor but in a first
                round with more than one token to start from. The last of them, whose states the block starts from, is
                one of those that came last.
            num_draft_tokens: k. Rows whose block would run past `config.max_positions` get scores that mean nothing.
            cache, source: of the same rows.
            wanted: `logits` where laws will be asked for.
        """


class AcceptanceRule(Protocol):
    """Decides how much of a draft is kept."""

    num_top: int  # how many best ids per query it looks at
    needs_logits: bool  # whether it looks at all scores

    def accept(self, draft: DraftBlock, scores: Scores, noise: Tensor | None = None) -> Acceptance:
        """How many leading draft tokens each row keeps, and the token after them.

        Args:
            draft: tokens [B, k], lengths [B].
            scores: final scores [B, k+1, V]; row i judges draft token i, row `lengths[b]` gives the bonus token.
            noise: random numbers of sampling, None otherwise: [B, k+1, V] Gumbel noise in the seeded mode, which is
                exact matching; [B, k+1, 2] uniform in (0, 1) for `SpeculativeSampling`.
        """
