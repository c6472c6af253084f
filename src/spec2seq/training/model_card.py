"""The model card of a trained drafter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spec2seq.drafter_config import BlockwiseConfig, FeatureDrafterConfig

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spec2seq.drafter_config import DrafterConfig
    from spec2seq.weights.fingerprints import VerifierFingerprint

CARD_SLOTS = (4, 8, 12, 16, 24)


def card_text(
    verifier_name: str,
    fingerprint: VerifierFingerprint,
    manifests: Sequence[Mapping[str, Any]],
    config: DrafterConfig,
    plan: Mapping[str, Any],
    trained: Mapping[str, Any],
) -> str:
    """Markdown.

    Args:
        manifests: of the distillations.
        plan: `TrainingPlan.as_job()`.
        trained: a `TrainedDrafter` as a dict.
    """
    settings = {**plan["objective"], **plan["settings"]}
    rows = "".join(f"| {name} | {value} |\n" for name, value in settings.items())
    return f"""\
# Drafter for {verifier_name}

Proposes tokens that {verifier_name} checks: `spec2seq generate --model MODEL --drafter THIS_FOLDER`. It is of no use
with another model.

- Verifier: vocabulary {fingerprint.vocabulary}, weights {fingerprint.weights}.
- Kind: {plan["kind"]}, {_size(config)}, blocks of
  {config.block_size} tokens.
- Data: {trained["num_pairs"]} outputs of the verifier for
{"".join(_source(manifest) for manifest in manifests)}- Weights: mean of the last {trained["num_averaged"]} checkpoints.

## Expected gain

From {trained["num_held_out"]} held-out outputs, without decoding. Survival, slot by slot: the share of blocks that are
kept up to and with that token.

| slots | tokens per round | survival |
| --- | --- | --- |
{"".join(_row(k, figures) for k, figures in trained["figures"].items())}
## Training

| setting | value |
| --- | --- |
{rows}"""


def _source(manifest: Mapping[str, Any]) -> str:
    job, num_beams = manifest["job"], manifest["job"]["options"]["num_beams"]
    search = f"beam search with {num_beams} beams" if num_beams > 1 else "greedy search"
    return f"  - {manifest['origin']['source']}, SHA-256 {job['source_sha256']} ({search})\n"


def _size(config: DrafterConfig) -> str:
    if isinstance(config, FeatureDrafterConfig):
        plural = "s" if config.num_layers > 1 else ""
        return f"{config.num_layers} decoder layer{plural}, width {config.width}"
    if isinstance(config, BlockwiseConfig):
        return f"heads with {config.ffn_dim} units each"
    model = config.model
    return f"{model.encoder_layers} encoder and {model.decoder_layers} decoder layers, width {model.d_model}"


def _row(num_slots: int, figures: Mapping[str, Any]) -> str:
    kept, reached = figures["kept"], figures["reached"]
    survival = " ".join(f"{one / all_:.3f}" if all_ else "-" for one, all_ in zip(kept, reached, strict=True))
    rate = figures["num_tokens"] / figures["num_rounds"]
    return f"| {num_slots} | {rate:.2f} | {survival} |\n"
