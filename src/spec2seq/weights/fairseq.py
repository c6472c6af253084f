"""Converting the paper's own checkpoints, and others of fairseq, into folders of ours."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

from spec2seq.errors import CheckpointError, ModelNotFoundError, OptionError
from spec2seq.fairseq_text.dictionary import Dictionary
from spec2seq.fairseq_text.tokenizer import TextSettings, make_segmentation, save_dictionary_tokenizer
from spec2seq.weights.drafter_folder import save_drafter
from spec2seq.weights.fairseq_checkpoint import FairseqCheckpoint, read_checkpoint
from spec2seq.weights.fairseq_networks import build_drafter, build_verifier
from spec2seq.weights.fairseq_settings import BARTS, Vocabularies
from spec2seq.weights.fingerprints import VerifierFingerprint
from spec2seq.weights.native import save_seq2seq

if TYPE_CHECKING:
    from spec2seq.fairseq_text.tokenizer import SegmentationName
    from spec2seq.nn.seq2seq import Seq2Seq
    from spec2seq.nn.spec_drafter import SpecDrafterNetwork

DRAFTER_FOLDER = "drafter"

_CARD = """# Spec-Drafter of {verifier}

Converted by `spec2seq convert fairseq` from the fairseq checkpoint `{file}`.

- network: {encoder}+{decoder} layers, width {width}, {positions} positions, block size {block}
- variant: the paper's released code (no embedding scale, `<unk>` marks a slot)
- made for: `{verifier}`, vocabulary {vocabulary}, weights {weights}
- training data, licence and quality: those of the checkpoint it was converted from
"""


@dataclass(frozen=True)
class FairseqSources:
    """What a conversion reads.

    Attributes:
        verifier, drafter: `.pt` files; the drafter may be missing.
        dictionaries: folder with dict.SOURCE.txt and dict.TARGET.txt, or one dict.txt for both.
        codes: codes of subword-nmt (for BART GPT-2's vocab.bpe); without them texts must come as symbols.
    """

    verifier: Path
    drafter: Path | None
    dictionaries: Path
    codes: Path | None


def convert_fairseq(sources: FairseqSources, output: Path, *, is_tokenised: bool) -> None:
    """Write `output` (the verifier) and `output`/drafter. Nothing is left behind when something is wrong.

    Args:
        sources: what to convert.
        output: must not exist yet, or be empty.
        is_tokenised: texts will come as symbols with white space between them, also where there are codes.

    Raises:
        OptionError: the output folder is in use.
        ModelNotFoundError, CheckpointError, UnsupportedModelError: a file is missing, damaged, or of another kind.
        MissingExtraError: subword-nmt is needed for the codes and not installed.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise OptionError(f"output {output} exists already; delete it, or choose another one")
    if not output.resolve().parent.is_dir():
        raise OptionError(f"output {output}: there is no folder {output.resolve().parent}; make it first")
    unfinished = Path(mkdtemp(prefix=f".{output.name}.", dir=output.resolve().parent))
    try:
        _write(sources, unfinished, is_tokenised)
        unfinished.chmod(0o755)
        unfinished.replace(output.resolve())
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _write(sources: FairseqSources, folder: Path, is_tokenised: bool) -> None:
    checkpoint = read_checkpoint(sources.verifier)
    pair = _DictionaryPair.find(sources.dictionaries, checkpoint)
    network = build_verifier(checkpoint, pair.vocabularies(checkpoint))
    drafter = None
    if sources.drafter is not None:
        drafter_checkpoint = read_checkpoint(sources.drafter)
        drafter = build_drafter(drafter_checkpoint, pair.vocabularies(drafter_checkpoint))
    settings = TextSettings(
        _segmentation(checkpoint, None if is_tokenised else sources.codes), *pair.languages, _is_bart(checkpoint)
    )
    make_segmentation(settings, sources.codes, Dictionary.read(pair.source))  # a wrong file of codes shows now
    save_seq2seq(folder, network)
    save_dictionary_tokenizer(folder, settings, pair.source, pair.target, sources.codes)
    if drafter is not None:
        _save_drafter(folder, sources, network, drafter)


def _save_drafter(folder: Path, sources: FairseqSources, network: Seq2Seq, drafter: SpecDrafterNetwork) -> None:
    fingerprint = VerifierFingerprint.of(folder, network.config)
    model = drafter.config.model
    card = _CARD.format(
        verifier=sources.verifier.stem,
        file=sources.drafter.name if sources.drafter else "",
        encoder=model.encoder_layers,
        decoder=model.decoder_layers,
        width=model.d_model,
        positions=drafter.config.max_positions,
        block=drafter.config.block_size,
        vocabulary=fingerprint.vocabulary,
        weights=fingerprint.weights,
    )
    save_drafter(folder / DRAFTER_FOLDER, drafter, sources.verifier.stem, fingerprint, card)


def _segmentation(checkpoint: FairseqCheckpoint, codes: Path | None) -> SegmentationName:
    if codes is None:
        return "tokenised"
    return "gpt2" if _is_bart(checkpoint) else "moses"


def _is_bart(checkpoint: FairseqCheckpoint) -> bool:
    return checkpoint.settings.get("arch", checkpoint.settings.get("_name")) in BARTS


@dataclass(frozen=True)
class _DictionaryPair:
    """The dictionary files of a model, and its languages as fairseq calls them."""

    source: Path
    target: Path
    languages: tuple[str, str]

    @classmethod
    def find(cls, folder: Path, checkpoint: FairseqCheckpoint) -> _DictionaryPair:
        """The files for the languages that the checkpoint names."""
        settings = checkpoint.settings
        languages = (str(settings.get("source_lang") or "source"), str(settings.get("target_lang") or "target"))
        paths = [folder / f"dict.{language}.txt" for language in languages]
        if not any(path.is_file() for path in paths) and (folder / "dict.txt").is_file():
            paths = [folder / "dict.txt"] * 2
        missing = [path.name for path in paths if not path.is_file()]
        if missing:
            found = ", ".join(sorted(path.name for path in folder.glob("dict*.txt"))) or "none"
            raise ModelNotFoundError(
                f"{folder} has no {missing[0]}, which {checkpoint.path} needs (dictionaries there: {found}); "
                "give the folder with the dictionaries of this model"
            )
        return cls(paths[0], paths[1], languages)

    def vocabularies(self, checkpoint: FairseqCheckpoint) -> Vocabularies:
        """Sizes of the dictionaries; a model with one embedding for both sides needs them to be the same."""
        source, target = Dictionary.read(self.source), Dictionary.read(self.target)
        are_same = source.symbols == target.symbols
        if checkpoint.settings.get("share_all_embeddings") and not are_same:
            pairs = zip_longest(source.symbols, target.symbols)
            place = next(i for i, (one, other) in enumerate(pairs) if one != other)
            raise CheckpointError(
                f"{checkpoint.path} has one embedding for both languages, but {self.source.name} and "
                f"{self.target.name} differ from line {place - 3} on: give the dictionaries of this model"
            )
        return Vocabularies(len(source), len(target), are_same)
