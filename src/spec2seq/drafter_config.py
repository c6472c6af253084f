"""What the networks of drafters are. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from spec2seq.config import ModelConfig  # noqa: TC001  who reads a drafter's config.json reads the annotations
from spec2seq.errors import OptionError


@dataclass(frozen=True)
class SpecDrafterConfig:
    """The paper's parallel drafter: an encoder of the verifier's class and a bidirectional decoder.

    Attributes:
        model: both stacks' sizes, special ids and vocabularies. Norms, activation, positions and embedding scale are
            those of the encoder; the decoder's are the paper's (see `decoder`). `max_source_positions` and
            `max_target_positions` are numbers, also where the verifier has no limit: both tables are learned then.
        block_size: tokens per block in training.
        slot_token_id: an id that is read as a masked slot wherever it stands, as the paper's released code does with
            `<unk>`; None: only the slots of the block are masked.

    Raises:
        OptionError: a size that cannot be.
    """

    model: ModelConfig
    block_size: int
    slot_token_id: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_source_positions", "max_target_positions"):
            if getattr(self.model, name) is None:
                raise OptionError(f"{name}=None: a drafter needs tables of positions; give a number")
        if not 1 <= self.block_size <= self.max_positions:
            raise OptionError(
                f"block_size={self.block_size} does not fit the {self.max_positions} positions of the drafter; "
                "use fewer tokens, or more positions"
            )

    @property
    def max_positions(self) -> int:
        """Rows of the decoder's position table: the longest prefix without its start token, and the slots after it."""
        return self.model.max_target_positions or 0

    @property
    def max_source_positions(self) -> int:
        """The longest source; what lies behind it is cut off."""
        return self.model.max_source_positions or 0

    @property
    def decoder(self) -> ModelConfig:
        """The decoder's settings: norms last, GELU, learned positions from row 0 on."""
        return replace(
            self.model,
            activation="gelu",
            positions="learned",
            position_offset=0,
            is_pre_norm=False,
            has_final_norm=False,
            has_embedding_norm=False,
            norm="layer",
            norm_eps=1e-5,
            is_gated_ffn=False,
            has_bias=True,
            output_scale=1.0,
            is_attention_scaled=True,
        )


States = Literal["none", "last", "mix"]
BlockAttention = Literal["bidirectional", "causal"]


@dataclass(frozen=True)
class FeatureDrafterConfig:
    """The drafter that reads the verifier's own states: no encoder, few layers, a cache.

    Attributes:
        verifier: the model it drafts for. What it reads and answers with is as wide as that, and its layers are of the
            same make: norms, activation, biases.
        block_size: tokens per block in training.
        width, num_layers, num_heads, head_dim, ffn_dim: of its own layers.
        max_positions: of the longest prefix without its start token, and the block after it.
        states: what it sees of the prefix: the verifier's embeddings of it ("none"), the outputs of the last decoder
            layer ("last"), or a learned mixture of these and all layers between ("mix").
        block_attention: whether the places of a block see each other both ways, or only earlier ones.
        bigram_rank: of the table that says which token follows which within a block; 0: no such table.
        bigram_candidates: how many tokens per place the table chooses among.
        shortlist_size: how many of the commonest tokens can be drafted; None: all.

    Raises:
        OptionError: a size that cannot be.
    """

    verifier: ModelConfig
    block_size: int
    width: int
    num_layers: int
    num_heads: int
    head_dim: int
    ffn_dim: int
    max_positions: int
    states: States = "mix"
    block_attention: BlockAttention = "bidirectional"
    bigram_rank: int = 64
    bigram_candidates: int = 16
    shortlist_size: int | None = None

    def __post_init__(self) -> None:
        _check_at_least(self, 1, "block_size", "width", "num_layers", "num_heads", "head_dim", "ffn_dim")
        _check_at_least(self, 1, "bigram_candidates")
        _check_at_least(self, 0, "bigram_rank")
        if self.block_size > self.max_positions:
            raise OptionError(
                f"block_size={self.block_size} does not fit the {self.max_positions} positions of the drafter; "
                "use fewer tokens, or more positions"
            )
        vocabulary = self.verifier.target_vocab_size
        if self.shortlist_size is not None and not 1 <= self.shortlist_size <= vocabulary:
            raise OptionError(f"shortlist_size={self.shortlist_size} is not allowed: use 1 to {vocabulary}")

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        """The decoder layers of the verifier whose outputs it reads; 0 is the embeddings."""
        last = self.verifier.decoder_layers
        return {"none": (0,), "last": (last,), "mix": tuple(range(last + 1))}[self.states]

    @property
    def num_outputs(self) -> int:
        """How many tokens can be drafted."""
        return self.verifier.target_vocab_size if self.shortlist_size is None else self.shortlist_size

    @property
    def layers(self) -> ModelConfig:
        """The settings of its own layers."""
        return replace(
            self.verifier,
            d_model=self.width,
            decoder_layers=self.num_layers,
            decoder_heads=self.num_heads,
            head_dim=self.head_dim,
            decoder_ffn_dim=self.ffn_dim,
        )


@dataclass(frozen=True)
class BlockwiseConfig:
    """Heads on the verifier's last hidden state, one for each token of a block (Stern et al. 2018).

    Attributes:
        verifier: the model they draft for.
        block_size: number of heads.
        ffn_dim: inner width of each head.

    Raises:
        OptionError: a size that cannot be.
    """

    verifier: ModelConfig
    block_size: int
    ffn_dim: int

    def __post_init__(self) -> None:
        _check_at_least(self, 1, "block_size", "ffn_dim")


DrafterConfig = SpecDrafterConfig | FeatureDrafterConfig | BlockwiseConfig


def _check_at_least(config: object, least: int, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if value < least:
            raise OptionError(f"{name}={value} is not allowed: use {least} or more")
