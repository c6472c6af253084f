"""The drafter on the verifier's states drafts on the OpenVINO engine what it drafts on torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from spec2seq.types import Wanted
from tests.feature_rounds import Rounds, compare, many, ragged, single
from tests.tiny_drafters import tiny_feature_drafter
from tests.unit.test_nn_feature_drafter import SHAPES, random_verifier

pytest.importorskip("openvino", reason="needs pip install 'spec2seq[openvino]'")

from spec2seq.backends.openvino.feature_network import OpenVinoFeatureNetwork
from spec2seq.backends.openvino.loading import Loader

TOLERANCE = 5e-5  # of the largest score; the engine sums in another order and has its own exp and erf


@pytest.fixture(autouse=True)
def _inference() -> object:
    with torch.inference_mode():
        yield


@pytest.mark.parametrize("changes", SHAPES, ids=str)
def test_drafts_equal(changes: dict[str, Any]) -> None:
    network = tiny_feature_drafter(random_verifier(torch.float32), **changes)
    engine = Loader("float32", 1).feature_network(network)
    for rounds in (ragged, single, many):
        compare(rounds(engine), rounds(network), TOLERANCE)


def test_a_round_is_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Loader("float32", 1).feature_network(tiny_feature_drafter(random_verifier(torch.float32)))
    rounds = Rounds(network, [7])
    program, asked = network.engine.program, []

    def noted(name: str, *arguments: Any, **named: Any) -> Any:
        asked.append(name)
        return program(name, *arguments, **named)

    monkeypatch.setattr(network.engine, "program", noted)
    rounds.remember(5, [3])
    anchors = torch.tensor([4])
    network.draft(anchors, rounds.known, rounds.known, 4, rounds.cache, rounds.source, Wanted())
    assert asked == ["draft"]
    rounds.remember(5, [3])
    rounds.remember(5, [3])
    assert asked == ["draft", "read"]


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_lower_precisions_draft_alike(precision: Any) -> None:
    if precision == "int8":
        pytest.importorskip("nncf", reason="needs pip install 'spec2seq[openvino]'")
    network = tiny_feature_drafter(random_verifier(torch.float32), num_layers=1)
    ours, theirs = many(Loader(precision, 1).feature_network(network))[0], many(network)[0]
    num_scores = 11 * 5 * 50  # laws follow them, behind tokens that may differ
    one, other = ours.scores[:num_scores], theirs.scores[:num_scores]
    assert 0 < (one - other).square().mean() <= 0.03 * other.square().mean()


def test_another_shortlist_or_verifier_is_converted_anew(tmp_path: Any) -> None:
    verifier = random_verifier(torch.float32)
    network = tiny_feature_drafter(verifier, shortlist_size=30)
    loaded = [Loader("float32", 1, tmp_path).feature_network(network)]
    verifier.output_weight.data.mul_(2.0)
    network.attach(verifier)
    loaded.append(Loader("float32", 1, tmp_path).feature_network(network))
    compare(many(loaded[1]), many(network), TOLERANCE)
    assert len(list(tmp_path.rglob("manifest.json"))) == 2
    assert isinstance(loaded[0], OpenVinoFeatureNetwork)
