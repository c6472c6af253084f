"""What a Spec-Drafter network is. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from spec2seq.errors import OptionError

if TYPE_CHECKING:
    from spec2seq.config import ModelConfig


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
