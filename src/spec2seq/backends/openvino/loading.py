"""From networks to engines, by way of what was converted before."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from spec2seq.backends.native import support
from spec2seq.backends.openvino.draft_graphs import draft_graphs, draft_inputs
from spec2seq.backends.openvino.draft_network import OpenVinoDraftNetwork
from spec2seq.backends.openvino.engine import FEW_POSITIONS, Engine, ThreadPlan
from spec2seq.backends.openvino.feature_graphs import (
    LAW_OUTPUTS,
    WALK_OUTPUTS,
    feature_graphs,
    feature_inputs,
    source_reader_graph,
)
from spec2seq.backends.openvino.feature_network import OpenVinoFeatureNetwork
from spec2seq.backends.openvino.keys import entry_key
from spec2seq.backends.openvino.precision import in_precision
from spec2seq.backends.openvino.sanity import check_draft_network, check_feature_network, check_verifier
from spec2seq.backends.openvino.store import GraphStore
from spec2seq.backends.openvino.threads import choose_threads
from spec2seq.backends.openvino.tracing import size_names
from spec2seq.backends.openvino.verifier import OpenVinoVerifier, OwnPrograms
from spec2seq.backends.openvino.verifier_graphs import (
    source_graphs,
    step_outputs,
    verifier_graphs,
    verifier_inputs,
)
from spec2seq.types import Prefix, SourceBatch, Wanted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from spec2seq.backends.openvino.precision import Precision
    from spec2seq.backends.openvino.sanity import Likeness
    from spec2seq.backends.openvino.tracing import GraphInput
    from spec2seq.nn.feature_drafter import FeatureDrafterNetwork
    from spec2seq.nn.seq2seq import Seq2Seq
    from spec2seq.nn.spec_drafter import SpecDrafterNetwork

# What is run to find the best number of threads: rows of few and of many rows x positions, and queries per row
_FEW_ROWS, _MANY_ROWS, _QUERIES = 1, 8, 8

_COMPILED = "steps are compiled"  # noted beside an entry: numba keeps its own, and takes seconds where it has none


@dataclass(frozen=True)
class Loader:
    """Makes engines of networks.

    Attributes:
        precision: what they compute in.
        num_threads: CPU threads; None for what is fastest here, measured the first time.
        folder: where converted graphs are kept; the default place when None.
        on_convert: called when a network has to be converted, which takes seconds.
    """

    precision: Precision
    num_threads: int | None = None
    folder: Path | None = None
    on_convert: Callable[[], None] | None = None

    def verifier(self, network: Seq2Seq, hidden_layers: tuple[int, ...] = ()) -> OpenVinoVerifier:
        """The engine of a verifier in fp32.

        Args:
            network: what to convert.
            hidden_layers: whose states calls will mostly ask for.

        Raises:
            MissingExtraError: OpenVINO, or what int8 needs besides, is not installed.
            UnsupportedModelError: the converted network computes something else.

        Warns:
            UserWarning: what was kept is damaged, or nothing can be kept.
        """
        config = network.config
        if self.precision == "int8" and support.can_run(config):
            return self._verifier_with_own_steps(network)
        entry = _Entry(GraphStore(self.folder), entry_key("verifier", network, config, self.precision))
        engine = self._engine(
            entry,
            verifier_inputs(config),
            lambda: in_precision(verifier_graphs(network), self.precision),
            lambda trial: check_verifier(OpenVinoVerifier(config, trial), network),
        )
        verifier = OpenVinoVerifier(config, engine)
        self._set_threads(engine, entry, partial(_verify, verifier))
        many = FEW_POSITIONS + 1
        engine.compile_ahead(("encoder", many, None), ("cross", many, None), ("step", 1, step_outputs(hidden_layers)))
        return verifier

    def _verifier_with_own_steps(self, network: Seq2Seq) -> OpenVinoVerifier:
        """Steps are machine code with int8 weights; the encoder, whose errors would be in every step, has bfloat16
        where the processor has that, as machine code too where it has tiles for it."""
        from spec2seq.backends.native.source_program import SourceProgram
        from spec2seq.backends.native.step_program import StepProgram

        config, loader = network.config, self._beside_own_code
        own = OwnPrograms(StepProgram(network), SourceProgram(network) if support.can_encode(config) else None)
        kind = "source" if own.source is None else "own"
        entry = _Entry(GraphStore(self.folder), entry_key(kind, network, config, loader.precision))
        is_compiled = self._tell_unless_compiled(entry)
        engine = loader._engine(
            entry,
            verifier_inputs(config),
            lambda: source_graphs(network) if own.source is None else {},
            lambda trial: check_verifier(OpenVinoVerifier(config, trial, own), network),
        )
        verifier = OpenVinoVerifier(config, engine, own)
        if not is_compiled:
            _verify(verifier, _FEW_ROWS)
            entry.store.note(entry.key, _COMPILED, True)
        if own.source is None:
            self._set_threads(engine, entry, partial(_verify, verifier))
            engine.compile_ahead(("encoder", FEW_POSITIONS + 1, None), ("cross", FEW_POSITIONS + 1, None))
        return verifier

    @property
    def _beside_own_code(self) -> Loader:
        """What makes the graphs that are left where the rest is machine code of our own; it tells nothing."""
        return replace(self, precision="bfloat16" if support.multiplies_bfloat16() else "float32", on_convert=None)

    def _tell_unless_compiled(self, entry: _Entry) -> bool:
        """Whether an entry's machine code was compiled before; if not, that is told."""
        is_compiled = bool(entry.store.noted(entry.key, _COMPILED))
        if self.on_convert and not is_compiled:
            self.on_convert()
        return is_compiled

    def draft_network(self, network: SpecDrafterNetwork) -> OpenVinoDraftNetwork:
        """The engine of a Spec-Drafter in fp32. Raises and warns as `verifier` does."""
        config = network.config
        entry = _Entry(GraphStore(self.folder), entry_key("spec", network, config, self.precision))
        engine = self._engine(
            entry,
            draft_inputs(config),
            lambda: in_precision(draft_graphs(network), self.precision),
            lambda trial: check_draft_network(OpenVinoDraftNetwork(config, trial), network),
        )
        drafting = OpenVinoDraftNetwork(config, engine)
        self._set_threads(engine, entry, partial(_draft, drafting))
        engine.compile_ahead(("encoder", FEW_POSITIONS + 1, None), ("draft", FEW_POSITIONS + 1, None))
        return drafting

    def feature_network(self, network: FeatureDrafterNetwork) -> OpenVinoFeatureNetwork:
        """The engine of a drafter on states in fp32 that was attached to its verifier. Raises and warns as `verifier`
        does."""
        config, others = network.config, network.borrowed
        if self.precision == "int8" and support.can_draft(config):
            return self._feature_network_with_own_blocks(network)
        entry = _Entry(GraphStore(self.folder), entry_key("feature", network, config, self.precision, others))
        engine = self._engine(
            entry,
            feature_inputs(config),
            lambda: in_precision(feature_graphs(network), self.precision),
            lambda trial: check_feature_network(OpenVinoFeatureNetwork(network, trial), network),
        )
        drafting = OpenVinoFeatureNetwork(network, engine)
        self._set_threads(engine, entry, partial(_draft_on_states, drafting))
        outputs = WALK_OUTPUTS if network.bigrams is not None else LAW_OUTPUTS
        engine.compile_ahead(("source", FEW_POSITIONS + 1, None), ("draft", 1, outputs))
        return drafting

    def _feature_network_with_own_blocks(self, network: FeatureDrafterNetwork) -> OpenVinoFeatureNetwork:
        """What runs once per round is machine code with int8 weights; a graph reads the source."""
        from spec2seq.backends.native.block_program import BlockProgram

        config, block, loader = network.config, BlockProgram(network), self._beside_own_code
        key = entry_key("blocks", network, config, loader.precision, network.borrowed)
        entry = _Entry(GraphStore(self.folder), key)
        is_compiled = self._tell_unless_compiled(entry)
        engine = loader._engine(
            entry,
            feature_inputs(config),
            lambda: source_reader_graph(network),
            lambda trial: check_feature_network(OpenVinoFeatureNetwork(network, trial, block), network),
        )
        drafting = OpenVinoFeatureNetwork(network, engine, block)
        if not is_compiled:
            _draft_on_states(drafting, _FEW_ROWS)
            entry.store.note(entry.key, _COMPILED, True)
        self._set_threads(engine, entry, partial(_draft_on_states, drafting))
        engine.compile_ahead(("source", FEW_POSITIONS + 1, None))
        return drafting

    def _engine(
        self,
        entry: _Entry,
        inputs: Mapping[str, Sequence[GraphInput]],
        make_graphs: Callable[[], dict[str, Any]],
        check: Callable[[Engine], Likeness],
    ) -> Engine:
        """An engine of what is kept in an entry, on one thread; converted and checked where nothing is."""
        found: list[Likeness] = []
        sizes = size_names(inputs)

        def convert() -> dict[str, Any]:
            if self.on_convert:
                self.on_convert()
            graphs = make_graphs()
            found.append(check(Engine(graphs, sizes, self.precision, ThreadPlan(1, 1))))
            return graphs

        engine = Engine(entry.store.get(entry.key, convert), sizes, self.precision, ThreadPlan(1, 1))
        for likeness in found:
            entry.store.note(entry.key, "likeness", asdict(likeness))
        return engine

    def _set_threads(self, engine: Engine, entry: _Entry, work: Callable[[int], None]) -> None:
        if self.num_threads is not None:
            engine.threads = ThreadPlan(self.num_threads, self.num_threads)
            return
        few, many = partial(work, _FEW_ROWS), partial(work, _MANY_ROWS)
        engine.threads = choose_threads(engine, few, many, entry.store, entry.key)
        engine.forget_others()


@dataclass(frozen=True)
class _Entry:
    """A place in a store."""

    store: GraphStore
    key: str


def _verify(verifier: OpenVinoVerifier, num_rows: int) -> None:
    """One plain step and one call of some queries."""
    source = _source(num_rows, verifier.config.pad_token_id)
    encoded, cache = verifier.encode(source), verifier.new_cache(num_rows)
    for num_queries in (1, _QUERIES):
        positions = torch.arange(num_queries).repeat(num_rows, 1)
        lengths = torch.full((num_rows,), num_queries)
        verifier.decode(torch.zeros_like(positions), positions, lengths, cache, encoded, Wanted())


def _draft(network: OpenVinoDraftNetwork, num_rows: int) -> None:
    source = network.encode(_source(num_rows, network.config.model.pad_token_id))
    num_slots = network.config.block_size
    known = min(_QUERIES, network.config.max_positions - num_slots)
    prefix = Prefix(torch.zeros((num_rows, known + 1), dtype=torch.long), torch.full((num_rows,), known + 1))
    network.draft(prefix, num_slots, source, Wanted())


def _draft_on_states(network: OpenVinoFeatureNetwork, num_rows: int) -> None:
    """One round: states are read and a block is drafted."""
    config = network.config
    num_places = config.block_size
    known = min(_QUERIES, config.max_positions - num_places)
    states = torch.zeros(num_rows, known, len(config.hidden_layers), config.verifier.d_model)
    rows, cache = torch.zeros(num_rows, dtype=torch.long), network.new_cache(num_rows)
    source = network.encode(torch.zeros(num_rows, _QUERIES, config.verifier.d_model), rows + _QUERIES)
    network.remember(states, rows, cache)
    network.draft(rows, rows + known, rows + known, num_places, cache, source, Wanted())


def _source(num_rows: int, pad_token_id: int) -> SourceBatch:
    return SourceBatch(torch.full((num_rows, _QUERIES), pad_token_id), torch.full((num_rows,), _QUERIES))
