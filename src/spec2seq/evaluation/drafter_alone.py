"""What a drafter writes when nobody checks it: a yardstick of how much the verifier's checks are worth.

For evaluation only. It is no way to decode: nothing of the verifier is in such an output.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

import torch

from spec2seq.decoding.stats import is_degenerate
from spec2seq.errors import OptionError
from spec2seq.types import Acceptance, DecoderOutput, Prefix, RequestStats, SourceBatch, TensorScores

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from torch import Tensor

    from spec2seq.config import ModelConfig
    from spec2seq.generation_options import ResolvedOptions
    from spec2seq.interfaces import Drafter

_NO_OUTPUT = DecoderOutput(TensorScores(torch.empty(0, 0, 0)))  # there was no call that could have one


def _not_alone() -> OptionError:
    return OptionError("this drafter reads the verifier's states and writes nothing alone; leave it out")


class _NotEncoded:
    """Stands where the verifier's encoder output would be."""

    hidden: Tensor
    lengths: Tensor

    def __getattr__(self, name: str) -> object:
        raise _not_alone()

    def select_rows(self, rows: Tensor) -> Self:
        raise _not_alone()

    def concat(self, other: Self) -> Self:
        raise _not_alone()


class DrafterAlone:
    """Commits every block as it was drafted, one text at a time.

    Args:
        drafter: one that reads nothing of the verifier's; without rows, and left so.
        config: of the verifier whose texts are drafted.
        device: the drafter's.
        options: when an output ends, and what it begins with.
        num_draft_tokens: per block; None means the drafter's own number.

    Raises:
        OptionError: the drafter reads the verifier's states; also from `run`.
    """

    def __init__(
        self,
        drafter: Drafter,
        config: ModelConfig,
        device: torch.device,
        options: ResolvedOptions,
        num_draft_tokens: int | None = None,
    ) -> None:
        if drafter.hidden_layers:
            raise _not_alone()
        self.drafter = drafter
        self.config = config
        self.device = device
        self.options = options
        self.num_draft_tokens = num_draft_tokens or drafter.default_num_draft_tokens
        self._stats: list[RequestStats] = []

    def run(self, sources: Sequence[Sequence[int]]) -> list[list[int]]:
        """Outputs: what follows the decoder start token, end of sequence included where it was drafted."""
        return [self._write(source) for source in sources]

    def take_stats(self) -> list[RequestStats]:
        """Statistics of every output since the last call. A round is a block; nothing was judged."""
        stats, self._stats = self._stats, []
        return stats

    @torch.inference_mode()
    def _write(self, source: Sequence[int]) -> list[int]:
        forced = [token for token in self.options.forced_first_tokens(1) if token is not None]
        stats = RequestStats(num_tokens=len(forced), num_forced=len(forced))
        begin = perf_counter()
        self.drafter.start(SourceBatch.from_lists([source], self.config.pad_token_id, self.device), _NotEncoded())
        tokens = [self.config.decoder_start_token_id, *forced]
        limit = 1 + self.options.budget(1)
        is_ended = False
        while not is_ended and len(tokens) < limit:
            block = self._block(tokens, limit)
            stats.num_rounds += 1
            stats.num_drafted += len(block)
            stats.num_tokens += len(block)
            tokens += block
            is_ended = not block or block[-1] in self.options.eos_token_ids
        self.drafter.select_rows(torch.zeros(0, dtype=torch.long, device=self.device))
        stats.seconds_draft = perf_counter() - begin
        stats.is_degenerate = not is_ended and is_degenerate(tokens)
        self._stats.append(stats)
        return tokens[1:]

    def _block(self, tokens: list[int], limit: int) -> list[int]:
        """The next tokens, up to an end of sequence or the limit; none where the drafter has no more positions."""
        device = self.device
        prefix = Prefix(torch.tensor([tokens], device=device), torch.tensor([len(tokens)], device=device))
        draft = self.drafter.propose(prefix, self.num_draft_tokens)
        block: list[int] = draft.tokens[0, : int(draft.lengths[0])].tolist()[: limit - len(tokens)]
        ends = [i for i, token in enumerate(block) if token in self.options.eos_token_ids]
        block = block[: ends[0] + 1] if ends else block
        if block:
            kept, last = torch.tensor([len(block) - 1], device=device), torch.tensor([block[-1]], device=device)
            self.drafter.commit(prefix, Acceptance(kept, last), _NO_OUTPUT)
        return block
