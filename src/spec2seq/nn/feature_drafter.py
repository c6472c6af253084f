"""The drafter that reads the verifier's own states: only the places of a block run through its few layers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spec2seq.nn.bigrams import BigramTable, follow
from spec2seq.nn.draft_source import CrossSource
from spec2seq.nn.layers import DecoderLayer
from spec2seq.nn.masks import Placement, block_mask
from spec2seq.nn.positions import sinusoidal_table
from spec2seq.nn.state_cache import StateCache
from spec2seq.nn.sublayer import Norm, nan_parameter, nan_projection
from spec2seq.ranking import best_ids

if TYPE_CHECKING:
    from spec2seq.drafter_config import FeatureDrafterConfig
    from spec2seq.interfaces import Cache, DraftSource
    from spec2seq.nn.seq2seq import Seq2Seq
    from spec2seq.types import Wanted


class StateReader(nn.Module):
    """Verifier states to keys and values of every layer, in one product.

    Attributes:
        mixture: [N] how much each of several verifier layers counts; None where there is one.
    """

    def __init__(self, config: FeatureDrafterConfig, num_states: int, dtype: torch.dtype) -> None:
        super().__init__()
        layers = config.layers
        self.shape = (layers.decoder_layers, 2, layers.decoder_heads, layers.head_dim)
        rows = math.prod(self.shape)
        self.mixture = nan_parameter(dtype, num_states) if num_states > 1 else None
        self.weight = nan_projection(dtype, rows, config.verifier.d_model)
        self.bias = nan_parameter(dtype, rows)

    def mixed(self, states: Tensor) -> Tensor:
        """States [..., N, D] of N layers as one, [..., D]."""
        states = F.layer_norm(states, states.shape[-1:])  # layers differ in size by far where norms come first
        return states[..., 0, :] if self.mixture is None else (states * self.mixture[:, None]).sum(-2)

    def forward(self, mixed: Tensor) -> Tensor:
        """Mixed states [B, n, D] -> [B, n, L, 2, H, d]."""
        return F.linear(mixed, self.weight, self.bias).view(*mixed.shape[:2], *self.shape)


class SourceReader(StateReader):
    """Encoder states to keys and values of every layer. The keys also say where in the source they are: texts mostly
    follow the order of their sources, which is learned in a fraction of the time this way.

    Attributes:
        position_weight: [L * H * d, width], applied to the drafter's own positions.
    """

    def __init__(self, config: FeatureDrafterConfig, dtype: torch.dtype) -> None:
        super().__init__(config, 1, dtype)
        self.position_weight = nan_projection(dtype, math.prod(self.shape) // 2, config.width)

    def read(self, hidden: Tensor, positions: Tensor) -> Tensor:
        """hidden [B, S, D] at embedded positions [S, width] -> [L, 2, B, H, S, d]."""
        keys, values = self.forward(self.mixed(hidden[:, :, None])).unbind(3)
        num_layers, _, num_heads, head_dim = self.shape
        keys = keys + F.linear(positions, self.position_weight).view(-1, num_layers, num_heads, head_dim)
        return torch.stack([keys, values]).permute(3, 0, 1, 4, 2, 5).contiguous()


class BlockEmbedding(nn.Module):
    """What the layers read: the anchor's token in the first place, learned vectors in the others, and positions.

    Attributes:
        places: [block_size, width] a vector for every place of a block.
    """

    def __init__(self, config: FeatureDrafterConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.anchor_weight = nan_projection(dtype, config.width, config.verifier.d_model)
        self.state_weight = nan_projection(dtype, config.width, config.verifier.d_model)
        self.places = nan_parameter(dtype, config.block_size, config.width)
        self.positions: Tensor
        table = sinusoidal_table(config.max_positions, config.width).to(dtype)
        self.register_buffer("positions", table, persistent=False)

    def forward(self, anchors: Tensor, last_states: Tensor, positions: Tensor) -> Tensor:
        """Embedded anchors [..., D], mixed states before them [..., D] and positions [..., k] -> [..., k, width]."""
        num_places = positions.shape[-1]
        known, last = min(num_places, len(self.places)), len(self.positions) - 1
        states = F.embedding(positions.clamp(max=last), self.positions)
        places = self.places[:known]
        if known < num_places:  # behind the block of the training all places are alike
            places = torch.cat([places, places[-1:].expand(num_places - known, -1)])
        first = F.linear(anchors, self.anchor_weight)[..., None, :]
        common = places + F.linear(last_states, self.state_weight)[..., None, :]
        return states + common + F.pad(first, (0, 0, 0, num_places - 1))


@dataclass(frozen=True)
class VerifierTables:
    """What the drafter uses of the verifier as it is.

    Attributes:
        tokens: [V, D] target embedding.
        embedding_scale: factor of it.
        weight: [V', D] output projection to the tokens that can be drafted.
        bias: [V'] or None.
        output_scale: factor of the states before it.
    """

    tokens: Tensor
    embedding_scale: float
    weight: Tensor
    bias: Tensor | None
    output_scale: float


@dataclass(frozen=True)
class BlockAnswer:
    """See `interfaces.BlockScores`.

    Attributes:
        scores: [B, k, V'] without the bigram table.
        anchors: [B].
        shortlist: [V'] ids of the tokens that can be drafted; None: all.
        num_tokens: V.
    """

    scores: Tensor
    anchors: Tensor
    bigrams: BigramTable | None
    num_candidates: int
    shortlist: Tensor | None
    num_tokens: int

    def tokens(self) -> Tensor:
        """The best token of each slot behind the one before it, [B, k]."""
        if self.bigrams is None:
            best = best_ids(self.scores, 1)[1][..., 0]
            return best if self.shortlist is None else self.shortlist[best]
        values, places = self.scores.topk(self.num_candidates)
        tokens = places if self.shortlist is None else self.shortlist[places]
        walked = follow(self.bigrams.successors(values, places, tokens, self.anchors))
        return tokens.gather(2, walked[..., None])[..., 0]

    def log_probs(self, slot: int, previous: Tensor) -> Tensor:
        """The law [B, V] of a slot behind the token `previous` [B]."""
        scores = self.scores[:, slot]
        if self.bigrams is not None:
            scores = scores + self.bigrams.following(previous)
        log_probs = scores.log_softmax(-1)
        if self.shortlist is None:
            return log_probs
        return log_probs.new_full((len(scores), self.num_tokens), -torch.inf).index_copy(1, self.shortlist, log_probs)


class FeatureDrafterNetwork(nn.Module):
    """`FeatureNetwork` on PyTorch. Its weights are NaN until somebody loads or initialises them.

    It computes with some weights of the verifier, which are no parameters of it: call `attach` first.

    Attributes:
        shortlist: [V'] ids of the tokens that can be drafted, or None.
    """

    def __init__(self, config: FeatureDrafterConfig, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.config, self.dtype = config, dtype
        self.prefix_reader = StateReader(config, len(config.hidden_layers), dtype)
        self.source_reader = SourceReader(config, dtype)
        self.embedding = BlockEmbedding(config, dtype)
        self.layers = nn.ModuleList(DecoderLayer(config.layers, dtype) for _ in range(config.num_layers))
        self.final_norm = Norm(config.layers, dtype) if config.layers.has_final_norm else None
        is_wide = config.width == config.verifier.d_model
        self.output_weight = None if is_wide else nan_projection(dtype, config.verifier.d_model, config.width)
        self.bigrams: BigramTable | None = None
        if config.bigram_rank:
            self.bigrams = BigramTable(config.verifier.target_vocab_size, config.num_outputs, config.bigram_rank, dtype)
        self.shortlist: Tensor | None
        self.register_buffer("shortlist", None)
        if config.shortlist_size is not None:
            self.shortlist = torch.zeros(config.shortlist_size, dtype=torch.long)
        self._tables: VerifierTables | None = None

    def attach(self, verifier: Seq2Seq) -> None:
        """Use embedding and output projection of this verifier, on its device. The shortlist is known already."""
        weight: Tensor = verifier.output_weight
        bias: Tensor | None = verifier.output_bias
        if self.shortlist is not None:
            rows = self.shortlist.to(weight.device)
            weight, bias = weight.data[rows], None if bias is None else bias.data[rows]
        config = verifier.config
        tokens = verifier.decoder.embedding.tokens
        self._tables = VerifierTables(tokens, config.embedding_scale, weight, bias, config.output_scale)

    @property
    def tables(self) -> VerifierTables:
        assert self._tables is not None, "attach was not called"
        return self._tables

    @property
    def borrowed(self) -> dict[str, Tensor]:
        """What a block's scores depend on besides the parameters: the shortlist, and weights of the verifier."""
        tensors = {"shortlist": self.shortlist, "weight": self.tables.weight, "bias": self.tables.bias}
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}

    def encode(self, hidden: Tensor, lengths: Tensor) -> CrossSource:
        """See `interfaces.FeatureNetwork.encode`."""
        table = self.embedding.positions
        places = torch.arange(hidden.shape[1], device=hidden.device).clamp(max=len(table) - 1)
        return CrossSource(lengths, self.source_reader.read(hidden.to(self.dtype), table[places]))

    def new_cache(self, num_rows: int) -> StateCache:
        """See `interfaces.FeatureNetwork.new_cache`."""
        width, device = self.config.verifier.d_model, self.embedding.places.device
        return StateCache(self.config.layers, num_rows, width, self.dtype, device)

    def remember(self, states: Tensor, firsts: Tensor, cache: Cache) -> None:
        """See `interfaces.FeatureNetwork.remember`."""
        assert isinstance(cache, StateCache)  # a network is given what its own `new_cache` made
        cache.latest, cache.firsts = self.prefix_reader.mixed(states.to(self.dtype)), firsts
        keys_values = self.prefix_reader(cache.latest)
        positions = firsts[:, None] + torch.arange(states.shape[1], device=firsts.device)
        placement = Placement.read(positions, None, None)
        windows = cache.open(positions, placement.num_slots, placement.first, is_final=True)
        for window, layer in zip(windows, keys_values.unbind(2), strict=True):
            window.write(layer)

    def draft(
        self,
        anchors: Tensor,
        positions: Tensor,
        num_known: Tensor,
        num_draft_tokens: int,
        cache: Cache,
        source: DraftSource,
        wanted: Wanted,
    ) -> BlockAnswer:
        """See `interfaces.FeatureNetwork.draft`."""
        assert isinstance(cache, StateCache)
        assert isinstance(source, CrossSource)
        slots = positions[:, None] + torch.arange(num_draft_tokens, device=positions.device)
        placement = Placement.read(slots, None, None)
        windows = cache.open(slots, placement.num_slots, placement.first, is_final=True)
        mask = block_mask(placement, num_known, self.config.block_attention == "causal", self.dtype)
        states = self.embedding(self.embed(anchors), cache.last_known(num_known), slots)
        for layer, window, keys_values in zip(self.layers, windows, source.layers, strict=True):
            states = layer(states, mask, window, keys_values, source.mask)
        return self.answer(states, anchors)

    def embed(self, tokens: Tensor) -> Tensor:
        """The verifier's embeddings of tokens [...], without positions, [..., D]."""
        return F.embedding(tokens, self.tables.tokens) * self.tables.embedding_scale

    def outputs(self, states: Tensor) -> Tensor:
        """What the output projection is applied to: states of the last layer [..., width] -> [..., D]."""
        if self.final_norm is not None:
            states = self.final_norm.forward(states)
        if self.output_weight is not None:
            states = F.linear(states, self.output_weight)
        scale = self.tables.output_scale
        return states if scale == 1.0 else states * scale

    def answer(self, states: Tensor, anchors: Tensor) -> BlockAnswer:
        """What the last layer's states [B, k, width] say behind anchors [B]."""
        tables, config = self.tables, self.config
        scores = F.linear(self.outputs(states), tables.weight, tables.bias).float()
        num_candidates = min(config.bigram_candidates, config.num_outputs)
        return BlockAnswer(
            scores, anchors, self.bigrams, num_candidates, self.shortlist, config.verifier.target_vocab_size
        )
