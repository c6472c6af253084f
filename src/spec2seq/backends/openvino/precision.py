"""The precisions that graphs can be given."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO
from typing import TYPE_CHECKING, Any, Literal

from spec2seq.backends.openvino.library import load_nncf, load_openvino
from spec2seq.backends.openvino.program import port_name

if TYPE_CHECKING:
    from collections.abc import Mapping

Precision = Literal["float32", "bfloat16", "int8"]
PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16", "int8")

# Keys and values, which travel between the graphs and the memory outside: past_keys0, source_values3, cross, new
_KEYS_VALUES = ("past_", "source_keys", "source_values", "cross", "new")


def in_precision(graphs: Mapping[str, Any], precision: Precision) -> dict[str, Any]:
    """Graphs in fp32 made ready for a precision; they are used up.

    float32: as they are. bfloat16: keys and values come and go as such. int8: weights are rounded to int8 with one
    scale per output; the engine rounds activations as it goes.

    Raises:
        MissingExtraError: NNCF is needed and not installed.
    """
    if precision == "int8":
        return {name: _with_int8_weights(graph) for name, graph in graphs.items()}
    if precision == "bfloat16":
        return {name: _with_bfloat16_ports(graph) for name, graph in graphs.items()}
    return dict(graphs)


def _with_int8_weights(graph: Any) -> Any:
    nncf = load_nncf()
    with redirect_stdout(StringIO()):  # it draws a progress bar there
        return nncf.compress_weights(graph, mode=nncf.CompressWeightsMode.INT8_SYM)


def _with_bfloat16_ports(graph: Any) -> Any:
    openvino = load_openvino()
    steps = openvino.preprocess.PrePostProcessor(graph)
    for ports, step in ((graph.inputs, steps.input), (graph.outputs, steps.output)):
        for index, port in enumerate(ports):
            if port_name(port).startswith(_KEYS_VALUES):
                step(index).tensor().set_element_type(openvino.Type.bf16)
    return steps.build()
