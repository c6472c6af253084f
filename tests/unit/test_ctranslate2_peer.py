"""CTranslate2 gives what our own engine gives from the same folder, so that comparing their speeds means something."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from spec2seq import Pipeline
from spec2seq.errors import MissingExtraError, UnsupportedModelError
from spec2seq.evaluation.ctranslate2_peer import CTranslate2Peer, SearchSettings, convert
from spec2seq.evaluation.peers import TransformersPeer
from spec2seq.evaluation.teacher_forcing import forced_choices
from tests.families import tiny_hf_model
from tests.text_models import LINES, make_text_model

if TYPE_CHECKING:
    from pathlib import Path

# CTranslate2 forces no end of sequence at the limit
GREEDY: dict[str, Any] = {"num_beams": 1, "max_new_tokens": 12, "num_draft_tokens": 0, "forced_eos_token_id": []}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Marian model whose start token has an embedding that is not zero."""
    made = tmp_path_factory.mktemp("models") / "marian"
    make_text_model("marian", made)
    return made


@pytest.fixture(scope="module")
def peer(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> CTranslate2Peer:
    converted = tmp_path_factory.mktemp("converted") / "marian"
    convert(folder, converted)
    return CTranslate2Peer(converted)


@pytest.fixture(scope="module")
def pipeline(folder: Path) -> Pipeline:
    return Pipeline.from_pretrained(folder, drafter=None, backend="torch", num_threads=1)


def test_the_start_token_counts(folder: Path) -> None:
    network = Pipeline.from_pretrained(folder, drafter=None, backend="torch").model.network
    start = network.decoder.embedding.tokens[network.config.decoder_start_token_id]
    assert float(start.abs().max()) > 0.01


@pytest.mark.parametrize("num_beams", [1, 3])
def test_outputs_are_ours(peer: CTranslate2Peer, pipeline: Pipeline, num_beams: int) -> None:
    sources = pipeline.tokenizer.encode(LINES)
    options: Any = {**GREEDY, "num_beams": num_beams}
    ours = [result.token_ids for result in pipeline.generate_ids(sources, **options)]
    settings = SearchSettings.of(pipeline.options(**options))
    theirs = peer.generate(sources, settings)
    if num_beams == 1:
        assert theirs == ours
    else:  # beams end by other rules
        assert sum(one == other for one, other in zip(ours, theirs, strict=True)) > len(LINES) // 2
    assert [peer.generate([source], settings)[0] for source in sources] == theirs


def test_choices_along_given_outputs(peer: CTranslate2Peer, pipeline: Pipeline, folder: Path) -> None:
    sources = pipeline.tokenizer.encode(LINES[:3])
    options = pipeline.options(**GREEDY)
    generator = torch.Generator().manual_seed(0)
    targets = [torch.randint(2, 60, (length,), generator=generator).tolist() for length in (5, 1, 8)]
    start = pipeline.model.config.decoder_start_token_id
    ours = [
        forced_choices(pipeline.verifier, source, [start], target, options)
        for source, target in zip(sources, targets, strict=True)
    ]
    assert [len(row) for row in ours] == [5, 1, 8]
    assert peer.choices(sources, targets, SearchSettings.of(options)) == ours
    other = TransformersPeer(folder)
    pad = pipeline.model.config.pad_token_id
    assert [other.choices(*pair[:1], start, pair[1], [pad]) for pair in zip(sources, targets, strict=True)] == ours
    greedy = [result.token_ids for result in pipeline.generate_ids(sources, **GREEDY)]
    assert peer.choices(sources, greedy, SearchSettings.of(options)) == greedy


def test_a_forced_first_token_and_a_fixed_length(peer: CTranslate2Peer, pipeline: Pipeline) -> None:
    sources = pipeline.tokenizer.encode(LINES[:3])
    options: Any = {**GREEDY, "forced_bos_token_id": 7, "eos_token_id": []}
    ours = [result.token_ids for result in pipeline.generate_ids(sources, **options)]
    settings = SearchSettings.of(pipeline.options(**options), is_length_fixed=True)
    theirs = peer.generate(sources, settings, forced_first=7)
    assert [len(output) for output in theirs] == [12, 12, 12]
    assert [output[0] for output in theirs] == [7, 7, 7]
    # the end of the sequence is never chosen there, and nothing special here
    assert [a for a, b in zip(ours, theirs, strict=True) if 0 not in a and a != b] == []
    assert any(0 not in output for output in ours)


def test_what_cannot_be_converted(tmp_path: Path) -> None:
    model = tiny_hf_model("marian")
    model.save_pretrained(tmp_path / "bare")
    with pytest.raises(UnsupportedModelError, match="CTranslate2 cannot convert"):
        convert(tmp_path / "bare", tmp_path / "out")


def test_our_own_mistakes_are_not_called_the_peers(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise TypeError("a mistake in what is added to the conversion")

    monkeypatch.setattr(torch, "as_tensor", fail)
    with pytest.raises(TypeError, match="a mistake in what is added"):
        convert(folder, tmp_path / "out")


def test_a_folder_that_cannot_be_written_is_told_as_that(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="Not a directory"):
        convert(folder, tmp_path / "file" / "out")


def test_without_the_package(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in [name for name in sys.modules if name.split(".")[0] == "ctranslate2"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    for attempt in (lambda: convert(folder, tmp_path / "out"), lambda: CTranslate2Peer(tmp_path)):
        with pytest.raises(MissingExtraError, match=r"pip install 'spec2seq\[bench\]'"):
            attempt()
