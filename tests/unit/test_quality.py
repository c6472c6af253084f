"""Scores are those of the libraries, on plain text, for complete outputs, and say how they were computed."""

from __future__ import annotations

import sys

import pytest

from spec2seq.errors import InputError, MissingExtraError
from spec2seq.evaluation.quality import score_systems

REFERENCES = [
    "Il pacchetto contiene la documentazione.",
    "Uno strumento per leggere file di testo.",
    "Librerie per programmi che usano la rete.",
    "Questo programma traduce il testo.",
]
WORSE = ["Il pacchetto contiene file.", "Strumento per file di testo.", "Librerie per la rete.", "Questo traduce."]


def test_translations_are_scored_as_sacrebleu_does() -> None:
    from sacrebleu import corpus_bleu, corpus_chrf

    scores = score_systems({"good": REFERENCES, "worse": WORSE}, REFERENCES, num_resamples=100)
    bleu, chrf = scores["worse"]
    assert (bleu.name, chrf.name) == ("BLEU", "chrF2")
    assert bleu.value == pytest.approx(corpus_bleu(WORSE, [REFERENCES]).score)
    assert chrf.value == pytest.approx(corpus_chrf(WORSE, [REFERENCES]).score)
    assert [score.value for score in scores["good"]] == pytest.approx([100, 100])
    assert "tok:13a" in bleu.signature
    assert "version:" in bleu.signature
    assert "bs:100" in bleu.signature
    assert bleu.low is not None
    assert bleu.high is not None
    assert bleu.low < bleu.high
    assert [score.p_value for score in scores["good"]] == [None, None]
    assert bleu.p_value is not None


def test_summaries_are_scored_by_rouge() -> None:
    scores = score_systems({"one": ["the cat sat"]}, ["the cat ran"], "summarization", num_resamples=10)["one"]
    assert [score.name for score in scores] == ["rouge1", "rouge2", "rougeLsum"]
    # two of three words and one of two pairs are right
    assert [score.value for score in scores] == pytest.approx([200 / 3, 50, 200 / 3])
    assert "stemmer:yes" in scores[0].signature


def test_lengths_are_compared_first() -> None:
    with pytest.raises(InputError, match="worse has 3 lines and the references have 4"):
        score_systems({"good": REFERENCES, "worse": WORSE[:3]}, REFERENCES)
    with pytest.raises(InputError, match="no reference line"):
        score_systems({"good": []}, [])


@pytest.mark.parametrize("text", ["▁Il ▁pacchetto", "Il pac@@ chetto", "Il pac ##chetto"])
def test_tokenised_text_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"worse, line 2 holds .* detokenise it first"):
        score_systems({"good": REFERENCES, "worse": [WORSE[0], text, *WORSE[2:]]}, REFERENCES)


@pytest.mark.parametrize(("task", "package"), [("translation", "sacrebleu"), ("summarization", "rouge_score")])
def test_missing_packages_are_named(task: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'spec2seq\[eval\]'"):
        score_systems({"good": REFERENCES}, REFERENCES, task)  # type: ignore[arg-type]
