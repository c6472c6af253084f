"""What fairseq's settings say about a model: the plain Transformer, BART, and the paper's drafter ("block")."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from spec2seq.config import ModelConfig
from spec2seq.drafter_config import SpecDrafterConfig
from spec2seq.errors import CheckpointError, UnsupportedModelError

if TYPE_CHECKING:
    from spec2seq.config import Activation
    from spec2seq.weights.fairseq_checkpoint import FairseqCheckpoint

PAD_ID, EOS_ID, UNKNOWN_ID = 1, 2, 3
# fairseq's positions start behind the padding's own row
POSITION_OFFSET = PAD_ID + 1

TRANSFORMERS = (
    "transformer",
    "transformer_iwslt_de_en",
    "transformer_vaswani_wmt_en_de_big",
    "transformer_vaswani_wmt_en_fr_big",
    "transformer_wmt_en_de",
    "transformer_wmt_en_de_big",
    "transformer_wmt_en_de_big_t2t",
)
BARTS = ("bart_base", "bart_large")
DRAFTERS = ("block",)

_ACTIVATIONS: dict[str, Activation] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_fast": "gelu_new",
    "gelu_accurate": "gelu_new",
    "swish": "silu",
}
# settings that change the network in ways it does not have here, and the one value each may have
_FIXED: dict[str, object] = {
    "adaptive_input": False,
    "adaptive_softmax_cutoff": None,
    "character_embeddings": False,
    "cross_self_attention": False,
    "decoder_layers_to_keep": None,
    "encoder_layers_to_keep": None,
    "no_cross_attention": False,
    "no_decoder_final_norm": False,
    "no_token_positional_embeddings": False,
}
_FIXED_OF_DRAFTERS: dict[str, object] = {
    "decoder_learned_pos": True,
    "decoder_normalize_before": False,
    "encoder_normalize_before": False,
    "layernorm_embedding": False,
    "src_embedding_copy": True,
}
# both sides must say the same
_PAIRS = (
    ("encoder_embed_dim", "decoder_embed_dim"),
    ("decoder_embed_dim", "decoder_input_dim"),
    ("decoder_embed_dim", "decoder_output_dim"),
    ("encoder_learned_pos", "decoder_learned_pos"),
    ("encoder_normalize_before", "decoder_normalize_before"),
)


class Vocabularies(NamedTuple):
    """Sizes of the two dictionaries, special symbols included, and whether they are the same."""

    source_size: int
    target_size: int
    are_same: bool


def read_verifier_config(checkpoint: FairseqCheckpoint, vocabularies: Vocabularies) -> ModelConfig:
    """The configuration of a `transformer` or BART checkpoint.

    Raises:
        UnsupportedModelError: another architecture, or a setting that is not supported.
        CheckpointError: a setting is missing or has the wrong type.
    """
    settings = _Settings(checkpoint)
    settings.refuse_others(TRANSFORMERS + BARTS, "verifier", _FIXED)
    return _model_config(settings, vocabularies)


def read_drafter_config(checkpoint: FairseqCheckpoint, vocabularies: Vocabularies) -> SpecDrafterConfig:
    """The configuration of a `block` checkpoint. Raises as `read_verifier_config`.

    The released code scales no embedding whatever the settings say, and marks slots by `<unk>`.
    """
    settings = _Settings(checkpoint)
    settings.refuse_others(DRAFTERS, "drafter", _FIXED | _FIXED_OF_DRAFTERS)
    return SpecDrafterConfig(_model_config(settings, vocabularies), settings.integer("block_size"), UNKNOWN_ID)


def _model_config(settings: _Settings, vocabularies: Vocabularies) -> ModelConfig:
    d_model = settings.integer("encoder_embed_dim")
    encoder_heads, decoder_heads = (settings.integer(f"{side}_attention_heads") for side in ("encoder", "decoder"))
    shares_all, is_pre_norm = settings.flag("share_all_embeddings"), settings.flag("encoder_normalize_before")
    is_scaled = settings.arch not in DRAFTERS and not settings.flag("no_scale_embedding")
    return ModelConfig(
        family="fairseq_bart" if settings.arch in BARTS else "fairseq_transformer",
        source_vocab_size=vocabularies.source_size,
        target_vocab_size=vocabularies.target_size,
        d_model=d_model,
        encoder_layers=settings.integer("encoder_layers"),
        decoder_layers=settings.integer("decoder_layers"),
        encoder_heads=encoder_heads,
        decoder_heads=decoder_heads,
        head_dim=d_model // decoder_heads,
        encoder_head_dim=d_model // encoder_heads,
        encoder_ffn_dim=settings.integer("encoder_ffn_embed_dim"),
        decoder_ffn_dim=settings.integer("decoder_ffn_embed_dim"),
        activation=settings.activation(),
        positions="learned" if settings.flag("encoder_learned_pos") else "fairseq_sinusoidal",
        position_offset=POSITION_OFFSET,
        max_source_positions=settings.integer("max_source_positions"),
        max_target_positions=settings.integer("max_target_positions"),
        pad_token_id=PAD_ID,
        decoder_start_token_id=EOS_ID,
        eos_token_ids=(EOS_ID,),
        is_pre_norm=is_pre_norm,
        has_final_norm=is_pre_norm,
        has_embedding_norm=settings.flag("layernorm_embedding"),
        embedding_scale=d_model**0.5 if is_scaled else 1.0,
        shares_vocabulary=vocabularies.are_same,
        shares_embeddings=shares_all,
        ties_output=shares_all or settings.flag("share_decoder_input_output_embed"),
    )


class _Settings:
    """Typed look-ups in the settings of a checkpoint."""

    def __init__(self, checkpoint: FairseqCheckpoint) -> None:
        self._values, self._path = checkpoint.settings, checkpoint.path
        self._versions = [checkpoint.tensors.get(f"{side}.version") for side in ("encoder", "decoder")]
        self.arch = str(self._values.get("arch", self._values.get("_name")))

    def integer(self, name: str) -> int:
        value = self._values.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise CheckpointError(f"{self._path}: its setting {name} is {value!r} instead of a number; get it again")
        return value

    def flag(self, name: str) -> bool:
        """A setting that is off where the file, written before fairseq had it, is silent."""
        return bool(self._values.get(name))

    def activation(self) -> Activation:
        name = self._values.get("activation_fn") or "relu"
        if name not in _ACTIVATIONS:
            raise self._unsupported(f"activation_fn={name!r}", f"supported: {', '.join(_ACTIVATIONS)}")
        return _ACTIVATIONS[name]

    def refuse_others(self, archs: tuple[str, ...], role: str, fixed: dict[str, object]) -> None:
        if self.arch not in archs:
            raise self._unsupported(f"architecture {self.arch!r} for a {role}", f"supported: {', '.join(archs)}")
        for name, value in fixed.items():
            found = self._values.get(name, value)
            if found != value and not (value is None and not found):
                raise self._unsupported(f"{name}={found!r}", f"only {value!r} is supported")
        for one, other in _PAIRS:
            if self._values.get(other) is not None and self._values.get(one) != self._values[other]:
                found = f"{one}={self._values.get(one)!r} with {other}={self._values[other]!r}"
                raise self._unsupported(found, "only equal values are supported")
        if self.flag("encoder_normalize_before") and any(v is not None and float(v) < 3 for v in self._versions):
            raise self._unsupported("a pre-norm model without a last norm, of 2018", "convert it with fairseq first")

    def _unsupported(self, what: str, remedy: str) -> UnsupportedModelError:
        return UnsupportedModelError(f"{self._path}: {what} is not supported; {remedy}")
