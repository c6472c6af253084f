"""The verifier on OpenVINO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from spec2seq.arrays import as_tensor
from spec2seq.backends.openvino.cache import EngineCache
from spec2seq.backends.openvino.encoded import VerifierSource, padding_mask, source_sizes
from spec2seq.backends.openvino.feed import Call, Shape, StepInputs
from spec2seq.backends.openvino.scores import read_scores
from spec2seq.backends.openvino.sizes import padded_length
from spec2seq.backends.openvino.verifier_graphs import step_outputs
from spec2seq.errors import InputError
from spec2seq.types import DecoderOutput

if TYPE_CHECKING:
    from spec2seq.backends.native.source_program import SourceProgram
    from spec2seq.backends.native.step_program import StepProgram
    from spec2seq.backends.openvino.engine import Engine
    from spec2seq.backends.openvino.program import Program
    from spec2seq.config import ModelConfig
    from spec2seq.interfaces import Cache, EncoderOutput
    from spec2seq.types import SourceBatch, Wanted

    Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class OwnPrograms:
    """Machine code of our own in place of graphs: of "step", and of "encoder" and "cross"; None where there is none."""

    step: StepProgram | None = None
    source: SourceProgram | None = None


class OpenVinoVerifier:
    """`Verifier` over the graphs of a `Seq2Seq` network. Not safe for use from several threads at once.

    Attributes:
        config, device: of the model; the device is the CPU.
        engine: what holds and runs the graphs.
    """

    def __init__(self, config: ModelConfig, engine: Engine, own: OwnPrograms | None = None) -> None:
        """`engine` has the graphs of `verifier_graphs`, but for those in whose place programs of our own are."""
        self.config, self.engine, self._own = config, engine, own or OwnPrograms()
        self.device = torch.device("cpu")
        self._inputs: StepInputs | None = None
        self._is_relative = config.positions == "relative"

    def encode(self, source: SourceBatch) -> VerifierSource:
        """Run the encoder, then `from_encoder`.

        Raises:
            InputError: a source is empty or longer than the model's positions.
        """
        shortest, longest = (int(length) for length in source.lengths.aminmax())
        limit = self.config.max_source_positions
        if limit is not None and longest > limit:
            raise InputError(
                f"a source of {longest} tokens is longer than the {limit} positions of this {self.config.family} "
                "model; split or truncate it"
            )
        if shortest < 1:
            raise InputError("a source has 0 tokens; leave empty sources out")
        own = self._own.source
        width = longest if own else padded_length(longest, len(source.lengths))
        ids = np.full((len(source.lengths), width), self.config.pad_token_id, dtype=np.int32)
        ids[:, :longest] = source.ids[:, :longest].numpy()
        mask = padding_mask(source.lengths.numpy(), len(ids), width)
        if own is not None:
            return self._with_cross(own.encode(ids, mask), source.lengths)
        sizes = source_sizes(len(ids), width)
        hidden = self.engine.run("encoder", {"ids": ids, "mask": mask}, ids.size, sizes).output("hidden")
        return self._with_cross(hidden.copy(), source.lengths)

    def from_encoder(self, hidden: Tensor, lengths: Tensor) -> VerifierSource:
        """Make the cross-attention keys and values of encoder states hidden [B, S, D], lengths [B]."""
        num_rows, width, size = hidden.shape
        states = np.zeros((num_rows, padded_length(width, num_rows), size), dtype=np.float32)
        states[:, :width] = hidden.numpy()
        return self._with_cross(states, lengths)

    def new_cache(self, num_rows: int) -> EngineCache:
        """An empty cache."""
        config = self.config
        return EngineCache(config.decoder_layers, (config.decoder_heads, config.head_dim), self.engine.dtype, num_rows)

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
        """See `interfaces.Verifier.decode`; `cache` and `encoded` must be this engine's own."""
        own_cache, source = cast("EngineCache", cache), cast("VerifierSource", encoded)
        call = Call.read(tokens, positions, lengths, slots, visible)
        own_cache.reserve(call.num_slots)
        if self._is_relative and not (slots is None and own_cache.slot_positions is None):
            own_cache.note_positions(call)
        inputs = self._filled_inputs(call, own_cache)
        program = self._program(inputs.shape, wanted, are_all_scored=queries is None)
        program.bind_group("call", inputs.arrays)
        program.bind_group("past", own_cache.views())
        program.bind_group("source", source.views())
        program.bind_group("scored", inputs.scored(queries))
        program.run()
        own_cache.write(program.output("new"), call)
        num_rows, num_scored = call.tokens.shape if queries is None else queries.shape
        logits = program.output("logits").reshape(inputs.shape.rows, -1, self.config.target_vocab_size)
        scores = read_scores(logits[:num_rows, :num_scored], wanted)
        return DecoderOutput(scores, self._hidden(program, call, wanted))

    def _with_cross(self, states: Array, lengths: Tensor) -> VerifierSource:
        num_rows, width, _ = states.shape
        if self._own.source is not None:
            cross = self._own.source.cross(states)
        else:
            sizes = source_sizes(num_rows, width)
            cross = self.engine.run("cross", {"hidden": states}, num_rows * width, sizes).output("cross").copy()
        tensors = {"hidden": torch.from_numpy(states), "cross": torch.from_numpy(cross)}
        return VerifierSource.of(lengths, tensors)

    def _filled_inputs(self, call: Call, cache: EngineCache) -> StepInputs:
        shape = Shape.of(call, cache)
        if self._inputs is None or self._inputs.shape != shape:
            self._inputs = StepInputs(shape, has_key_positions=self._is_relative)
        self._inputs.fill(call, cache.slot_positions)
        return self._inputs

    def _program(self, shape: Shape, wanted: Wanted, *, are_all_scored: bool) -> Program | StepProgram:
        """What runs a call of this shape."""
        if self._own.step is not None:
            return self._own.step
        sizes = None
        if shape.rows == 1 and are_all_scored:
            sizes = ("rows", 1), ("queries", shape.queries), ("scored", shape.queries)
        return self.engine.program("step", shape.rows * shape.queries, step_outputs(wanted.hidden_layers), sizes)

    def _hidden(self, program: Program | StepProgram, call: Call, wanted: Wanted) -> Tensor | None:
        if not wanted.hidden_layers:
            return None
        num_rows, num_queries = call.tokens.shape
        states = program.output("states")[:num_rows, :num_queries]
        return as_tensor(states.take(wanted.hidden_layers, axis=2))
