"""A compiled graph and the memory that it reads and writes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from spec2seq.backends.openvino.library import load_core, load_openvino

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from spec2seq.backends.openvino.precision import Precision

_INT8_GROUP = 32  # numbers of a row that share a scale when activations are rounded to int8


class InputType(NamedTuple):
    """Sizes of an input, -1 where they vary, and the type of its numbers by OpenVINO's name ("f32", "bf16", "i32")."""

    shape: tuple[int, ...]
    type_name: str

    @classmethod
    def of(cls, port: Any) -> InputType:
        """Read it off a graph's input."""
        sizes = (size.get_length() if size.is_static else -1 for size in port.get_partial_shape())
        return cls(tuple(sizes), port.get_element_type().get_type_name())


class Program:
    """One graph on one number of threads. Not safe for use from several threads at once.

    Attributes:
        inputs: their types, by name.
        num_bytes: what its weights take.
        seconds_to_compile: how long it took to make.
    """

    def __init__(self, model: Any, precision: Precision, num_threads: int) -> None:
        """Compile an openvino.Model to compute in this precision (int8 weights were put in before)."""
        openvino = load_openvino()
        self._make_tensor = openvino.Tensor
        self._bfloat16 = openvino.Type.bf16
        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
            "INFERENCE_NUM_THREADS": num_threads,
            "ENABLE_CPU_PINNING": False,  # several processes would be pinned to the same cores
            "INFERENCE_PRECISION_HINT": "bf16" if precision == "bfloat16" else "f32",
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": _INT8_GROUP,
        }
        constants = (node for node in model.get_ops() if node.get_type_name() == "Constant")
        self.num_bytes = sum(node.get_byte_size() for node in constants)
        start = time.perf_counter()
        self._request = load_core().compile_model(model, "CPU", settings).create_infer_request()
        self.seconds_to_compile = time.perf_counter() - start
        # the compiled graph keeps the order, but may call things otherwise
        self._inputs, self._outputs = (
            {port_name(port): i for i, port in enumerate(side)} for side in (model.inputs, model.outputs)
        )
        self.inputs = {port_name(port): InputType.of(port) for port in model.inputs}
        self._bound: dict[str, np.ndarray[Any, Any]] = {}
        self._groups: dict[str, Mapping[str, np.ndarray[Any, Any]]] = {}
        self._results: tuple[np.ndarray[Any, Any], ...] = ()

    def bind(self, name: str, array: np.ndarray[Any, Any]) -> None:
        """Let the input `name` be read from `array`, which must be contiguous, from now on; no copy is made.

        An input that takes bfloat16 is given as int16.
        """
        self._bound[name] = array  # the engine keeps no reference of its own
        if self.inputs[name].type_name == "bf16":
            tensor = self._make_tensor(array, list(array.shape), self._bfloat16)
        else:
            tensor = self._make_tensor(array, shared_memory=True)
        self._request.set_input_tensor(self._inputs[name], tensor)

    def bind_group(self, group: str, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Bind those of `arrays` that the graph takes; nothing to do where they are the last ones of that group."""
        if self._groups.get(group) is arrays:
            return
        self._groups[group] = arrays
        for name, array in arrays.items():
            if name in self._inputs:
                self.bind(name, array)

    def run_once(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        """Copies of all outputs for these inputs. What was bound before is to be bound anew."""
        self.bind_group("once", arrays)
        self.run()
        self._groups.clear()
        return {name: self.output(name).copy() for name in self._outputs}

    def run(self) -> None:
        """Compute the outputs from what the bound arrays hold now."""
        self._results = tuple(self._request.infer(None, share_inputs=True, share_outputs=True).values())

    def output(self, name: str) -> np.ndarray[Any, Any]:
        """A view of an output, valid until the next run; the bits of bfloat16 as int16."""
        array = self._results[self._outputs[name]]
        return array.view(np.int16) if array.dtype == np.float16 else array


def with_sizes(model: Any, names: Mapping[str, Mapping[int, str]], sizes: Mapping[str, int]) -> Any:
    """The graph, changed to take inputs of these sizes only.

    Args:
        model: in which all sizes in `names` vary.
        names: of the sizes, by input and dimension.
        sizes: of some of them.
    """
    openvino = load_openvino()
    shapes = {}
    for port in model.inputs:
        shape = port.get_partial_shape()
        for dim, name in names[port_name(port)].items():
            shape[dim] = sizes.get(name, -1)
        shapes[port] = openvino.PartialShape(shape)
    model.reshape(shapes)
    return model


def port_name(port: Any) -> str:
    """What `trace_graph` called an input or output of a graph. (Tensors have names too, but get more on the way.)"""
    name: str = port.get_node().get_friendly_name()
    return name


def with_outputs(model: Any, names: Collection[str]) -> Any:
    """A copy of the graph that computes these outputs only, in the order that it has them."""
    openvino = load_openvino()
    clone = model.clone()
    kept = [port.get_node() for port in clone.outputs if port_name(port) in names]
    model = openvino.Model(kept, clone.get_parameters(), "")
    for parameter in model.get_parameters():
        if not parameter.output(0).get_target_inputs():
            model.remove_parameter(parameter)
    return model
