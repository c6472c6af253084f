"""transformers' own model on the same folder and ids, to compare with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from spec2seq.evaluation.peer_errors import call_of
from spec2seq.types import pad_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


def silence_transformers() -> None:
    """No progress bars and no advice from transformers, for the rest of the process."""
    from transformers import utils

    logging: Any = utils.logging
    logging.set_verbosity_error()
    logging.disable_progress_bar()


class TransformersPeer:
    """transformers' own model and its `generate`."""

    def __init__(self, folder: Path, device: str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        from transformers import AutoModelForSeq2SeqLM

        self.model: Any = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=dtype).eval().to(device)

    def generate(self, sources: Sequence[Sequence[int]], options: Mapping[str, object]) -> list[list[int]]:
        """Outputs of one batch: ids after the decoder start token, cut after the end of sequence.

        Args:
            sources: ids of each source, EOS included.
            options: arguments of transformers' generate.

        Raises:
            PeerError: transformers failed.
        """
        ids, mask = self._padded(sources)
        with call_of("transformers"):
            outputs = self.model.generate(ids, attention_mask=mask, do_sample=False, **options)
        rows = outputs[:, 1:].tolist()
        eos = self.model.config.eos_token_id
        return [row[: row.index(eos) + 1] if eos in row else row for row in rows]

    @torch.inference_mode()
    def choices(
        self, source: Sequence[int], decoder_start: int, target: Sequence[int], banned: Sequence[int]
    ) -> list[int]:
        """The best token at every place of `target`, with the tokens of `target` before it.

        Args:
            source: ids of one source.
            decoder_start: what the target starts with.
            target: an output for it.
            banned: ids that are never chosen.

        Raises:
            PeerError: transformers failed.
        """
        ids, mask = self._padded([source])
        given = torch.tensor([[decoder_start, *target[:-1]]], device=ids.device)
        with call_of("transformers"):
            output = self.model(ids, attention_mask=mask, decoder_input_ids=given)
        logits = output.logits[0].float()
        logits[:, list(banned)] = float("-inf")
        best: list[int] = logits.argmax(-1).tolist()
        return best

    def _padded(self, sources: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        ids, lengths = pad_rows(sources, self.model.config.pad_token_id, self.model.device)
        return ids, (torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]).long()
