"""Writes checkpoints as fairseq writes them, objects of omegaconf and all, without either of them installed."""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

_CLASSES = {
    "omegaconf.base": ("ContainerMetadata", "Metadata"),
    "omegaconf.dictconfig": ("DictConfig",),
    "omegaconf.listconfig": ("ListConfig",),
    "omegaconf.nodes": ("AnyNode",),
}


def transformer_settings(**changes: object) -> dict[str, object]:
    """The settings of a tiny `transformer` (learned positions, norms last, GELU), by fairseq's names."""
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in {
            "layers": 2,
            "embed_dim": 16,
            "ffn_embed_dim": 32,
            "attention_heads": 2,
            "learned_pos": True,
            "normalize_before": False,
        }.items()
    }
    return {
        "arch": "transformer",
        "source_lang": "xx",
        "target_lang": "yy",
        "activation_fn": "gelu",
        "max_source_positions": 40,
        "max_target_positions": 40,
        "share_all_embeddings": True,
        "share_decoder_input_output_embed": True,
        "no_scale_embedding": False,
        "layernorm_embedding": False,
        "adaptive_softmax_cutoff": None,
        **sides,
        **changes,
    }


def drafter_settings(**changes: object) -> dict[str, object]:
    """The settings of a tiny `block`."""
    own = {"arch": "block", "src_embedding_copy": True, "block_size": 5, "share_decoder_input_output_embed": False}
    return transformer_settings(**{**own, **changes})


def write_checkpoint(path: Path, settings: Mapping[str, object], tensors: Mapping[str, Tensor]) -> None:
    """A checkpoint in today's format: `cfg` is a DictConfig whose `model` holds an argparse.Namespace."""
    with _omegaconf() as make:
        config = make.mapping({"task": {"block_size": settings.get("block_size")}, "model": None})
        vars(vars(config)["_content"]["model"])["_val"] = argparse.Namespace(**settings)
        torch.save(_content(tensors, cfg=config, args=None), path)


def write_old_checkpoint(path: Path, settings: Mapping[str, object], tensors: Mapping[str, Tensor]) -> None:
    """A checkpoint as fairseq wrote it before omegaconf: `args` is an argparse.Namespace."""
    torch.save(_content(tensors, args=argparse.Namespace(**settings)), path)


def write_dictionary(path: Path, symbols: Sequence[str]) -> None:
    """Symbols with falling counts."""
    lines = [f"{symbol} {1000 - i}\n" for i, symbol in enumerate(symbols)]
    path.write_text("".join(lines), encoding="utf-8")


def _content(tensors: Mapping[str, Tensor], **settings: object) -> dict[str, object]:
    return {
        **settings,
        "model": dict(tensors),
        "optimizer_history": [{"criterion_name": "Criterion", "lr_scheduler_state": {"best": None}}],
        "extra_state": {"train_iterator": {"epoch": 2}, "metrics": {"default": [[10, "loss", "AverageMeter", {}]]}},
        "last_optimizer_state": None,
    }


class _Maker:
    """Makes objects of the classes that stand in for omegaconf's while a file is written."""

    def __init__(self, classes: Mapping[str, type]) -> None:
        self._classes = classes

    def mapping(self, values: Mapping[str, object]) -> Any:
        config = self._new("DictConfig", "ContainerMetadata", dict)
        content = {name: self._wrapped(value) for name, value in values.items()}
        vars(config)["_content"] = content
        for node in content.values():
            vars(node)["_parent"] = config
        return config

    def _wrapped(self, value: object) -> Any:
        if isinstance(value, dict):
            return self.mapping(value)
        if isinstance(value, list):
            config = self._new("ListConfig", "ContainerMetadata", list)
            vars(config)["_content"] = [self._wrapped(item) for item in value]
            return config
        node = self._new("AnyNode", "Metadata", None)
        vars(node)["_val"] = value
        return node

    def _new(self, name: str, metadata_name: str, object_type: type | None) -> Any:
        metadata = self._classes[metadata_name]()
        vars(metadata).update(ref_type=Any, object_type=object_type, flags={}, resolver_cache=defaultdict(dict))
        made = self._classes[name]()
        vars(made).update(_metadata=metadata, _parent=None)
        return made


@contextmanager
def _omegaconf() -> Iterator[_Maker]:
    """Modules of omegaconf's names, as far as pickle asks for them."""
    classes: dict[str, type] = {}
    names = ["omegaconf", *_CLASSES]
    before = {name: sys.modules.get(name) for name in names}
    for name in names:
        sys.modules[name] = ModuleType(name)
        for class_name in _CLASSES.get(name, ()):
            classes[class_name] = type(class_name, (), {"__module__": name})
            setattr(sys.modules[name], class_name, classes[class_name])
    try:
        yield _Maker(classes)
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
