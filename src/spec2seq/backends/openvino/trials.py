"""Whether two programs of one graph compute the same.

That cannot be taken for granted: OpenVINO 2026.4 computes bfloat16 attention wrongly on AMX where its sizes are fixed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from spec2seq.backends.openvino.sizes import STEP

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spec2seq.backends.openvino.program import InputType, Program

    Array = np.ndarray[Any, Any]

_TOLERANCE = 0.02  # of the largest number of an output


def compute_alike(
    one: Program, other: Program, names: Mapping[str, Mapping[int, str]], sizes: Mapping[str, int]
) -> bool:
    """Whether both give the same outputs for made-up inputs.

    Args:
        names: of the varying sizes, by input and dimension.
        sizes: some of them; the others are chosen here.
    """
    num_keys = STEP + sizes.get("queries", 0) + sizes.get("states", 0)
    sizes = {"slots": STEP, "source": STEP, "keys": num_keys, **sizes}
    generator = np.random.default_rng(0)
    arrays = {name: _made_up(found, names[name], sizes, generator) for name, found in one.inputs.items()}
    outputs = one.run_once(arrays), other.run_once(arrays)
    return all(_are_close(found, outputs[1][name]) for name, found in outputs[0].items())


def _made_up(
    found: InputType, names: Mapping[int, str], sizes: Mapping[str, int], generator: np.random.Generator
) -> Array:
    """Numbers around 0; ids and flags are all 0, which every graph can take."""
    shape = [sizes[names[dim]] if dim in names else size for dim, size in enumerate(found.shape)]
    if found.type_name == "f32":
        return generator.standard_normal(shape, dtype=np.float32)
    if found.type_name == "bf16":
        bits = generator.standard_normal(shape, dtype=np.float32).view(np.uint32) >> 16
        return bits.astype(np.uint16).view(np.int16)
    return np.zeros(shape, dtype=bool if found.type_name == "boolean" else np.int32)


def _are_close(one: Array, other: Array) -> bool:
    one, other = _numbers(one), _numbers(other)
    return bool(np.abs(one - other).max() <= _TOLERANCE * np.abs(one).max())


def _numbers(array: Array) -> Array:
    """fp32 from the bits of bfloat16 too."""
    if array.dtype != np.int16:
        return array
    return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
