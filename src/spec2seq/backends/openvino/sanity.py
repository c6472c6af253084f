"""Is a converted model still the model it was? Looked at once, when it is converted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from spec2seq.backends.torch_engine import TorchVerifier
from spec2seq.errors import UnsupportedModelError
from spec2seq.nn.feature_drafter import BlockAnswer
from spec2seq.types import Prefix, SourceBatch, Wanted

if TYPE_CHECKING:
    from torch import Tensor

    from spec2seq.backends.openvino.draft_network import OpenVinoDraftNetwork
    from spec2seq.backends.openvino.feature_network import OpenVinoFeatureNetwork
    from spec2seq.backends.openvino.precision import Precision
    from spec2seq.backends.openvino.verifier import OpenVinoVerifier
    from spec2seq.config import ModelConfig
    from spec2seq.interfaces import DraftNetwork, FeatureNetwork, Verifier
    from spec2seq.nn.feature_drafter import FeatureDrafterNetwork
    from spec2seq.nn.seq2seq import Seq2Seq
    from spec2seq.nn.spec_drafter import SpecDrafterNetwork

# Root mean square of the error of a score, relative to how far the scores of one place are spread.
_LIMITS: dict[Precision, float] = {"float32": 1e-3, "bfloat16": 0.25, "int8": 0.25}
_ROWS, _LENGTH = 4, 24


@dataclass(frozen=True)
class Likeness:
    """How a converted model compares with the original in fp32 on random ids.

    Attributes:
        agreement: share of places at which both find the same token best.
        relative_error: root mean square error of the scores, relative to their spread.
        max_error: largest error of a score.
    """

    agreement: float
    relative_error: float
    max_error: float


@torch.inference_mode()
def check_verifier(verifier: OpenVinoVerifier, network: Seq2Seq) -> Likeness:
    """Compare an engine with its network.

    Raises:
        UnsupportedModelError: the engine computes NaN, or something else than the network.
    """
    ours, theirs = _verifier_scores(verifier), _verifier_scores(TorchVerifier(network))
    return _checked(ours, theirs, verifier.engine.precision, f"{network.config.family} model")


@torch.inference_mode()
def check_draft_network(drafting: OpenVinoDraftNetwork, network: SpecDrafterNetwork) -> Likeness:
    """The same for a Spec-Drafter."""
    return _checked(_draft_scores(drafting), _draft_scores(network), drafting.engine.precision, "drafter")


@torch.inference_mode()
def check_feature_network(drafting: OpenVinoFeatureNetwork, network: FeatureDrafterNetwork) -> Likeness:
    """The same for a drafter on the verifier's states."""
    ours, theirs = _block_scores(drafting), _block_scores(network)
    return _checked(ours, theirs, drafting.engine.precision, "drafter")


def _checked(ours: Tensor, theirs: Tensor, precision: Precision, what: str) -> Likeness:
    spread = (theirs - theirs.mean(-1, keepdim=True)).square().mean().sqrt()
    error = (ours - theirs).abs()
    likeness = Likeness(
        float((ours.argmax(-1) == theirs.argmax(-1)).float().mean()),
        float(error.square().mean().sqrt() / spread),
        float(error.max()),
    )
    if not likeness.relative_error <= _LIMITS[precision]:  # NaN is not
        raise UnsupportedModelError(
            f"converted to {precision}, this {what} computes something else than in float32 "
            f"(relative error {likeness.relative_error:.2g}, allowed {_LIMITS[precision]:g}); "
            "use dtype='float32', or backend='torch'"
        )
    return likeness


def _verifier_scores(verifier: Verifier) -> Tensor:
    """Logits [rows, n, V] for random sources and targets, the same for every engine."""
    config, generator = verifier.config, torch.Generator().manual_seed(0)
    width = min(_LENGTH, config.max_source_positions or _LENGTH, config.max_target_positions or _LENGTH)
    source = _random_source(config, width, generator)
    tokens = _ids(config.target_vocab_size, width, config, generator)
    positions = torch.arange(width).repeat(_ROWS, 1)
    encoded, cache = verifier.encode(source), verifier.new_cache(_ROWS)
    wanted = Wanted(logits=True)
    return verifier.decode(tokens, positions, source.lengths, cache, encoded, wanted).scores.logits()


def _draft_scores(network: DraftNetwork) -> Tensor:
    """Logits [rows, k, V] for random sources and prefixes, the same for every engine."""
    config, generator = network.config, torch.Generator().manual_seed(0)
    width = min(_LENGTH, config.max_source_positions)
    source = network.encode(_random_source(config.model, width, generator))
    known = min(_LENGTH, config.max_positions - config.block_size)
    prefix = Prefix(
        _ids(config.model.target_vocab_size, known + 1, config.model, generator), torch.full((_ROWS,), known + 1)
    )
    return network.draft(prefix, config.block_size, source, Wanted(logits=True)).logits()


def _block_scores(network: FeatureNetwork) -> Tensor:
    """The laws [rows, k, V'] of random blocks without the bigram table, the same for every engine."""
    config, generator = network.config, torch.Generator().manual_seed(0)
    known = min(_LENGTH, config.max_positions - config.block_size)
    shape = _ROWS, known, len(config.hidden_layers), config.verifier.d_model
    states = torch.randn(shape, generator=generator)
    hidden = torch.randn(_ROWS, _LENGTH, config.verifier.d_model, generator=generator)
    rows, cache = torch.zeros(_ROWS, dtype=torch.long), network.new_cache(_ROWS)
    source = network.encode(hidden, rows + _LENGTH)
    network.remember(states, rows, cache)
    anchors = _ids(config.verifier.target_vocab_size, 1, config.verifier, generator)[:, 0]
    block = network.draft(anchors, rows + known, rows + known, config.block_size, cache, source, Wanted(logits=True))
    assert isinstance(block, BlockAnswer)  # both engines have all scores then
    return block.scores


def _random_source(config: ModelConfig, width: int, generator: torch.Generator) -> SourceBatch:
    return SourceBatch(_ids(config.source_vocab_size, width, config, generator), torch.full((_ROWS,), width))


def _ids(vocab_size: int, width: int, config: ModelConfig, generator: torch.Generator) -> Tensor:
    ids = torch.randint(vocab_size, (_ROWS, width), generator=generator)
    return ids.masked_fill(ids == config.pad_token_id, (config.pad_token_id + 1) % vocab_size)
