"""Which drafter a pipeline uses, and whether it fits the verifier."""

from __future__ import annotations

import warnings
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from spec2seq.decoding.search_choice import resolve_num_draft_tokens
from spec2seq.errors import DrafterMismatchError, OptionError
from spec2seq.weights.checkpoint import resolve_folder
from spec2seq.weights.drafter_folder import is_drafter_folder, load_drafter
from spec2seq.weights.fingerprints import VOCABULARY_FILES, VerifierFingerprint, check_verifier, file_fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable

    from spec2seq.config import ModelConfig
    from spec2seq.generation_options import ResolvedOptions
    from spec2seq.interfaces import Drafter
    from spec2seq.pipelines.engines import EngineChoice
    from spec2seq.weights import LoadedModel

    # Drafters keep the state of a batch, so that every call gets a new one.
    MakeDrafter = Callable[[], Drafter]

DRAFTER_NAMES = ("auto", "prompt_lookup")


def choose_drafter(drafter: str | Path | None, verifier: LoadedModel, engine: EngineChoice) -> MakeDrafter | None:
    """What makes this drafter's objects; None for plain search.

    Args:
        drafter: "prompt_lookup", the folder of a trained drafter or of a smaller encoder-decoder with the same
            vocabulary, "auto" (see `own_drafter`), or None.
        verifier: the model that will check its drafts.
        engine: what networks run on.

    Raises:
        OptionError: neither a known drafter nor a folder.
        DrafterMismatchError: the folder's model has another vocabulary or other special tokens.
        ModelNotFoundError, CheckpointError, UnsupportedModelError: as when loading any model.
    """
    if drafter is None:
        return None
    if drafter == "auto":
        drafter = own_drafter(verifier.path)
    if drafter == "prompt_lookup":
        return _prompt_lookup(verifier.config)
    if not isinstance(drafter, str | Path):
        raise OptionError(f"drafter is a {type(drafter).__name__}; use {', '.join(DRAFTER_NAMES)}, a folder, or None")
    if drafter == "" or (not Path(drafter).is_dir() and "/" not in str(drafter)):
        close = get_close_matches(str(drafter), DRAFTER_NAMES, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"use {', '.join(DRAFTER_NAMES)}, or the folder of a model"
        raise OptionError(f"drafter={str(drafter)!r} is neither a known drafter nor a folder; {hint}")
    folder = resolve_folder(drafter)
    if is_drafter_folder(folder):
        return _trained(folder, verifier, engine)
    return _small_model(drafter, verifier, engine)


def own_drafter(model: str | Path) -> str:
    """What "auto" stands for: the trained drafter in the folder MODEL-drafter beside the model's, if there is one, else
    "prompt_lookup"."""
    path = Path(model) if Path(model).name else Path(model).absolute()  # "." has no name
    folder = path.with_name(f"{path.name}-drafter")
    return str(folder) if is_drafter_folder(folder) else "prompt_lookup"


def is_drafter_used(resolved: ResolvedOptions) -> bool:
    """Whether a call with these options would use a drafter."""
    return resolved.num_draft_tokens != 0 and (resolved.num_beams == 1 or resolved.speculative_beams)


def drafter_of_call(make_drafter: MakeDrafter | None, resolved: ResolvedOptions, config: ModelConfig) -> Drafter | None:
    """A drafter for a call with these options, None where none is used.

    Raises:
        OptionError: the options do not suit the drafter.

    Warns:
        UserWarning: beams leave it unused.
    """
    if make_drafter is None:
        return None
    if is_drafter_used(resolved):
        drafter = make_drafter()
        resolve_num_draft_tokens(drafter, resolved, config)  # an error even where nothing is decoded
        return drafter
    if resolved.num_beams > 1 and not resolved.speculative_beams:
        warnings.warn(
            f"drafter unused: num_beams={resolved.num_beams} runs plain beam search; "
            "--num-beams 1 (num_beams=1) gives speculative greedy search, "
            "--speculative-beams (speculative_beams=True) drafts for the same beams",
            stacklevel=5,
        )
    return None


def _prompt_lookup(config: ModelConfig) -> MakeDrafter:
    from spec2seq.drafters.prompt_lookup import PromptLookupDrafter

    return lambda: PromptLookupDrafter(config)


def _trained(folder: Path, verifier: LoadedModel, engine: EngineChoice) -> MakeDrafter:
    from spec2seq.drafters.blockwise import BlockwiseDrafter
    from spec2seq.drafters.feature import FeatureDrafter
    from spec2seq.drafters.spec import SpecDrafter
    from spec2seq.nn.blockwise_heads import BlockwiseHeads
    from spec2seq.nn.spec_drafter import SpecDrafterNetwork

    drafter = load_drafter(folder, engine.weights_dtype)
    found = VerifierFingerprint.of(Path(verifier.path), verifier.config, verifier.tensors)
    check_verifier(folder, drafter.verifier, Path(verifier.path), found)
    network = drafter.network.to(engine.device)
    new: Callable[[], SpecDrafter | BlockwiseDrafter | FeatureDrafter]
    if isinstance(network, SpecDrafterNetwork):
        new = partial(SpecDrafter, engine.draft_network(network))
    else:
        # they compute with weights of the verifier, which are one in memory with the verifier's own
        network.attach(verifier.network.to(engine.device))
        if isinstance(network, BlockwiseHeads):
            new = partial(BlockwiseDrafter, network)
        else:
            new = partial(FeatureDrafter, engine.feature_network(network))

    def make() -> Drafter:
        made = new()
        if drafter.num_draft_tokens is not None:
            made.default_num_draft_tokens = drafter.num_draft_tokens
        made.survival = drafter.survival
        return made

    return make


def _small_model(folder: str | Path, verifier: LoadedModel, engine: EngineChoice) -> MakeDrafter:
    from spec2seq.drafters.small_model import SmallModelDrafter
    from spec2seq.weights import load_model

    model = load_model(str(folder), dtype=engine.weights_dtype)
    check_vocabulary(model, verifier)
    small = engine.verifier(model.network)
    return lambda: SmallModelDrafter(small)


def check_vocabulary(drafter: LoadedModel, verifier: LoadedModel) -> None:
    """Raises DrafterMismatchError unless both models mean the same by every id."""
    for name in ("source_vocab_size", "target_vocab_size", "pad_token_id", "eos_token_ids"):
        mine, its = getattr(drafter.config, name), getattr(verifier.config, name)
        if mine != its:
            raise _mismatch(drafter, verifier, f"{name} is {mine} in the drafter and {its} in the model")
    for file in VOCABULARY_FILES:
        mine, its = file_fingerprint(Path(drafter.path) / file), file_fingerprint(Path(verifier.path) / file)
        if mine and its and mine != its:
            raise _mismatch(drafter, verifier, f"{file} has fingerprint {mine} in the drafter and {its} in the model")


def _mismatch(drafter: LoadedModel, verifier: LoadedModel, difference: str) -> DrafterMismatchError:
    return DrafterMismatchError(
        f"drafter {drafter.path} does not fit model {verifier.path}: {difference}; "
        "use a drafter made with this model's tokenizer"
    )
