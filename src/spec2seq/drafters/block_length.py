"""How many tokens a drafter's blocks had in training."""

from __future__ import annotations

import warnings


class BlockLength:
    """Says so, once, when more tokens are asked for than a drafter has learned to draft.

    Args:
        block_size: of the training.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._is_warned = False

    def warn_beyond(self, num_draft_tokens: int) -> None:
        """Warns:
        UserWarning: `num_draft_tokens` is above the block size, for the first time.
        """
        if num_draft_tokens > self._block_size and not self._is_warned:
            self._is_warned = True
            warnings.warn(
                f"num_draft_tokens={num_draft_tokens} is more than the block_size={self._block_size} that "
                "this drafter was trained for: tokens beyond it are rarely accepted",
                stacklevel=3,
            )
