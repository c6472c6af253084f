"""Whole decoding on the OpenVINO engine: the torch engine's outputs in fp32, its own plain search in any precision."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from spec2seq.drafters.spec import SpecDrafter
from spec2seq.pipelines import Pipeline
from spec2seq.testing import OracleDrafter, RandomDrafter, WrongDrafter
from spec2seq.weights.drafter_folder import save_drafter
from spec2seq.weights.fingerprints import VerifierFingerprint
from tests.families import TARGET_LANGUAGE_ID, tiny_hf_model
from tests.openvino_families import marked_families, skip_without_own_steps
from tests.tiny_drafters import tiny_drafter, tiny_feature_drafter

pytest.importorskip("openvino", reason="needs pip install 'spec2seq[openvino]'")

from spec2seq.backends.openvino.feature_network import OpenVinoFeatureNetwork
from spec2seq.backends.openvino.loading import Loader

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT = 24
WIDE = "wide "  # enough for steps of our own, where the processor has what they need
OWN_BLOCKS: dict[str, Any] = {"width": 64, "num_heads": 2, "head_dim": 32, "ffn_dim": 64, "bigram_rank": 16}
LENGTHS = (7, 3, 12, 5, 1, 9, 4, 20)


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Pipeline]:
    folders: dict[str, Path] = {}
    made: dict[tuple[str, str, str], Pipeline] = {}

    def make(family: str, backend: str = "openvino", dtype: str = "float32") -> Pipeline:
        if family not in folders:
            folders[family] = tmp_path_factory.mktemp(family)
            config: dict[str, Any] = {"decoder_start_token_id": TARGET_LANGUAGE_ID} if family == "mbart_cc25" else {}
            if family.startswith(WIDE):
                config |= {"d_model": 64, "decoder_ffn_dim": 64}
            tiny_hf_model(family.removeprefix(WIDE), seed=5, config=config).save_pretrained(folders[family])
        key = family, backend, dtype
        if key not in made:
            made[key] = Pipeline.from_pretrained(folders[family], None, backend, dtype=dtype, num_threads=1)
        return made[key]

    return make


def sources(pipeline: Pipeline) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    eos = pipeline.model.config.eos_token_ids[0]
    return [[*torch.randint(3, 44, (length,), generator=generator).tolist(), eos] for length in LENGTHS]


def generate(pipeline: Pipeline, drafter: Any = None, **options: Any) -> list[list[int]]:
    """Token ids of every source; the options of the checkpoint apply, but for beams."""
    drafting = Pipeline(pipeline.model, pipeline.verifier, drafter and (lambda: drafter), 1)
    options = {"num_beams": 1, "max_new_tokens": LIMIT, **options}
    results = drafting.generate_ids(sources(pipeline), batch_tokens=150, **options)
    return [result.token_ids for result in results]


def drafters(pipeline: Pipeline, outputs: list[list[int]]) -> dict[str, Any]:
    right = {tuple(source): ids for source, ids in zip(sources(pipeline), outputs, strict=True)}
    return {
        "oracle": OracleDrafter(right),
        "wrong": WrongDrafter(right),
        "random": RandomDrafter(seed=2, outputs=right),
    }


@pytest.mark.parametrize("family", marked_families())
def test_greedy_equals_the_torch_engine(family: str, load: Callable[..., Pipeline]) -> None:
    """With the checkpoint's processors, in ragged batches whose rows leave and join, drafting or not."""
    expected = generate(load(family, "torch"))
    pipeline = load(family)
    assert generate(pipeline) == expected
    for name, drafter in drafters(pipeline, expected).items():
        assert generate(pipeline, drafter, num_draft_tokens=4) == expected, name


@pytest.mark.parametrize(
    "options", [{}, {"speculative_beams": True, "num_draft_tokens": 3}], ids=["plain", "speculative"]
)
@pytest.mark.parametrize("family", ["marian", pytest.param("bart", marks=pytest.mark.exhaustive), "t5_v1_1"])
def test_beams_equal_the_torch_engine(family: str, options: dict[str, Any], load: Callable[..., Pipeline]) -> None:
    expected = generate(load(family, "torch"), num_beams=3)
    pipeline = load(family)
    drafter = RandomDrafter(
        seed=2, outputs={tuple(ids): out for ids, out in zip(sources(pipeline), expected, strict=True)}
    )
    assert generate(pipeline, drafter if options else None, num_beams=3, **options) == expected


@pytest.mark.parametrize("family", ["marian", "t5_v1_1"])
def test_seeded_samples_equal_the_torch_engine(family: str, load: Callable[..., Pipeline]) -> None:
    sampling = {"do_sample": True, "seed": 3, "temperature": 0.8, "top_k": 20}
    expected = generate(load(family, "torch"), **sampling)
    assert generate(load(family), **sampling) == expected
    drafter = drafters(load(family), expected)["random"]
    assert generate(load(family), drafter, num_draft_tokens=4, **sampling) == expected


def test_processors_equal_the_torch_engine(load: Callable[..., Pipeline]) -> None:
    options = {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "min_new_tokens": 9, "suppress_tokens": [7, 8]}
    expected = generate(load("marian", "torch"), **options)
    drafter = drafters(load("marian"), expected)["random"]
    assert generate(load("marian"), drafter, num_draft_tokens=4, **options) == expected


def test_scores_equal_those_of_the_torch_engine(load: Callable[..., Pipeline]) -> None:
    options = {"num_beams": 1, "max_new_tokens": LIMIT, "output_scores": True, "output_logits": True}
    ours, theirs = (
        load("bart", backend).generate_ids(sources(load("bart", backend)), **options)
        for backend in ("openvino", "torch")
    )
    for one, other in zip(ours, theirs, strict=True):
        assert one.token_ids == other.token_ids
        assert torch.allclose(one.logits, other.logits, atol=1e-3)
        assert one.score == pytest.approx(other.score, abs=1e-3)


def test_the_spec_drafter_on_the_same_engine_changes_nothing(load: Callable[..., Pipeline]) -> None:
    pipeline = load("bart")
    network = Loader("float32", 1).draft_network(tiny_drafter())
    assert generate(pipeline, SpecDrafter(network), num_draft_tokens=4) == generate(pipeline)


@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        *(("marian", dtype) for dtype in ("float32", "bfloat16", "int8")),
        *(pytest.param("t5_v1_1", dtype, marks=pytest.mark.exhaustive) for dtype in ("float32", "bfloat16", "int8")),
        (f"{WIDE}marian", "int8"),
    ],
)
def test_the_feature_drafter_on_the_same_engine_changes_nothing(
    family: str, dtype: str, load: Callable[..., Pipeline], tmp_path: Path
) -> None:
    if dtype == "int8":
        pytest.importorskip("nncf", reason="needs pip install 'spec2seq[openvino]'")
    plain = load(family, dtype=dtype)
    model = plain.model
    changes = OWN_BLOCKS if family.startswith(WIDE) else {}
    network = tiny_feature_drafter(model.network, num_layers=1, **changes)
    save_drafter(tmp_path / "drafter", network, "tiny", VerifierFingerprint.of(model.path, model.config), "A card.")
    pipeline = Pipeline.from_pretrained(model.path, tmp_path / "drafter", "openvino", dtype=dtype, num_threads=1)
    drafter: Any = pipeline.make_drafter and pipeline.make_drafter()
    assert isinstance(drafter.network, OpenVinoFeatureNetwork)
    # in lower precisions a score depends a little on how many are computed with it, which moves the edges of samples
    sampling = {"do_sample": True, "seed": 3, "top_k": 20}
    cases = [(1, {}), (4, {}), (7, {}), *([(4, sampling)] if dtype == "float32" else [])]
    for num_draft_tokens, options in cases:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of blocks longer than in training
            found = generate(plain, drafter, num_draft_tokens=num_draft_tokens, **options)
        assert found == generate(plain, **options), (num_draft_tokens, options)


@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        *((family, dtype) for family in ("marian", "t5_v1_1") for dtype in ("bfloat16", "int8")),
        *(pytest.param("bart", dtype, marks=pytest.mark.exhaustive) for dtype in ("bfloat16", "int8")),
        *((f"{WIDE}{family}", "int8") for family in ("marian", "bart")),
    ],
)
def test_lower_precisions_equal_their_own_greedy_search(family: str, dtype: str, load: Callable[..., Pipeline]) -> None:
    if dtype == "int8":
        pytest.importorskip("nncf", reason="needs pip install 'spec2seq[openvino]'")
    pipeline = load(family, dtype=dtype)
    expected = generate(pipeline)
    assert len({tuple(ids) for ids in expected}) > 1
    for name, drafter in drafters(pipeline, expected).items():
        assert generate(pipeline, drafter, num_draft_tokens=4) == expected, name


def test_samples_of_own_steps_do_not_depend_on_drafts(load: Callable[..., Pipeline]) -> None:
    """What lower precisions cannot promise otherwise: these scores are the same bits, however many come at once."""
    pipeline = load(f"{WIDE}marian", dtype="int8")
    skip_without_own_steps(pipeline.model.config)
    sampling = {"do_sample": True, "seed": 3, "top_p": 0.9}
    expected = generate(pipeline, **sampling)
    for name, drafter in drafters(pipeline, expected).items():
        assert generate(pipeline, drafter, num_draft_tokens=4, **sampling) == expected, name
