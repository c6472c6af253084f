"""Names for what was converted: the same name only for what converts to the same graphs."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, is_dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn

    from spec2seq.backends.openvino.precision import Precision

_PACKAGE = Path(__file__).resolve().parents[2]
# what decides how a graph looks
_CODE = (
    "nn/*.py",
    "backends/native/*.py",
    "backends/openvino/*_graphs.py",
    "backends/openvino/tracing.py",
    "backends/openvino/precision.py",
)


def entry_key(
    kind: str, network: nn.Module, config: object, precision: Precision, others: Mapping[str, Tensor] | None = None
) -> str:
    """The name of a network's graphs: kind, precision, and a digest of everything else.

    Args:
        kind: what the network is.
        network: every number of it counts.
        config: a dataclass.
        precision: of the graphs.
        others: tensors besides its parameters that the network computes with.
    """
    digest = hashlib.sha256(version("openvino").encode())
    for pattern in _CODE:
        for file in sorted(_PACKAGE.glob(pattern)):
            digest.update(file.read_bytes())
    assert is_dataclass(config)
    assert not isinstance(config, type)
    digest.update(json.dumps(asdict(config), sort_keys=True).encode())
    for name, parameter in sorted([*network.named_parameters(), *(others or {}).items()]):
        digest.update(f"{name} {list(parameter.shape)} {parameter.dtype}".encode())
        digest.update(_contiguous(parameter.detach()).numpy().data)
    return f"{kind}-{precision}-{digest.hexdigest()[:24]}"


def _contiguous(tensor: Tensor) -> Tensor:
    """The numbers in whichever order the memory has them, where that is one of the two usual ones."""
    return tensor.t() if tensor.dim() == 2 and tensor.t().is_contiguous() else tensor.contiguous()
