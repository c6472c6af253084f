"""Where steps can run as machine code of our own."""

from __future__ import annotations

import functools
import platform
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spec2seq.config import ModelConfig

_GROUP, _LANES = 64, 16  # sizes of `products` and `vectors`, which cannot be imported where numba is missing
_NEEDED = frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"})


def can_run(config: ModelConfig) -> bool:
    """Whether this processor, what is installed, and the model allow it.

    Decoders with relative positions (T5) are not among them, nor widths that are not multiples of 64, nor heads whose
    width is not a multiple of 16.
    """
    inputs = config.d_model, config.decoder_ffn_dim, config.decoder_heads * config.head_dim
    return (
        config.positions != "relative"
        and config.norm == "layer"
        and not config.is_gated_ffn
        and config.output_scale == 1.0
        and all(width % _GROUP == 0 for width in inputs)
        and config.head_dim % _LANES == 0
        and has_processor()
        and find_spec("numba") is not None
    )


@functools.cache
def has_processor() -> bool:
    """Whether the processor multiplies bytes in registers of 512 bits (AVX512-VNNI)."""
    return platform.machine() == "x86_64" and processor_flags() >= _NEEDED


@functools.cache
def processor_flags() -> frozenset[str]:
    """What Linux says that the processor can do; empty elsewhere."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.is_file():
        return frozenset()
    lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    return frozenset(next((line.partition(":")[2] for line in lines if line.startswith("flags")), "").split())
