"""Every family as transformers runs it, and the same checkpoint in this package."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch

from spec2seq.backends.torch_engine import TorchVerifier
from spec2seq.types import SourceBatch
from spec2seq.weights import load_model
from tests.families import FAMILIES, tiny_hf_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from spec2seq.backends.torch_engine import TorchEncoderOutput
    from spec2seq.nn.kv_cache import KeyValueCache

SOURCE_LENGTHS = torch.tensor([7, 3, 5])
_FIRST_ORDINARY_ID = 3  # smallest id that is special in no family


@dataclass
class Pair:
    """A model twice, in one precision: float64, except for T5, whose norm transformers computes in fp32 anyway."""

    hf: Any
    verifier: TorchVerifier
    tolerance: float

    def source(self) -> tuple[Tensor, Tensor]:
        """A padded batch of three sources: ids [3, 7] and transformers' mask [3, 7]."""
        ids = random_ids(3, 7, seed=1)
        mask = torch.arange(7) < SOURCE_LENGTHS[:, None]
        return ids.masked_fill(~mask, self.verifier.config.pad_token_id), mask.long()

    def encode(self) -> TorchEncoderOutput:
        return self.verifier.encode(SourceBatch(self.source()[0], SOURCE_LENGTHS))

    def hf_logits(self, tokens: Tensor, rows: Tensor | None = None) -> Tensor:
        """transformers' logits [B, n, V] after every token of the target rows [B, n], all seen at once, no cache."""
        ids, mask = self.source()
        if rows is not None:
            ids, mask = ids[rows], mask[rows]
        output = self.hf(input_ids=ids, attention_mask=mask, decoder_input_ids=tokens, use_cache=False)
        return output.logits

    def logits(
        self,
        tokens: Tensor,
        positions: Tensor,
        cache: KeyValueCache,
        encoded: TorchEncoderOutput,
        slots: Tensor | None = None,
        visible: Tensor | None = None,
    ) -> Tensor:
        """Ours [B, n, V], in the network's own precision instead of fp32."""
        lengths = torch.full((len(tokens),), tokens.shape[1])
        states = self.verifier.network.decode(
            tokens, positions, lengths, cache, encoded.layers, encoded.mask, slots=slots, visible=visible
        )
        return self.verifier.network.project(states[-1])

    def assert_close(self, ours: Tensor, theirs: Tensor) -> None:
        assert ours.shape == theirs.shape
        assert ours.dtype == theirs.dtype
        assert (ours - theirs).abs().max() <= self.tolerance * max(1.0, float(theirs.abs().max()))


def random_ids(rows: int, width: int, seed: int) -> Tensor:
    return torch.randint(_FIRST_ORDINARY_ID, 44, (rows, width), generator=torch.Generator().manual_seed(seed))


def in_order(rows: int, width: int) -> Tensor:
    """Positions 0, 1, ... in every row."""
    return torch.arange(width).repeat(rows, 1)


@pytest.fixture(scope="session")
def make_pair(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Pair]:
    made: dict[tuple[str, str, str], Pair] = {}

    def make(name: str, dtype: str = "exact", config: dict[str, Any] | None = None) -> Pair:
        is_t5 = "t5" in name
        dtype = dtype if dtype != "exact" else "float32" if is_t5 else "float64"
        key = name, dtype, str(config)
        if key not in made:
            hf = tiny_hf_model(name, seed=3, config=config)
            folder = tmp_path_factory.mktemp(name)
            hf.save_pretrained(folder)
            network = load_model(folder, dtype).network
            tolerance = 1e-9 if dtype == "float64" else 2e-5
            made[key] = Pair(hf.to(getattr(torch, dtype)), TorchVerifier(network), tolerance)
        return made[key]

    return make


@pytest.fixture(params=FAMILIES)
def pair(request: pytest.FixtureRequest, make_pair: Callable[..., Pair]) -> Pair:
    return make_pair(request.param)


@pytest.fixture(autouse=True)
def _inference() -> Any:
    with torch.inference_mode():
        yield
