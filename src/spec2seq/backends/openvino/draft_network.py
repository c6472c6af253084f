"""The Spec-Drafter's network on OpenVINO."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from spec2seq.backends.openvino.encoded import EngineSource, padding_mask, source_sizes
from spec2seq.backends.openvino.scores import read_scores
from spec2seq.backends.openvino.sizes import padded_length, padded_prefix, padded_rows
from spec2seq.nn.spec_drafter import SlottedPrefix

if TYPE_CHECKING:
    from spec2seq.backends.openvino.engine import Engine
    from spec2seq.drafter_config import SpecDrafterConfig
    from spec2seq.interfaces import DraftSource
    from spec2seq.types import Prefix, Scores, SourceBatch, Wanted

    Array = np.ndarray[Any, Any]


class OpenVinoDraftNetwork:
    """`DraftNetwork` over the graphs of a `SpecDrafterNetwork`. Not safe for use from several threads at once.

    Attributes:
        config: of the network.
        engine: what holds and runs the graphs.
    """

    def __init__(self, config: SpecDrafterConfig, engine: Engine) -> None:
        """`engine` has the graphs of `draft_graphs`."""
        self.config, self.engine = config, engine

    def encode(self, source: SourceBatch) -> EngineSource:
        """See `interfaces.DraftNetwork.encode`."""
        lengths = source.lengths.clamp(max=self.config.max_source_positions)
        longest = int(lengths.max())
        width = min(padded_length(longest, len(lengths)), self.config.max_source_positions)
        ids = np.full((len(lengths), width), self.config.model.pad_token_id, dtype=np.int32)
        ids[:, :longest] = source.ids[:, :longest].numpy()
        mask = padding_mask(lengths.numpy(), len(ids), width)
        program = self.engine.run("encoder", {"ids": ids, "mask": mask}, ids.size, source_sizes(len(ids), width))
        names = ("cross", "copy_keys", "copy_values")
        return EngineSource.of(lengths, {name: torch.from_numpy(program.output(name).copy()) for name in names})

    def draft(self, prefix: Prefix, num_draft_tokens: int, source: DraftSource, wanted: Wanted) -> Scores:
        """See `interfaces.DraftNetwork.draft`; `source` must be this engine's own."""
        block = SlottedPrefix.of(prefix, num_draft_tokens, self.config.max_positions)
        num_rows, width = block.ids.shape
        rows, columns = padded_rows(num_rows), min(padded_prefix(width), self.config.max_positions)
        ids = np.zeros((rows, columns), dtype=np.int32)
        ids[:num_rows, :width] = block.ids.numpy()
        is_slot = np.ones((rows, columns), dtype=bool)
        is_slot[:num_rows, :width] = block.is_slot.numpy()
        scored = np.zeros((rows, num_draft_tokens), dtype=np.int32)
        scored[:num_rows] = block.slots.numpy() + np.arange(0, num_rows * columns, columns)[:, None]
        mask = padding_mask(block.lengths.numpy(), rows, columns)
        sizes = (("rows", 1), ("places", columns), ("scored", num_draft_tokens)) if num_rows == 1 else None
        program = self.engine.program("draft", rows * columns, sizes=sizes)
        program.bind_group("call", {"ids": ids, "is_slot": is_slot, "mask": mask, "scored": scored.ravel()})
        program.bind_group("source", cast("EngineSource", source).views())
        program.run()
        logits = program.output("logits").reshape(rows, num_draft_tokens, -1)
        return read_scores(logits[:num_rows], wanted)
