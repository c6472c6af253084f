"""T5, T5 v1.1, Flan-T5 and mT5: relative positions, root mean square norms, no biases, perhaps a gated feed-forward."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spec2seq.config import ModelConfig
from spec2seq.errors import UnsupportedModelError
from spec2seq.weights.family import Family, Slot

if TYPE_CHECKING:
    from spec2seq.config import Activation
    from spec2seq.weights.settings import Settings


def read_config(settings: Settings) -> ModelConfig:
    """T5 scales the decoder's output where `scale_decoder_outputs` says so, which older files say by not untying the
    output; mT5 never does. Whether the output is tied is for the weights to say."""
    d_model = settings.integer("d_model", 512)
    num_layers = settings.integer("num_layers", 6)
    num_heads = settings.integer("num_heads", 8)
    vocab_size = settings.integer("vocab_size", 32128)
    activation, is_gated = _feed_forward(settings)
    is_old_scaled = settings.config.get("tie_word_embeddings") is not False
    is_scaled = settings.family == "t5" and settings.flag("scale_decoder_outputs", is_old_scaled)
    pad_token_id = settings.integer("pad_token_id", 0)
    start = settings.decoder_start(default=None)
    return ModelConfig(
        family=settings.family,
        source_vocab_size=vocab_size,
        target_vocab_size=vocab_size,
        d_model=d_model,
        encoder_layers=num_layers,
        decoder_layers=settings.integer("num_decoder_layers", num_layers),
        encoder_heads=num_heads,
        decoder_heads=num_heads,
        head_dim=settings.integer("d_kv", 64),
        encoder_ffn_dim=settings.integer("d_ff", 2048),
        decoder_ffn_dim=settings.integer("d_ff", 2048),
        activation=activation,
        positions="relative",
        pad_token_id=pad_token_id,
        decoder_start_token_id=start if start >= 0 else pad_token_id,
        eos_token_ids=settings.ends(1),
        is_pre_norm=True,
        has_final_norm=True,
        norm="rms",
        norm_eps=settings.number("layer_norm_epsilon", 1e-6),
        is_gated_ffn=is_gated,
        has_bias=False,
        output_scale=d_model**-0.5 if is_scaled else 1.0,
        is_attention_scaled=False,
        relative_buckets=settings.integer("relative_attention_num_buckets", 32),
        relative_max_distance=settings.integer("relative_attention_max_distance", 128),
    )


def _feed_forward(settings: Settings) -> tuple[Activation, bool]:
    default = "gated-gelu" if settings.family == "mt5" else "relu"
    kind = settings.config.get("feed_forward_proj", default)
    if kind == "gated-gelu":  # the name is older than the distinction between the two
        return "gelu_new", True
    parts = str(kind).split("-")
    if len(parts) > 2 or (len(parts) == 2 and parts[0] != "gated"):
        raise UnsupportedModelError(
            f"feed_forward_proj={kind!r} of this {settings.family} model is not supported; "
            "supported: an activation such as relu, or gated- and an activation"
        )
    return settings.activation(parts[-1]), len(parts) == 2


def slots(config: ModelConfig) -> dict[str, Slot]:
    """Where the tensors go, embeddings apart."""
    places: dict[str, Slot] = {}
    for side, num_layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        for layer in range(num_layers):
            places |= _layer_slots(side, layer, config)
        bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        places[bias] = Slot(f"{side}.relative_bias.weight")
        places[f"{side}.final_layer_norm.weight"] = Slot(f"{side}.final_norm.weight")
    return places


def _layer_slots(side: str, layer: int, config: ModelConfig) -> dict[str, Slot]:
    block, ours = f"{side}.block.{layer}.layer.", f"{side}.layers.{layer}."
    is_decoder = side == "decoder"
    ffn = f"{block}{2 if is_decoder else 1}."
    inputs = ("wi_0", "wi_1") if config.is_gated_ffn else ("wi",)
    places = {
        **{
            f"{block}0.SelfAttention.{x}.weight": Slot(f"{ours}attention.qkv_weight", i, 3) for i, x in enumerate("qkv")
        },
        f"{block}0.SelfAttention.o.weight": Slot(f"{ours}attention.output_weight"),
        f"{block}0.layer_norm.weight": Slot(f"{ours}attention.norm.weight"),
        **{
            f"{ffn}DenseReluDense.{name}.weight": Slot(f"{ours}ffn.input_weight", i, len(inputs))
            for i, name in enumerate(inputs)
        },
        f"{ffn}DenseReluDense.wo.weight": Slot(f"{ours}ffn.output_weight"),
        f"{ffn}layer_norm.weight": Slot(f"{ours}ffn.norm.weight"),
    }
    if is_decoder:
        parts = 2 * config.decoder_layers
        places |= {
            f"{block}1.EncDecAttention.q.weight": Slot(f"{ours}cross_attention.query_weight"),
            f"{block}1.EncDecAttention.k.weight": Slot("cross.weight", 2 * layer, parts),
            f"{block}1.EncDecAttention.v.weight": Slot("cross.weight", 2 * layer + 1, parts),
            f"{block}1.EncDecAttention.o.weight": Slot(f"{ours}cross_attention.output_weight"),
            f"{block}1.layer_norm.weight": Slot(f"{ours}cross_attention.norm.weight"),
        }
    return places


FAMILY = Family(
    read_config,
    slots,
    ignored={
        "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": "T5 has no bias in cross-attention",
    },
)
