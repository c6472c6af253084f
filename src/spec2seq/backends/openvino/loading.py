"""From networks to engines, by way of what was converted before."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from spec2seq.backends.openvino.engine import Engine, ThreadPlan
from spec2seq.backends.openvino.keys import entry_key
from spec2seq.backends.openvino.precision import in_precision
from spec2seq.backends.openvino.sanity import check_likeness
from spec2seq.backends.openvino.store import GraphStore
from spec2seq.backends.openvino.threads import choose_threads
from spec2seq.backends.openvino.verifier import OpenVinoVerifier
from spec2seq.backends.openvino.verifier_graphs import verifier_graphs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from spec2seq.backends.openvino.precision import Precision
    from spec2seq.nn.seq2seq import Seq2Seq


def load_verifier(
    network: Seq2Seq,
    precision: Precision,
    num_threads: int | None = None,
    *,
    folder: Path | None = None,
    on_convert: Callable[[], None] | None = None,
) -> OpenVinoVerifier:
    """The engine of a network.

    Args:
        network: in fp32, on the CPU.
        precision: what the engine computes in.
        num_threads: CPU threads; None for what is fastest here, measured the first time.
        folder: where converted graphs are kept; the default place when None.
        on_convert: called when the network has to be converted, which takes seconds.

    Raises:
        MissingExtraError: OpenVINO, or what int8 needs besides, is not installed.
        UnsupportedModelError: the converted network computes something else.

    Warns:
        UserWarning: what was kept is damaged, or nothing can be kept.
    """
    store, key = GraphStore(folder), entry_key("verifier", network, network.config, precision)
    facts: dict[str, Any] = {}

    def convert() -> dict[str, Any]:
        if on_convert:
            on_convert()
        graphs = in_precision(verifier_graphs(network), precision)
        trial = OpenVinoVerifier(network.config, Engine(graphs, precision, ThreadPlan(1, 1)))
        facts["likeness"] = asdict(check_likeness(trial, network))
        return graphs

    engine = Engine(store.get(key, convert), precision, ThreadPlan(1, 1))
    for name, value in facts.items():
        store.note(key, name, value)
    verifier = OpenVinoVerifier(network.config, engine)
    engine.threads = (
        choose_threads(verifier, store, key) if num_threads is None else ThreadPlan(num_threads, num_threads)
    )
    engine.forget_others()
    return verifier
