"""What a drafter writes when nobody checks it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from spec2seq.decoding.loop import Decoder
from spec2seq.drafters.small_model import SmallModelDrafter
from spec2seq.drafters.spec import SpecDrafter
from spec2seq.errors import OptionError
from spec2seq.evaluation.drafter_alone import DrafterAlone
from spec2seq.generation_options import ResolvedOptions
from spec2seq.option_resolution import resolve_options
from spec2seq.testing import ConstantDrafter, OracleDrafter, TableVerifier, tiny_config
from spec2seq.types import Prefix, SourceBatch, Wanted
from tests.tiny_drafters import tiny_drafter

if TYPE_CHECKING:
    from spec2seq.interfaces import Drafter, EncoderOutput

CONFIG = tiny_config()
(EOS,) = CONFIG.eos_token_ids
SOURCES = [[5, 6, EOS], [7, EOS], [8, 9, 10, EOS]]
# what stands behind an end of sequence is never written
SCRIPT = {(5, 6, EOS): [11, 12, 13, 14, 15, EOS, 40, 41], (7, EOS): [EOS, 42], (8, 9, 10, EOS): [*range(11, 31), EOS]}


def options(**arguments: object) -> ResolvedOptions:
    return resolve_options({}, CONFIG, None, {"num_beams": 1, "max_new_tokens": 12, **arguments})


def alone(drafter: Drafter, num_draft_tokens: int | None = None, **arguments: object) -> DrafterAlone:
    return DrafterAlone(drafter, CONFIG, torch.device("cpu"), options(**arguments), num_draft_tokens)


@pytest.mark.parametrize("k", [1, 2, 5, 7])
def test_blocks_are_taken_as_they_come(k: int) -> None:
    writer = alone(OracleDrafter(SCRIPT), k)
    expected = [[11, 12, 13, 14, 15, EOS], [EOS], [*range(11, 23)]]
    assert writer.run(SOURCES) == expected
    stats = writer.take_stats()
    assert [one.num_tokens for one in stats] == [6, 1, 12]
    assert [one.num_rounds for one in stats] == [-(-6 // k), 1, -(-12 // k)]
    assert [one.tokens_per_round for one in stats] == [len(row) / -(-len(row) // k) for row in expected]
    assert {one.num_judged for one in stats} == {0}
    assert writer.take_stats() == []
    assert writer.run(SOURCES[::-1]) == expected[::-1]  # nothing is left of the first run


def test_a_small_model_alone_writes_its_own_greedy_outputs() -> None:
    small = TableVerifier(CONFIG, seed=3)
    writer = alone(SmallModelDrafter(small), 4)
    decoder = Decoder(small)
    requests = decoder.add(SourceBatch.from_lists(SOURCES, CONFIG.pad_token_id), options(suppress_tokens=[1]))
    while decoder.alive:
        decoder.step()
    assert writer.run(SOURCES) == [decoder.result(request).hypotheses[0].token_ids for request in requests]


def test_a_spec_drafter_alone_continues_its_own_blocks() -> None:
    network = tiny_drafter(max_positions=40)
    written = alone(SpecDrafter(network)).run(SOURCES)
    for source, output in zip(SOURCES, written, strict=True):
        encoded = network.encode(SourceBatch.from_lists([source], CONFIG.pad_token_id))
        tokens = [CONFIG.decoder_start_token_id]
        while len(tokens) <= 12 and EOS not in tokens[1:]:
            prefix = Prefix(torch.tensor([tokens]), torch.tensor([len(tokens)]))
            tokens += network.draft(prefix, 5, encoded, Wanted()).top(1)[1][0, :, 0].tolist()
        expected = tokens[1 : tokens.index(EOS, 1) + 1] if EOS in tokens[1:] else tokens[1:13]
        assert output == expected


def test_the_end_of_the_positions_is_an_end() -> None:
    writer = alone(SpecDrafter(tiny_drafter({"eos_token_ids": ()}, max_positions=11)), 4, eos_token_id=[])
    assert [len(row) for row in writer.run(SOURCES)] == [8, 8, 8]


def test_loops_and_forced_tokens_are_counted() -> None:
    writer = alone(ConstantDrafter(9), 5, forced_bos_token_id=4)
    assert writer.run(SOURCES[:1]) == [[4, *[9] * 11]]
    (stats,) = writer.take_stats()
    assert (stats.num_tokens, stats.num_forced, stats.num_rounds, stats.is_degenerate) == (12, 1, 3, True)


def test_drafters_that_need_the_verifier_are_refused() -> None:
    class ReadsDecoder(ConstantDrafter):
        hidden_layers = (2,)

    class ReadsEncoder(ConstantDrafter):
        def start(self, source: SourceBatch, encoded: EncoderOutput) -> None:
            encoded.hidden.sum()

    with pytest.raises(OptionError, match="reads the verifier's states"):
        alone(ReadsDecoder(9))
    with pytest.raises(OptionError, match="reads the verifier's states"):
        alone(ReadsEncoder(9)).run(SOURCES)
