"""What transformers itself generates, and a small harness to run the loop beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from spec2seq.backends.torch_engine import TorchVerifier
from spec2seq.decoding.loop import Decoder
from spec2seq.option_resolution import resolve_options
from spec2seq.types import SourceBatch, pad_rows
from spec2seq.weights import load_model
from tests.families import tiny_hf_model

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from spec2seq.interfaces import Drafter
    from spec2seq.types import DecodedRequest


class Pair:
    """A tiny checkpoint as a transformers model and as ours, both in float64 so that ties do not decide."""

    def __init__(
        self,
        folder: Path,
        family: str,
        seed: int = 0,
        dtype: str = "float64",
        position_scale: float = 1.0,
        device: str = "cpu",
    ) -> None:
        """`position_scale` > 1 makes what BART says depend more on the position, so that it repeats itself less."""
        self.model = tiny_hf_model(family, seed=seed)
        if position_scale != 1.0:
            self.model.model.decoder.embed_positions.weight.data.mul_(position_scale)
        self.model.save_pretrained(folder)
        self.model = self.model.to(device, getattr(torch, dtype))
        loaded = load_model(str(folder), dtype=dtype)
        self.config, self.checkpoint = loaded.config, loaded.generation
        self.verifier = TorchVerifier(loaded.network, device)
        self.pad = self.config.pad_token_id

    def forget_generation_settings(self) -> None:
        """Let transformers search plainly, without an end of sequence unless one is given."""
        from transformers import GenerationConfig

        start = self.model.generation_config.decoder_start_token_id
        self.model.generation_config = GenerationConfig(decoder_start_token_id=start, pad_token_id=self.pad)

    def sources(self, num_rows: int, seed: int = 0, longest: int = 12) -> list[list[int]]:
        """Ragged sources of 2 to `longest` ids, none of them special."""
        generator = torch.Generator().manual_seed(seed)
        lengths = torch.randint(2, longest + 1, (num_rows,), generator=generator).tolist()
        rows = [torch.randint(4, 40, (n - 1,), generator=generator).tolist() for n in lengths]
        return [[*row, self.config.eos_token_ids[0]] for row in rows]

    def transformers_ids(self, sources: Sequence[Sequence[int]], **options: Any) -> list[list[int]]:
        """Output ids of each source decoded alone, decoder start left out."""
        return [self.transformers_batch([row], **options)[0] for row in sources]

    def transformers_batch(self, sources: Sequence[Sequence[int]], **options: Any) -> list[list[int]]:
        """Output ids of the sources decoded as one batch, cut after the first EOS."""
        ids, lengths = pad_rows(sources, self.pad)
        mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
        ids, mask = ids.to(self.model.device), mask.to(self.model.device)
        rows = self.model.generate(input_ids=ids, attention_mask=mask, do_sample=False, **options)[:, 1:].tolist()
        eos = options.get("eos_token_id", self.model.generation_config.eos_token_id)
        eos_ids = [eos] if isinstance(eos, int) else eos or []
        # a row of a batch that ends early is padded; the pad itself may be an output elsewhere
        return [cut_after(row, eos_ids) for row in rows]

    def transformers_hypotheses(self, source: Sequence[int], **options: Any) -> list[list[int]]:
        """All returned sequences of one source, decoder start left out, cut after the first EOS."""
        ids = torch.tensor([source])
        rows = self.model.generate(input_ids=ids, do_sample=False, **options)[:, 1:].tolist()
        eos = options["eos_token_id"]
        return [cut_after(row, [eos] if isinstance(eos, int) else eos) for row in rows]

    def run(
        self,
        sources: Sequence[Sequence[int]],
        drafter: Drafter | None = None,
        *,
        max_rows: int = 64,
        prompts: list[list[int]] | None = None,
        budgets: list[int] | None = None,
        checkpoint: dict[str, Any] | None = None,
        **options: Any,
    ) -> list[DecodedRequest]:
        """Results of our loop in the order of the sources."""
        resolved = resolve_options(checkpoint or {}, self.config, None, options)
        decoder = Decoder(self.verifier, drafter, max_rows=max_rows)
        batch = SourceBatch.from_lists(sources, self.pad)
        requests = decoder.add(batch, resolved, prompts=prompts, budgets=budgets)
        while decoder.alive:
            decoder.step()
        return [decoder.result(request) for request in requests]

    def ids(self, sources: Sequence[Sequence[int]], drafter: Drafter | None = None, **settings: Any) -> list[list[int]]:
        """Best output ids of our loop in the order of the sources."""
        return [result.hypotheses[0].token_ids for result in self.run(sources, drafter, **settings)]


def cut_after(row: list[int], eos_ids: Sequence[int]) -> list[int]:
    """The ids up to and including the first EOS."""
    ends = [i for i, token in enumerate(row) if token in eos_ids]
    return row[: ends[0] + 1] if ends else row
