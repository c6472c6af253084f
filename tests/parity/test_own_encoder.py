"""The encoder that is machine code of our own computes what the network does, to the precision of bfloat16."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import pytest
import torch

from spec2seq.backends.native import support
from spec2seq.types import SourceBatch
from tests.parity.conftest import random_ids

pytest.importorskip("numba", reason="needs pip install 'spec2seq[openvino]'")
pytest.importorskip("openvino", reason="needs pip install 'spec2seq[openvino]'")

if TYPE_CHECKING:
    from collections.abc import Callable

    from spec2seq.backends.openvino.verifier import OpenVinoVerifier
    from spec2seq.nn.seq2seq import Seq2Seq
    from tests.parity.conftest import Pair

WIDE = {"d_model": 64, "encoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 64}
# of the largest number; with three seeds 0.0071 and 0.0029 were seen
STATES_TOLERANCE, CROSS_TOLERANCE = 0.02, 0.01
LENGTHS = torch.tensor([40, 3, 17])


@pytest.fixture(params=["marian", "marian_separate", "bart", "mbart_cc25", "m2m100"])
def network(request: pytest.FixtureRequest, make_pair: Callable[..., Pair]) -> Seq2Seq:
    network = make_pair(request.param, "float32", WIDE).verifier.network
    if not support.can_encode(network.config):
        pytest.skip("an encoder of our own needs a processor with AMX")
    return network


def verifier_of(network: Seq2Seq) -> OpenVinoVerifier:
    from spec2seq.backends.native.source_program import SourceProgram
    from spec2seq.backends.native.step_program import StepProgram
    from spec2seq.backends.openvino.engine import Engine, ThreadPlan
    from spec2seq.backends.openvino.verifier import OpenVinoVerifier, OwnPrograms

    own = OwnPrograms(StepProgram(network), SourceProgram(network))
    return OpenVinoVerifier(network.config, Engine({}, {}, "bfloat16", ThreadPlan(1, 1)), own)


def source_of(network: Seq2Seq) -> SourceBatch:
    """Three sources, padded; in the first there is a padding token before its end."""
    pad = network.config.pad_token_id
    ids = random_ids(3, 40, seed=1).masked_fill(torch.arange(40) >= LENGTHS[:, None], pad)
    ids[0, 5] = pad
    return SourceBatch(ids, LENGTHS)


def assert_close(found: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    """At every place."""
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= tolerance * expected.abs().max()


def test_states_are_close(network: Seq2Seq) -> None:
    """Where attention wavers between two tokens, rounding decides, in every engine that rounds: so it is made calm."""
    network = copy.deepcopy(network)
    for layer in network.encoder.layers:
        layer.attention.qkv_weight[: 2 * network.config.d_model].mul_(0.25)
    source, is_real = source_of(network), torch.arange(40) < LENGTHS[:, None]
    hidden = verifier_of(network).encode(source).hidden
    assert_close(hidden[is_real], network.encode(source.ids, LENGTHS)[is_real], STATES_TOLERANCE)


def test_keys_and_values_are_close(network: Seq2Seq) -> None:
    hidden = torch.randn(3, 40, 64, generator=torch.Generator().manual_seed(4))
    encoded = verifier_of(network).from_encoder(hidden, LENGTHS)
    assert_close(encoded.tensors["cross"][:, :, :3, :, :40], network.cross_keys_values(hidden), CROSS_TOLERANCE)


def test_company_changes_no_bit(network: Seq2Seq) -> None:
    source, verifier = source_of(network), verifier_of(network)
    together = verifier.encode(source)
    for row, length in enumerate(LENGTHS.tolist()):
        alone = verifier.encode(SourceBatch(source.ids[row : row + 1, :length], LENGTHS[row : row + 1]))
        assert torch.equal(alone.hidden[0], together.hidden[row, :length])
        assert torch.equal(
            alone.tensors["cross"][:, :, 0, :, :length], together.tensors["cross"][:, :, row, :, :length]
        )
