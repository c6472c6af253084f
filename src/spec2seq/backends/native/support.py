"""Where steps can run as machine code of our own."""

from __future__ import annotations

import functools
import platform
import warnings
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spec2seq.config import ModelConfig
    from spec2seq.drafter_config import FeatureDrafterConfig

_GROUP, _LANES = 64, 16  # sizes of `products` and `vectors`, which cannot be imported where numba is missing
_NEEDED = frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"})


def can_run(config: ModelConfig) -> bool:
    """Whether this processor, what is installed, and the model allow it.

    Decoders with relative positions (T5) are not among them, nor widths that are not multiples of 64, nor heads whose
    width is not a multiple of 16.
    """
    return config.positions != "relative" and _has_layers(config)


def can_draft(config: FeatureDrafterConfig) -> bool:
    """The same for a drafter on the verifier's states."""
    return _has_layers(config.layers) and config.verifier.d_model % _GROUP == 0 and config.bigram_rank % _LANES == 0


def can_encode(config: ModelConfig) -> bool:
    """Whether the encoder can run that way too: on tiles with bfloat16 only."""
    head_dim = config.encoder_head_dim or config.head_dim
    inputs = config.encoder_ffn_dim, config.encoder_heads * head_dim
    fits = all(width % _GROUP == 0 for width in inputs) and head_dim % _LANES == 0
    return can_run(config) and fits and _has_tiles()


def _has_layers(config: ModelConfig) -> bool:
    """Whether decoder layers like these, and the output behind them, can be computed here."""
    inputs = config.d_model, config.decoder_ffn_dim, config.decoder_heads * config.head_dim
    return (
        config.norm == "layer"
        and not config.is_gated_ffn
        and config.output_scale == 1.0
        and all(width % _GROUP == 0 for width in inputs)
        and config.head_dim % _LANES == 0
        and has_processor()
        and find_spec("numba") is not None
        and _can_keep_code()
    )


def _has_tiles() -> bool:
    if not multiplies_bfloat16():
        return False
    from spec2seq.backends.native.tiles import may_use_tiles

    return may_use_tiles()


@functools.cache
def _can_keep_code() -> bool:
    """Whether numba finds a place for what it compiles; it refuses to work otherwise.

    Warns:
        UserWarning: it does not.
    """
    try:
        import_module("spec2seq.backends.native.decoder_step")
    except RuntimeError as error:
        warnings.warn(
            f"steps are not compiled for this processor ({error}); set NUMBA_CACHE_DIR to a folder that can be written",
            stacklevel=2,
        )
        return False
    return True


def multiplies_bfloat16() -> bool:
    """Whether the processor has tiles (AMX) for bfloat16."""
    return "amx_bf16" in processor_flags()


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
