"""The graphs of a network, compiled when they are first needed."""

from __future__ import annotations

from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from spec2seq.backends.openvino.program import Program, with_outputs, with_sizes
from spec2seq.backends.openvino.trials import compute_alike

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Future

    import numpy as np

    from spec2seq.backends.openvino.precision import Precision

    Array = np.ndarray[Any, Any]
    Outputs = tuple[str, ...] | None
    Sizes = tuple[tuple[str, int], ...]
    _Key = tuple[str, Outputs, int]  # graph, outputs, threads

FEW_POSITIONS = 16  # up to so many rows x positions, a call has no work for many threads

# What a program that takes inputs of certain sizes only saves per call, in seconds, measured at width 256: there is
# less to find out, and above all nothing to prepare anew when the sizes were others in the call before.
_SAVED_PER_CALL, _SAVED_PER_CHANGE = 0.00015, 0.0008
_MOST_BYTES = 256 * 2**20  # of weights in such programs, each of which has its own


@dataclass(frozen=True)
class ThreadPlan:
    """How many threads compute calls of few rows x positions, and those of many."""

    few: int
    many: int


class Engine:
    """Runs graphs by name. Not safe for use from several threads at once.

    Attributes:
        graphs: what there is to run, as openvino.Models.
        sizes: for every graph the names of its inputs' varying sizes, by input and dimension.
        precision: what they compute in.
        threads: how many threads they get.
        dtype: of keys and values: float32, or int16 for the bits of bfloat16.
    """

    def __init__(
        self,
        graphs: Mapping[str, Any],
        sizes: Mapping[str, Mapping[str, Mapping[int, str]]],
        precision: Precision,
        threads: ThreadPlan,
    ) -> None:
        self.graphs, self.sizes, self.precision, self.threads = graphs, sizes, precision, threads
        self.dtype = torch.int16 if any(map(_has_bfloat16_ports, graphs.values())) else torch.float32
        self._programs: dict[_Key, Program] = {}
        self._ahead: dict[str, tuple[_Key, Future[Program]]] = {}  # by graph
        self._sized: dict[tuple[str, Outputs, Sizes], Program] = {}
        self._last_sizes: dict[tuple[str, Outputs], Sizes] = {}
        self._lost: dict[tuple[str, Outputs, Sizes], float] = defaultdict(float)
        self._bytes_left = _MOST_BYTES
        self._untrusted: set[str] = set()  # graphs that compute something else with fixed sizes

    def program(self, name: str, num_positions: int, outputs: Outputs = None, sizes: Sizes | None = None) -> Program:
        """What runs a graph.

        Args:
            name: of the graph.
            num_positions: rows x positions of the call.
            outputs: those to compute; all when None.
            sizes: of the call, where they are of few kinds: once calls with these have lost more time than it takes to
                compile a program for them alone, there is one.
        """
        if sizes is not None:
            sized = self._sized.get((name, outputs, sizes)) or self._sized_now(name, num_positions, outputs, sizes)
            if sized is not None:
                return sized
        key = name, outputs, self._num_threads(num_positions)
        if key not in self._programs:
            self._programs[key] = self._compiled_ahead(key) or self._compiled(key)
        return self._programs[key]

    def compile_ahead(self, *calls: tuple[str, int, Outputs]) -> None:
        """Begin to compile what these calls (the first three arguments of `program`) need, beside other work.

        One program per graph: it is let go of where the first call of the graph needs another. What cannot be compiled
        fails in that call.
        """
        worker = ThreadPoolExecutor(max_workers=1)
        for name, num_positions, outputs in calls:
            key = name, outputs, self._num_threads(num_positions)
            if key not in self._programs:
                self._ahead[name] = key, worker.submit(self._compiled, key)
        worker.shutdown(wait=False)  # it goes on until all is compiled

    def run(self, name: str, arrays: Mapping[str, Array], num_positions: int, sizes: Sizes | None = None) -> Program:
        """Run a graph with all its outputs on these arrays. Returns it, for its outputs to be read."""
        program = self.program(name, num_positions, sizes=sizes)
        program.bind_group("call", arrays)
        program.run()
        return program

    def forget_others(self) -> None:
        """Give back the memory of programs for other numbers of threads than are in use."""
        used = {self.threads.few, self.threads.many}
        self._programs = {key: program for key, program in self._programs.items() if key[2] in used}

    def _compiled_ahead(self, key: _Key) -> Program | None:
        """The program, if it is the one that was compiled ahead for its graph."""
        promised, future = self._ahead.pop(key[0], (None, None))
        if future is None or future.cancel():
            return None
        wait([future])  # a graph is not worked on in two threads
        return future.result() if promised == key else None

    def _compiled(self, key: _Key) -> Program:
        name, outputs, num_threads = key
        graph = self.graphs[name]
        return Program(graph if outputs is None else with_outputs(graph, outputs), self.precision, num_threads)

    def _sized_now(self, name: str, num_positions: int, outputs: Outputs, sizes: Sizes) -> Program | None:
        """A new program for these sizes, if it would have paid by now and there is memory for it."""
        key, plain = (name, outputs, sizes), self._programs.get((name, outputs, self._num_threads(num_positions)))
        is_change = self._last_sizes.get((name, outputs)) != sizes
        self._last_sizes[name, outputs] = sizes
        self._lost[key] += _SAVED_PER_CHANGE if is_change else _SAVED_PER_CALL
        is_worth_it = plain is not None and self._lost[key] >= plain.seconds_to_compile
        if plain is None or not is_worth_it or plain.num_bytes > self._bytes_left or name in self._untrusted:
            return None
        self._bytes_left -= plain.num_bytes
        graph = self.graphs[name]
        graph = graph.clone() if outputs is None else with_outputs(graph, outputs)
        graph = with_sizes(graph, self.sizes[name], dict(sizes))
        sized = Program(graph, self.precision, self._num_threads(num_positions))
        if not compute_alike(plain, sized, self.sizes[name], dict(sizes)):
            self._untrusted.add(name)
            return None
        self._sized[key] = sized
        return sized

    def _num_threads(self, num_positions: int) -> int:
        return self.threads.few if num_positions <= FEW_POSITIONS else self.threads.many


def _has_bfloat16_ports(graph: Any) -> bool:
    return any(port.get_element_type().get_type_name() == "bf16" for port in (*graph.inputs, *graph.outputs))
