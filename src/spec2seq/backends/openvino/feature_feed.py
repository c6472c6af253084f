"""The arrays that one call of the drafter on the verifier's states is fed with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from spec2seq.backends.openvino.feature_cache import Latest
    from spec2seq.drafter_config import FeatureDrafterConfig

    Array = np.ndarray[Any, Any]


class BlockShape(NamedTuple):
    """Sizes that the graph is run with: rows, places of a block, states per row (the last one twice), cached slots."""

    rows: int
    places: int
    states: int
    slots: int


class BlockInputs:
    """The arrays of one shape, which calls of that shape fill anew. Rows that only pad it see themselves alone."""

    def __init__(self, shape: BlockShape, config: FeatureDrafterConfig, table: Array, places: Array) -> None:
        """For a network with these embedded positions [P, width] and places [block_size, width]."""
        self.shape = shape
        rows, num_places, num_states, num_slots = shape
        wide = config.verifier.d_model
        is_causal = config.block_attention == "causal"
        num_keys = num_slots + num_states + num_places
        self.states = np.zeros((rows, num_states, len(config.hidden_layers), wide), dtype=np.float32)
        self.anchors = np.zeros((rows, 1, wide), dtype=np.float32)
        self.is_anchor = np.zeros((1, num_places, 1), dtype=np.float32)
        self.is_anchor[0, 0] = 1.0
        self.slots = np.zeros((rows, num_places, config.width), dtype=np.float32)
        self.mask = np.full((rows, 1, num_places if is_causal else 1, num_keys), -np.inf, dtype=np.float32)
        self.before = np.zeros((rows, 1, 1, config.bigram_rank), dtype=np.float32)
        self._old, self._new = self.mask[:, 0, :, :num_slots], self.mask[:, 0, :, num_slots : num_keys - num_places - 1]
        self.mask[..., num_keys - num_places :] = np.where(np.tri(num_places), 0.0, -np.inf) if is_causal else 0.0
        # behind the block of the training all places are alike
        self._table, self._places = table, places[np.minimum(np.arange(num_places), len(places) - 1)]
        self._offsets = np.arange(num_places)
        self._columns, self._states = np.arange(num_slots), np.arange(num_states - 1)
        self.arrays = {
            name: getattr(self, name) for name in ("states", "anchors", "is_anchor", "slots", "mask", "before")
        }

    def fill_states(self, latest: Latest, num_known: Array) -> None:
        """Take in states, and how many positions [B] are seen."""
        num_rows, (states, firsts) = len(num_known), latest
        self.states[:num_rows, :-1] = states
        if num_rows == 1:  # plain numbers take a third of the time of arrays
            first, known = int(firsts[0]), int(num_known[0])
            num_cached, num_new = min(first, known), max(0, known - first)
            self.states[0, -1] = states[0, max(0, num_new - 1)]
            self._old[0, :, :num_cached], self._old[0, :, num_cached:] = 0.0, -np.inf
            self._new[0, :, :num_new], self._new[0, :, num_new:] = 0.0, -np.inf
            return
        self.states[:num_rows, -1] = states[np.arange(num_rows), np.maximum(num_known - firsts - 1, 0)]
        is_old = self._columns < np.minimum(firsts, num_known)[:, None]
        is_new = firsts[:, None] + self._states < num_known[:, None]
        self._old[:num_rows] = np.where(is_old, np.float32(0.0), np.float32(-np.inf))[:, None]
        self._new[:num_rows] = np.where(is_new, np.float32(0.0), np.float32(-np.inf))[:, None]

    def fill_block(self, anchors: Array, positions: Array) -> None:
        """Take in embedded anchors [B, D] at positions [B]."""
        num_rows = len(anchors)
        self.anchors[:num_rows, 0] = anchors
        first, end = int(positions[0]), int(positions[0]) + self.shape.places
        if num_rows == 1 and end <= len(self._table):
            np.add(self._table[first:end], self._places, out=self.slots[0])
            return
        rows = np.minimum(positions[:, None] + self._offsets, len(self._table) - 1)
        np.add(self._table[rows], self._places, out=self.slots[:num_rows])

    def fill_bigrams(self, before: Array) -> None:
        """Take in the table's rows [B, r] of the anchors."""
        self.before[: len(before), 0, 0] = before
