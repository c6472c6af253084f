"""The graphs of a network, compiled when they are first needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from spec2seq.backends.openvino.program import Program, with_outputs, with_shapes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from spec2seq.backends.openvino.precision import Precision

    Array = np.ndarray[Any, Any]

FEW_POSITIONS = 16  # up to so many rows x positions, a call has no work for many threads


@dataclass(frozen=True)
class ThreadPlan:
    """How many threads compute calls of few rows x positions, and those of many."""

    few: int
    many: int


class Engine:
    """Runs graphs by name. Not safe for use from several threads at once.

    Attributes:
        graphs: what there is to run, as openvino.Models.
        precision: what they compute in.
        threads: how many threads they get.
    """

    def __init__(self, graphs: Mapping[str, Any], precision: Precision, threads: ThreadPlan) -> None:
        self.graphs, self.precision, self.threads = graphs, precision, threads
        self._programs: dict[tuple[str, tuple[str, ...] | None, int], Program] = {}

    @property
    def dtype(self) -> torch.dtype:
        """Of keys and values: float32, or int16 for the bits of bfloat16."""
        return torch.int16 if self.precision == "bfloat16" else torch.float32

    def program(self, name: str, num_positions: int, outputs: tuple[str, ...] | None = None) -> Program:
        """The program of a graph for calls of so many rows x positions, which computes `outputs` (all when None)."""
        key = name, outputs, self._num_threads(num_positions)
        if key not in self._programs:
            self._programs[key] = self.compiled(name, num_positions, outputs)
        return self._programs[key]

    def compiled(
        self,
        name: str,
        num_positions: int,
        outputs: tuple[str, ...] | None = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
    ) -> Program:
        """A new one, for inputs of these shapes only where they are given."""
        graph = self.graphs[name]
        if outputs is not None:
            graph = with_outputs(graph, outputs)
        if shapes is not None:
            graph = with_shapes(graph, shapes)
        return Program(graph, self.precision, self._num_threads(num_positions))

    def num_bytes(self, name: str) -> int:
        """How much memory the weights of a graph take."""
        constants = (node for node in self.graphs[name].get_ops() if node.get_type_name() == "Constant")
        return sum(node.get_byte_size() for node in constants)

    def _num_threads(self, num_positions: int) -> int:
        return self.threads.few if num_positions <= FEW_POSITIONS else self.threads.many

    def forget_others(self) -> None:
        """Give back the memory of programs for other numbers of threads than are in use."""
        used = {self.threads.few, self.threads.many}
        self._programs = {key: program for key, program in self._programs.items() if key[2] in used}

    def run(self, name: str, arrays: Mapping[str, Array], num_positions: int) -> Program:
        """Run a graph with all its outputs on these arrays. Returns it, for its outputs to be read."""
        program = self.program(name, num_positions)
        program.bind_group("", arrays)
        program.run()
        return program
