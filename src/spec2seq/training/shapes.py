"""How large a drafter of each kind is. Imports no torch, so that --help stays fast."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from spec2seq.drafter_config import (
    BlockAttention,
    BlockwiseConfig,
    FeatureDrafterConfig,
    SpecDrafterConfig,
    States,
)
from spec2seq.errors import OptionError

if TYPE_CHECKING:
    from spec2seq.config import ModelConfig

Kind = Literal["spec", "feature", "blockwise"]
DEFAULT_POSITIONS = 512  # where the verifier has no limit


@dataclass(frozen=True)
class SpecShape:
    """How large a Spec-Drafter is; its width and special ids are the verifier's.

    Attributes:
        block_size: slots per block in training.
        decoder_layers: the paper argues for few.
        encoder_layers: the first so many of the verifier's; None: all.

    Raises:
        OptionError: a size below 1.
    """

    kind: ClassVar[Kind] = "spec"
    block_size: int = 25
    decoder_layers: int = 2
    encoder_layers: int | None = None

    def __post_init__(self) -> None:
        _check_sizes(self, "block_size", "decoder_layers", "encoder_layers")

    def config(self, verifier: ModelConfig) -> SpecDrafterConfig:
        """The drafter's settings. Its positions hold the verifier's longest target and a block behind it.

        Raises:
            OptionError: more encoder layers than the verifier has.
        """
        layers = verifier.encoder_layers if self.encoder_layers is None else self.encoder_layers
        if layers > verifier.encoder_layers:
            raise OptionError(
                f"encoder_layers={layers} exceeds the {verifier.encoder_layers} of the verifier, whose encoder the "
                "drafter starts from; use at most that"
            )
        model = replace(
            verifier,
            encoder_layers=layers,
            decoder_layers=self.decoder_layers,
            max_source_positions=verifier.max_source_positions or DEFAULT_POSITIONS,
            max_target_positions=_num_positions(verifier, self.block_size),
        )
        return SpecDrafterConfig(model, self.block_size)


@dataclass(frozen=True)
class FeatureShape:
    """How large a drafter on the verifier's states is, and what it reads of them.

    Attributes:
        block_size: places per block in training.
        decoder_layers: that every round runs through.
        width, ffn_dim: of these; None: the verifier's.
        states, block_attention, bigram_rank: see `FeatureDrafterConfig`.
        coverage: only the commonest tokens can be drafted, which make up this share of the training's targets; 1: all.

    Raises:
        OptionError: a size below 1, or a share that is none.
    """

    kind: ClassVar[Kind] = "feature"
    block_size: int = 8
    decoder_layers: int = 1
    width: int | None = None
    ffn_dim: int | None = None
    states: States = "mix"
    block_attention: BlockAttention = "bidirectional"
    bigram_rank: int = 64
    coverage: float = 0.995

    def __post_init__(self) -> None:
        _check_sizes(self, "block_size", "decoder_layers", "width", "ffn_dim")
        if not 0 < self.coverage <= 1:
            raise OptionError(f"coverage={self.coverage} is not allowed: use a number above 0, and at most 1")

    def config(self, verifier: ModelConfig, shortlist_size: int | None = None) -> FeatureDrafterConfig:
        """The drafter's settings. Its positions hold the verifier's longest target and a block behind it.

        Args:
            shortlist_size: how many tokens can be drafted; None: all.

        Raises:
            OptionError: numbers that do not go together.
        """
        width = self.width or verifier.d_model
        heads, head_dim = verifier.decoder_heads, verifier.head_dim
        if width != verifier.d_model:
            heads, head_dim = max(1, width // head_dim), min(width, head_dim)
        return FeatureDrafterConfig(
            verifier,
            self.block_size,
            width,
            self.decoder_layers,
            heads,
            head_dim,
            self.ffn_dim or verifier.decoder_ffn_dim,
            _num_positions(verifier, self.block_size),
            self.states,
            self.block_attention,
            self.bigram_rank,
            shortlist_size=shortlist_size,
        )


@dataclass(frozen=True)
class BlockwiseShape:
    """How large the heads on the verifier's last state are.

    Attributes:
        block_size: heads.
        ffn_dim: inner width of each; None: the verifier's width.

    Raises:
        OptionError: a size below 1.
    """

    kind: ClassVar[Kind] = "blockwise"
    block_size: int = 10
    ffn_dim: int | None = None

    def __post_init__(self) -> None:
        _check_sizes(self, "block_size", "ffn_dim")

    def config(self, verifier: ModelConfig) -> BlockwiseConfig:
        """The heads' settings."""
        return BlockwiseConfig(verifier, self.block_size, self.ffn_dim or verifier.d_model)


DrafterShape = SpecShape | FeatureShape | BlockwiseShape


def _num_positions(verifier: ModelConfig, block_size: int) -> int:
    return (verifier.max_target_positions or DEFAULT_POSITIONS) + block_size


def _check_sizes(shape: object, *names: str) -> None:
    for name in names:
        value = getattr(shape, name)
        if value is not None and value < 1:
            raise OptionError(f"{name}={value} is not allowed: use 1 or more")
