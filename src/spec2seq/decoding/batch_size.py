"""How large a batch is, and whether more fits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BatchSize:
    """Rows of a batch, and the lengths of its longest source and target so far."""

    num_rows: int = 0
    longest_source: int = 0
    longest_target: int = 0

    @property
    def tokens(self) -> int:
        """Rows x (longest source + longest target)."""
        # nobody knows yet how long a newcomer's target gets: as long as its source, usually
        return self.num_rows * (self.longest_source + max(self.longest_target, self.longest_source))

    def joined(self, num_rows: int, source_length: int, target_length: int = 0) -> BatchSize:
        """With so many more rows of one request."""
        return BatchSize(
            self.num_rows + num_rows,
            max(self.longest_source, source_length),
            max(self.longest_target, target_length),
        )

    def is_within(self, max_rows: int, max_tokens: int | None) -> bool:
        """Whether it is allowed; None sets no limit."""
        return self.num_rows <= max_rows and (max_tokens is None or self.tokens <= max_tokens)
