"""From a torch module to an OpenVINO graph with as few operators as possible."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from spec2seq.backends.openvino.library import load_openvino
from spec2seq.nn.attention import CrossAttention, SelfAttention

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor, nn


@dataclass(frozen=True)
class GraphInput:
    """One input of a graph.

    Attributes:
        name: what it is called afterwards.
        example: a tensor to trace with. Its sizes must be above 1 where they may vary, so that nothing is broadcast
            and no special case for a single row is traced.
        varying: its dimensions of any size, and what each counts.
    """

    name: str
    example: Tensor
    varying: Mapping[int, str]

    @property
    def shape(self) -> list[int]:
        """Its sizes, -1 where they vary."""
        return [-1 if dim in self.varying else size for dim, size in enumerate(self.example.shape)]


def size_names(inputs: Mapping[str, Sequence[GraphInput]]) -> dict[str, dict[str, Mapping[int, str]]]:
    """What the varying sizes of every graph are called, by input and dimension."""
    return {graph: {entry.name: entry.varying for entry in entries} for graph, entries in inputs.items()}


def trace_graph(module: nn.Module, inputs: Sequence[GraphInput], outputs: Sequence[str]) -> Any:
    """The graph of `module(*inputs)`, an openvino.Model whose inputs and outputs have names.

    The weights are shared with the module where their memory allows that: it must not change afterwards.
    """
    openvino = load_openvino()
    model = _converted(module, tuple(entry.example for entry in inputs))
    for port, entry in zip(model.inputs, inputs, strict=True):
        port.get_node().set_partial_shape(openvino.PartialShape(entry.shape))
        port.get_node().set_friendly_name(entry.name)
    model.validate_nodes_and_infer_types()
    for port, name in zip(model.outputs, outputs, strict=True):
        port.get_node().set_friendly_name(name)
    _write_out_attention(model)
    return model


def _converted(module: nn.Module, examples: tuple[Tensor, ...]) -> Any:
    """The same as openvino.convert_model, which besides tells its makers that it was called."""
    from openvino.frontend import FrontEndManager
    from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

    frontend = FrontEndManager().load_by_framework("pytorch")
    # tracing in inference mode would mark the constants as unusable for autograd, which the tracer asks for
    with torch.inference_mode(False), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # branches on shapes are meant to be decided here
        decoder = TorchScriptPythonDecoder(module, example_input=examples, trace_kwargs={"check_trace": False})
    return frontend.convert(frontend.load(decoder))


def _write_out_attention(model: Any) -> None:
    """Replace every fused attention by the products it consists of.

    The CPU plugin does that too, but in a way that copies all keys once more per call (a tenth of a call's time).
    """
    from openvino import opset15 as ops

    for node in model.get_ordered_ops():
        if node.get_type_name() != "ScaledDotProductAttention":
            continue
        queries, keys, values, mask = (node.input_value(i) for i in range(4))
        scores = ops.add(ops.matmul(queries, keys, False, True), mask)
        attended = ops.matmul(ops.softmax(scores, axis=-1), values, False, False)
        node.output(0).replace(attended.output(0))
    model.validate_nodes_and_infer_types()


def with_scaled_queries(network: nn.Module) -> nn.Module:
    """A copy whose attention scales its queries by their projection's weights: one operator less per attention.

    `_write_out_attention` relies on it: there is no other scale in the graph.
    """
    network = copy.deepcopy(network)
    for module in network.modules():
        if isinstance(module, SelfAttention | CrossAttention) and module.scale != 1.0:
            weight, bias, *_ = module.weights
            num_rows = module.num_heads * module.head_dim
            weight.data[:num_rows] *= module.scale
            if bias is not None:
                bias.data[:num_rows] *= module.scale
            module.scale = 1.0
    return network
