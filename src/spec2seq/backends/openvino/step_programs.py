"""Which program runs a verifier call."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from spec2seq.backends.openvino.verifier_graphs import fixed_step_shapes, state_names

if TYPE_CHECKING:
    from spec2seq.backends.openvino.engine import Engine
    from spec2seq.backends.openvino.feed import Shape
    from spec2seq.backends.openvino.program import Program
    from spec2seq.config import ModelConfig

# A program for one row and a fixed number of queries saves the 0.15 to 0.2 ms per call that finding out about the sizes
# of everything takes. Compiling one takes 0.3 s at width 256: it is made when it would have paid.
_CALLS_BEFORE = 1500
_MOST_FIXED = 6
_LARGEST_GRAPH = 100 * 2**20  # bytes of weights; each program has its own


class StepPrograms:
    """Programs of the step's graph: one for each set of outputs, and more for single rows with frequent sizes."""

    def __init__(self, config: ModelConfig, engine: Engine) -> None:
        self._config, self._engine = config, engine
        self._state_names = state_names(config)
        self._num_calls: Counter[tuple[int, tuple[str, ...]]] = Counter()
        self._fixed: dict[tuple[int, tuple[str, ...]], Program] = {}
        self._can_fix = engine.num_bytes("step") <= _LARGEST_GRAPH

    def get(self, shape: Shape, hidden_layers: tuple[int, ...], *, are_all_scored: bool) -> Program:
        """The program for calls of this shape that score all queries or only some."""
        outputs: tuple[str, ...] = ("logits", "new")
        if hidden_layers:
            outputs += tuple(self._state_names[layer] for layer in sorted(set(hidden_layers)))
        if shape.rows == 1 and are_all_scored and self._can_fix:
            key = shape.queries, outputs
            fixed = self._fixed.get(key) or self._made_now(key)
            if fixed is not None:
                return fixed
        return self._engine.program("step", shape.rows * shape.queries, outputs)

    def _made_now(self, key: tuple[int, tuple[str, ...]]) -> Program | None:
        """A program for these numbers of queries and outputs, once there were enough such calls."""
        self._num_calls[key] += 1
        if self._num_calls[key] <= _CALLS_BEFORE or len(self._fixed) == _MOST_FIXED:
            return None
        num_queries, outputs = key
        shapes = fixed_step_shapes(self._config, num_queries)
        self._fixed[key] = self._engine.compiled("step", num_queries, outputs, shapes)
        return self._fixed[key]
