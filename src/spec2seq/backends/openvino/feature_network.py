"""The network of the drafter that reads the verifier's states, on OpenVINO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from spec2seq.arrays import as_tensor, numbers
from spec2seq.backends.openvino.encoded import EngineSource, source_sizes
from spec2seq.backends.openvino.feature_cache import FeatureCache, Latest
from spec2seq.backends.openvino.feature_feed import BlockInputs, BlockShape
from spec2seq.backends.openvino.feature_graphs import LAW_OUTPUTS, WALK_OUTPUTS
from spec2seq.backends.openvino.sizes import padded_length, padded_rows
from spec2seq.nn.feature_drafter import BlockAnswer

if TYPE_CHECKING:
    from torch import Tensor

    from spec2seq.backends.native.block_program import BlockProgram
    from spec2seq.backends.openvino.engine import Engine
    from spec2seq.backends.openvino.program import Program
    from spec2seq.interfaces import BlockScores, Cache, DraftSource
    from spec2seq.nn.feature_drafter import FeatureDrafterNetwork
    from spec2seq.types import Wanted

    Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class WalkedBlock:
    """`BlockScores` of which only the best tokens [B, k] are known."""

    best: Tensor

    def tokens(self) -> Tensor:
        return self.best

    def log_probs(self, slot: int, previous: Tensor) -> Tensor:
        raise AssertionError("logits were not asked for before the call")


class OpenVinoFeatureNetwork:
    """`FeatureNetwork` over the graphs of a `FeatureDrafterNetwork`. Not safe for use from several threads at once.

    States are read in the call that drafts next, so that a round is one call.

    Attributes:
        config: of the network.
        engine: what holds and runs the graphs.
    """

    def __init__(self, network: FeatureDrafterNetwork, engine: Engine, block: BlockProgram | None = None) -> None:
        """`engine` has the graphs of `feature_graphs(network)`; those but "source" are not needed with a `block`, which
        takes their place. Rows of the network's tables are looked up in it."""
        self.config, self.engine, self._block = network.config, engine, block
        self._network = network
        self._shortlist = None if network.shortlist is None else network.shortlist.numpy()
        self._table = network.embedding.positions.numpy()
        # looked up by numpy: torch's operators take several times as long, above all behind the engine's work
        self._tokens, self._scale = network.tables.tokens.numpy(), network.tables.embedding_scale
        self._before = None if network.bigrams is None else network.bigrams.before.numpy()
        self._inputs: BlockInputs | None = None

    def encode(self, hidden: Tensor, lengths: Tensor) -> EngineSource:
        """See `interfaces.FeatureNetwork.encode`."""
        num_rows, longest, depth = hidden.shape
        width = padded_length(longest, num_rows)
        states = np.zeros((num_rows, width, depth), dtype=np.float32)
        states[:, :longest] = hidden.numpy()
        places = self._table[np.minimum(np.arange(width), len(self._table) - 1)]
        sizes = source_sizes(num_rows, width)
        program = self.engine.run("source", {"hidden": states, "places": places}, num_rows * width, sizes)
        return EngineSource.of(lengths, {"cross": torch.from_numpy(program.output("cross").copy())})

    def new_cache(self, num_rows: int) -> FeatureCache:
        """See `interfaces.FeatureNetwork.new_cache`."""
        config = self.config
        shape, state_shape = (config.num_heads, config.head_dim), (len(config.hidden_layers), config.verifier.d_model)
        return FeatureCache(config.num_layers, shape, self.engine.dtype, num_rows, state_shape)

    def remember(self, states: Tensor, firsts: Tensor, cache: Cache) -> None:
        """See `interfaces.FeatureNetwork.remember`."""
        own_cache = cast("FeatureCache", cache)
        if not own_cache.is_read:
            self._read(own_cache)
        own_cache.latest, own_cache.is_read = Latest(numbers(states), numbers(firsts)), False

    def draft(
        self,
        anchors: Tensor,
        positions: Tensor,
        num_known: Tensor,
        num_draft_tokens: int,
        cache: Cache,
        source: DraftSource,
        wanted: Wanted,
    ) -> BlockScores:
        """See `interfaces.FeatureNetwork.draft`; `cache` and `source` must be this engine's own."""
        own_cache = cast("FeatureCache", cache)
        latest = own_cache.latest
        own_cache.is_read = True
        # room for what is made of the last states too, which is hidden
        own_cache.reserve(max(latest.firsts.tolist()) + latest.states.shape[1] + 1)
        inputs = self._shaped_inputs(own_cache, num_draft_tokens)
        inputs.fill_states(latest, numbers(num_known))
        tokens = numbers(anchors)
        inputs.fill_block(self._tokens[tokens] * self._scale, numbers(positions))
        if self._before is not None:
            inputs.fill_bigrams(self._before[tokens])
        is_walk = self._before is not None and not wanted.logits
        program = self._program(inputs.shape, is_walk=is_walk)
        program.bind_group("call", inputs.arrays)
        program.bind_group("past", own_cache.views())
        program.bind_group("source", cast("EngineSource", source).views())
        program.run()
        own_cache.store(program.output("new"), latest.firsts)
        return self._best(program, len(anchors)) if is_walk else self._answer(program, anchors)

    def _read(self, cache: FeatureCache) -> None:
        """Read the latest states apart from a draft."""
        latest = cache.latest
        num_rows, width = latest.states.shape[:2]
        cache.reserve(max(latest.firsts.tolist()) + width)
        if self._block is not None:
            cache.store(self._block.read(latest.states), latest.firsts)
            return
        rows = padded_rows(num_rows)
        states = np.zeros((rows, *latest.states.shape[1:]), dtype=np.float32)
        states[:num_rows] = latest.states
        sizes = (("rows", 1), ("states", width)) if num_rows == 1 else None
        cache.store(self.engine.run("read", {"states": states}, rows * width, sizes).output("new"), latest.firsts)

    def _shaped_inputs(self, cache: FeatureCache, num_places: int) -> BlockInputs:
        shape = BlockShape(cache.run_rows, num_places, cache.latest.states.shape[1] + 1, cache.num_slots)
        if self._inputs is None or self._inputs.shape != shape:
            self._inputs = BlockInputs(shape, self.config, self._table, self._network.embedding.places.numpy())
        return self._inputs

    def _program(self, shape: BlockShape, *, is_walk: bool) -> Program | BlockProgram:
        """What runs a call of this shape."""
        if self._block is not None:
            return self._block
        sizes = None
        if shape.rows == 1:
            sizes = ("rows", 1), ("queries", shape.places), ("states", shape.states)
        return self.engine.program("draft", shape.rows * shape.places, WALK_OUTPUTS if is_walk else LAW_OUTPUTS, sizes)

    def _best(self, program: Program | BlockProgram, num_rows: int) -> WalkedBlock:
        found = _walked(program, num_rows) if self._block is None else program.output("walked")[:num_rows].copy()
        return WalkedBlock(as_tensor(found if self._shortlist is None else self._shortlist[found]))

    def _answer(self, program: Program | BlockProgram, anchors: Tensor) -> BlockAnswer:
        config, network = self.config, self._network
        scores = torch.from_numpy(program.output("scores")[: len(anchors)].copy())
        num_candidates = min(config.bigram_candidates, config.num_outputs)
        num_tokens = config.verifier.target_vocab_size
        return BlockAnswer(scores, anchors, network.bigrams, num_candidates, network.shortlist, num_tokens)


def _walked(program: Program | BlockProgram, num_rows: int) -> Array:
    """Places of tokens [B, k]: from slot to slot, always the best behind the last one."""
    places, following = program.output("places").tolist(), program.output("links").argmax(axis=3).tolist()
    walked = []
    for row in range(num_rows):
        number, tokens = 0, []  # in the first slot all rows of links are the same
        for candidates, best in zip(places[row], following[row], strict=True):
            number = best[number]
            tokens.append(candidates[number])
        walked.append(tokens)
    return np.array(walked)
