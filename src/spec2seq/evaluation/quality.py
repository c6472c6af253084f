"""How good outputs are: BLEU and chrF of translations, ROUGE of summaries, each with how it was computed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal

from spec2seq.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Task = Literal["translation", "summarization"]

NUM_RESAMPLES = 1000
ROUGE_TYPES = ("rouge1", "rouge2", "rougeLsum")
# what subword tokenizers leave in text that was not put together again
_PIECE_MARKS = re.compile(r"▁|@@(?= |$)|(?<!\S)##\w")


@dataclass(frozen=True)
class Score:
    """One number for the outputs of one system.

    Attributes:
        name: "BLEU", "chrF2", "rouge1", ...
        value: from 0 to 100.
        signature: how it was computed: version, tokenisation, smoothing.
        low, high: 95 % interval over resampled lines; None where none was asked for.
        p_value: of the paired bootstrap test against the first system; None for that system and where there is none.
    """

    name: str
    value: float
    signature: str
    low: float | None = None
    high: float | None = None
    p_value: float | None = None


def score_systems(
    outputs: Mapping[str, Sequence[str]],
    references: Sequence[str],
    task: Task = "translation",
    num_resamples: int = NUM_RESAMPLES,
) -> dict[str, list[Score]]:
    """Scores of several systems on the same lines, the first of them being what the others are compared with.

    Args:
        outputs: by system, one detokenised text per line.
        references: one per line.
        task: "translation" gives BLEU and chrF by sacreBLEU with its own paired bootstrap test; "summarization" gives
            ROUGE by rouge-score with its own bootstrap interval.
        num_resamples: of the bootstrap.

    Raises:
        InputError: outputs and references differ in number, there are none, or an output is tokenised text.
        MissingExtraError: the package that scores is not installed.
    """
    check_lengths(outputs, references)
    for system, texts in outputs.items():
        _check_detokenised(system, texts)
    score = _score_translations if task == "translation" else _score_summaries
    return score(outputs, references, num_resamples)


def check_lengths(outputs: Mapping[str, Sequence[str]], references: Sequence[str]) -> None:
    """Raises InputError unless there is exactly one output of every system for every reference, and one at least."""
    if not references:
        raise InputError("there is no reference line, so there is nothing to score; name a file with text")
    for system, texts in outputs.items():
        if len(texts) != len(references):
            raise InputError(
                f"{system} has {len(texts)} lines and the references have {len(references)}: "
                "line by line they do not belong together; score complete outputs of the same file"
            )


def _check_detokenised(system: str, texts: Sequence[str]) -> None:
    for number, text in enumerate(texts, start=1):
        found = _PIECE_MARKS.search(text)
        if found:
            raise InputError(
                f"{system}, line {number} holds {found[0]!r}, a mark of tokenised text: scores are for plain text; "
                "detokenise it first"
            )


def _score_translations(
    outputs: Mapping[str, Sequence[str]], references: Sequence[str], num_resamples: int
) -> dict[str, list[Score]]:
    try:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
        from sacrebleu.significance import PairedTest
    except ImportError as error:
        raise _missing("BLEU and chrF", error) from error
    metrics = {"BLEU": BLEU(references=[references]), "chrF2": CHRF(references=[references])}
    named: list[tuple[str, Sequence[str]]] = [(system, list(texts)) for system, texts in outputs.items()]
    signatures, results = PairedTest(named, metrics, None, test_type="bs", n_samples=num_resamples)()
    return {
        system: [_translation_score(name, str(signature), results[name][i]) for name, signature in signatures.items()]
        for i, system in enumerate(outputs)
    }


def _translation_score(name: str, signature: str, result: Any) -> Score:
    low, high = float(result.mean - result.ci), float(result.mean + result.ci)
    p_value = None if result.p_value is None else float(result.p_value)
    return Score(name, float(result.score), signature, low, high, p_value)


def _score_summaries(
    outputs: Mapping[str, Sequence[str]], references: Sequence[str], num_resamples: int
) -> dict[str, list[Score]]:
    try:
        from rouge_score.rouge_scorer import RougeScorer
        from rouge_score.scoring import BootstrapAggregator
    except ImportError as error:
        raise _missing("ROUGE", error) from error
    scorer = RougeScorer(list(ROUGE_TYPES), use_stemmer=True)
    signature = f"rouge-score:{version('rouge-score')}|stemmer:yes|measure:f1|bs:{num_resamples}"
    scored = {}
    for system, texts in outputs.items():
        aggregator = BootstrapAggregator(n_samples=num_resamples)
        # rougeLsum takes lines for sentences
        lines = [scorer.score(reference, text) for reference, text in zip(references, texts, strict=True)]
        for line in lines:
            aggregator.add_scores(line)
        intervals = aggregator.aggregate()
        scored[system] = [_rouge_score(name, signature, lines, intervals[name]) for name in ROUGE_TYPES]
    return scored


def _rouge_score(name: str, signature: str, lines: Sequence[Mapping[str, Any]], interval: Any) -> Score:
    mean = sum(line[name].fmeasure for line in lines) / len(lines)
    low, high = interval.low.fmeasure, interval.high.fmeasure
    return Score(name, 100 * mean, signature, 100 * float(low), 100 * float(high))


def _missing(what: str, error: ImportError) -> MissingExtraError:
    return MissingExtraError(f"{what} need more packages ({error}): pip install 'spec2seq[eval]'")
