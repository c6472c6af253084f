"""The graphs of a network, compiled when they are first needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from spec2seq.backends.openvino.program import Program, with_outputs

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from spec2seq.backends.openvino.precision import Precision

    Array = np.ndarray[Any, Any]

FEW_ROWS = 16  # up to so many rows x positions, a call has no work for many threads


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

    def program(self, name: str, num_rows: int, outputs: tuple[str, ...] | None = None) -> Program:
        """The program of a graph for calls of `num_rows` rows x positions, which computes `outputs` (all when None)."""
        num_threads = self.threads.few if num_rows <= FEW_ROWS else self.threads.many
        key = name, outputs, num_threads
        if key not in self._programs:
            graph = self.graphs[name] if outputs is None else with_outputs(self.graphs[name], outputs)
            self._programs[key] = Program(graph, self.precision, num_threads)
        return self._programs[key]

    def forget_others(self) -> None:
        """Give back the memory of programs for other numbers of threads than are in use."""
        used = {self.threads.few, self.threads.many}
        self._programs = {key: program for key, program in self._programs.items() if key[2] in used}

    def run(self, name: str, arrays: Mapping[str, Array], num_rows: int) -> Program:
        """Run a graph with all its outputs on these arrays. Returns it, for its outputs to be read."""
        program = self.program(name, num_rows)
        program.bind_group("", arrays)
        program.run()
        return program
