"""`model.generate(custom_generate=...)` beside transformers' own search, on model objects that it has loaded."""

from __future__ import annotations

import gc
import warnings
import weakref
from typing import TYPE_CHECKING, Any

import pytest
import torch

from spec2seq import custom_generate
from spec2seq.drafters.small_model import SmallModelDrafter
from spec2seq.errors import (
    CheckpointError,
    InputError,
    NumericsError,
    OptionError,
    UnsupportedModelError,
)
from spec2seq.huggingface.live_models import live_model
from spec2seq.weights import read_model_config
from spec2seq.weights.drafter_folder import save_drafter
from spec2seq.weights.fingerprints import VerifierFingerprint
from tests.chi_square import p_value
from tests.families import FAMILIES, TARGET_LANGUAGE_ID, tiny_hf_model
from tests.text_models import LINES, make_text_model
from tests.tiny_drafters import tiny_drafter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch import Tensor

pytestmark = pytest.mark.filterwarnings("ignore:drafter unused", "ignore:Using the model-agnostic default")
LIMIT = 14
# weights whose outputs depend on the source
SEEDS = {
    "marian": 0, "marian_separate": 5, "bart": 0, "mbart_cc25": 22, "mbart_50": 20, "pegasus": 2, "m2m100": 19,
    "nllb": 3, "t5": 16, "t5_v1_1": 1, "mt5": 1,
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> Iterator[None]:
    from transformers import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    yield
    logging.set_verbosity(level)


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    made = {}
    for name in FAMILIES:
        made[name] = tiny_hf_model(name, SEEDS[name])
        if name == "mbart_cc25":
            made[name].generation_config.decoder_start_token_id = TARGET_LANGUAGE_ID
    return made


@pytest.fixture
def bart(models: dict[str, Any]) -> Any:
    """Without the settings of a checkpoint, so that every test says what it means."""
    from transformers import GenerationConfig

    model = tiny_hf_model("bart", seed=27)
    model.model.decoder.embed_positions.weight.data.mul_(1.5)
    model.generation_config = GenerationConfig(decoder_start_token_id=2, pad_token_id=1, eos_token_id=2)
    return model


def batch(model: Any, side: str = "right") -> dict[str, Tensor]:
    """Four padded sources with their mask."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(4, 40, (4, 9), generator=generator)
    mask = torch.ones_like(ids)
    for row, length in enumerate((9, 5, 3, 7)):
        real = slice(length) if side == "right" else slice(9 - length, None)
        mask[row] = 0
        mask[row, real] = 1
    ids[mask.bool() & (mask.flip(1).cumsum(1).flip(1) == 1)] = model.generation_config.eos_token_id
    return {"input_ids": ids.masked_fill(mask == 0, model.config.pad_token_id), "attention_mask": mask}


def both(model: Any, inputs: dict[str, Any], drafter: Any = "prompt_lookup", **options: Any) -> tuple[Any, Any]:
    """transformers' output and ours."""
    options = {"max_new_tokens": LIMIT, **options}
    if "max_length" in options:
        del options["max_new_tokens"]
    return model.generate(**inputs, **options), model.generate(
        **inputs, custom_generate=custom_generate, drafter=drafter, **options
    )


# ---------------------------------------------------------------- every family


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("has_mask", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_equals_transformers(models: dict[str, Any], family: str, has_mask: bool, num_beams: int) -> None:
    for side in ("right", "left"):
        inputs = batch(models[family], side)
        if not has_mask:
            del inputs["attention_mask"]
        expected, got = both(models[family], inputs, num_beams=num_beams)
        assert got.tolist() == expected.tolist()
        assert got.dtype == torch.long
        assert len({tuple(row) for row in got.tolist()}) > 2


@pytest.mark.parametrize("family", FAMILIES)
def test_the_checkpoints_own_settings(models: dict[str, Any], family: str) -> None:
    inputs = batch(models[family])
    expected, got = both(models[family], inputs, max_new_tokens=None)
    assert got.tolist() == expected.tolist()


def test_other_drafters_change_nothing(models: dict[str, Any]) -> None:
    model, inputs = models["marian"], batch(models["marian"])
    calls: list[int] = []

    def make() -> SmallModelDrafter:
        calls.append(1)
        return SmallModelDrafter(live_model(model).pipeline(None).verifier)

    for drafter in (None, make, "prompt_lookup"):
        for num_draft_tokens in (1, 5, "auto"):
            expected, got = both(model, inputs, drafter, num_beams=1)
            ours = model.generate(
                **inputs, custom_generate=custom_generate, drafter=drafter, num_draft_tokens=num_draft_tokens,
                num_beams=1, max_new_tokens=LIMIT,
            )  # fmt: skip
            assert ours.tolist() == got.tolist() == expected.tolist()
    assert len(calls) == 6, "a new drafter for every call"


def test_a_drafter_in_a_folder_is_loaded_once(
    models: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = models["marian"]
    tiny_hf_model("marian", seed=6).save_pretrained(tmp_path)
    loaded: list[str] = []
    monkeypatch.setattr("spec2seq.weights.load_model", _counting("spec2seq.weights.loading", loaded), raising=False)
    for _ in range(2):
        expected, got = both(model, batch(model), str(tmp_path), num_beams=1)
        assert got.tolist() == expected.tolist()
    assert loaded == [str(tmp_path)]
    with pytest.raises(OptionError, match="drafter='prompt_lokup' is neither a known drafter nor a folder"):
        both(model, batch(model), "prompt_lokup")
    with pytest.raises(OptionError, match="drafter is a int; give a name, a folder, or a function"):
        both(model, batch(model), 3)


def test_a_trained_drafter_for_a_model_without_a_folder(tmp_path: Path) -> None:
    """The drafter's card is compared with the model object itself: it is the same, until it is trained on."""
    model = tiny_hf_model("bart", seed=5)
    model.save_pretrained(tmp_path / "bart")
    folder = tmp_path / "bart"
    made_for = VerifierFingerprint.of(folder, read_model_config(folder)[0])
    save_drafter(tmp_path / "drafter", tiny_drafter(), "tiny-bart", made_for, "# A drafter\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        expected, got = both(model, batch(model), str(tmp_path / "drafter"), num_beams=1)
    assert got.tolist() == expected.tolist()
    other = tiny_hf_model("bart", seed=6)
    with pytest.warns(UserWarning, match="was made for weights"):
        expected, got = both(other, batch(other), str(tmp_path / "drafter"), num_beams=1)
    assert got.tolist() == expected.tolist()


def _counting(module: str, loaded: list[str]) -> Any:
    from importlib import import_module

    load = import_module(module).load_model

    def load_model(name: str, dtype: str = "float32") -> Any:
        loaded.append(name)
        return load(name, dtype=dtype)

    return load_model


# ---------------------------------------------------------------- every option

OPTIONS: dict[str, dict[str, Any]] = {
    "max_length": {"max_length": 9},
    "min_new_tokens": {"min_new_tokens": 10, "eos_token_id": [7, 16]},
    "min_length": {"min_length": 12, "eos_token_id": [7, 16]},
    "several_eos": {"eos_token_id": [16, 8, 31]},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "repetition_penalty": {"repetition_penalty": 1.6},
    "bad_words_ids": {"bad_words_ids": [[16], [8, 21], [2]]},
    "suppress_tokens": {"suppress_tokens": [8, 16]},
    "forced_bos_token_id": {"forced_bos_token_id": 9},
    "forced_eos_token_id": {"forced_eos_token_id": 2, "max_new_tokens": 6},
    "renormalize_logits": {"renormalize_logits": True, "suppress_tokens": [8]},
    "no_end": {"eos_token_id": None},
    "pad": {"pad_token_id": 0, "eos_token_id": [16, 8]},
    "no_cache": {"use_cache": False},
}
BEAM_OPTIONS: dict[str, dict[str, Any]] = {
    "early": {"early_stopping": True},
    "never": {"early_stopping": "never", "length_penalty": 1.5},
    "best_two": {"num_return_sequences": 2},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option(bart: Any, name: str) -> None:
    inputs = batch(bart)
    for num_beams in (1, 3):
        expected, got = both(bart, inputs, num_beams=num_beams, **OPTIONS[name])
        assert got.tolist() == expected.tolist()


@pytest.mark.parametrize("name", BEAM_OPTIONS)
def test_every_option_of_beams(bart: Any, name: str) -> None:
    expected, got = both(bart, batch(bart), num_beams=3, **BEAM_OPTIONS[name])
    assert got.tolist() == expected.tolist()


@pytest.mark.parametrize("num_beams", [1, 3])
def test_given_beginnings(bart: Any, num_beams: int) -> None:
    prompt = torch.tensor([[2, 5, 6], [2, 9, 9], [2, 30, 8], [2, 7, 6]])
    for options in ({}, {"max_length": 10}, {"min_new_tokens": 8}, {"forced_bos_token_id": 9}):
        inputs = {**batch(bart), "decoder_input_ids": prompt}
        expected, got = both(bart, inputs, num_beams=num_beams, **options)
        assert got.tolist() == expected.tolist()
        assert got[:, :3].tolist() == prompt.tolist()
        inputs["decoder_attention_mask"] = torch.ones_like(prompt)
        assert both(bart, inputs, num_beams=num_beams, **options)[1].tolist() == got.tolist()


@pytest.mark.parametrize("kind", ["encoder_outputs", "inputs_embeds"])
def test_sources_without_ids(bart: Any, kind: str) -> None:
    inputs = batch(bart)
    mask = {"attention_mask": inputs["attention_mask"]}
    given: Any = bart.get_input_embeddings()(inputs["input_ids"])
    if kind == "encoder_outputs":
        given = bart.get_encoder()(**inputs)
    expected, got = both(bart, {kind: given, **mask}, None)
    assert got.tolist() == expected.tolist() == both(bart, inputs)[0].tolist()
    with pytest.raises(InputError, match="a drafter reads the source ids, and this call has none"):
        both(bart, {kind: given, **mask})


def test_holes_in_a_mask(bart: Any) -> None:
    inputs = batch(bart)
    inputs["attention_mask"][0, 3:5] = 0
    expected, got = both(bart, inputs)
    assert got.tolist() == expected.tolist()
    inputs["attention_mask"][2] = 0
    with pytest.raises(InputError, match="attention_mask masks the whole of row 2"):
        both(bart, inputs)


def test_relaxed_acceptance(bart: Any) -> None:
    inputs, options = (
        batch(bart),
        {"max_new_tokens": LIMIT, "custom_generate": custom_generate, "drafter": "prompt_lookup"},
    )
    exact = bart.generate(**inputs, **options)
    assert bart.generate(**inputs, **options, top_beta=50, tau=1e9).tolist() != exact.tolist()
    assert bart.generate(**inputs, **options, top_beta=3, tau=0.0).tolist() == exact.tolist()
    with pytest.raises(OptionError, match=r"tau=1\.0 without top_beta says nothing"):
        bart.generate(**inputs, **options, tau=1.0)


# ---------------------------------------------------------------- what comes back


def test_scores_and_logits(bart: Any) -> None:
    for inputs, options in (
        (batch(bart), {}),
        (batch(bart), {"forced_bos_token_id": 9, "repetition_penalty": 1.4, "bad_words_ids": [[16]]}),
    ):
        asked = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True, **options}
        expected, got = both(bart, inputs, **asked)
        assert type(got) is type(expected)
        assert got.sequences.tolist() == expected.sequences.tolist()
        assert len(got.scores) == len(got.logits) == len(expected.scores) == got.sequences.shape[1] - 1
        for row, ids in enumerate(got.sequences[:, 1:].tolist()):
            length = ids.index(2) + 1 if 2 in ids else len(ids)
            for step in range(length):
                torch.testing.assert_close(got.scores[step][row], expected.scores[step][row], rtol=1e-4, atol=1e-4)
                torch.testing.assert_close(got.logits[step][row], expected.logits[step][row], rtol=1e-4, atol=1e-4)
            assert all(not got.scores[step][row].any() for step in range(length, len(ids)))
    plain = bart.generate(
        **batch(bart), custom_generate=custom_generate, return_dict_in_generate=True, max_new_tokens=4
    )
    assert plain.scores is plain.logits is plain.encoder_hidden_states is None


def test_scores_of_beams(bart: Any) -> None:
    asked = {"return_dict_in_generate": True, "output_scores": True, "num_beams": 3, "num_return_sequences": 2}
    expected, got = both(bart, batch(bart), length_penalty=0.5, **asked)
    assert type(got) is type(expected)
    assert got.sequences.tolist() == expected.sequences.tolist()
    torch.testing.assert_close(got.sequences_scores, expected.sequences_scores, rtol=1e-4, atol=1e-4)
    assert both(bart, batch(bart), num_beams=2, return_dict_in_generate=True)[1].sequences_scores is None


@pytest.mark.parametrize("drafter", [None, "prompt_lookup"])
def test_samples_follow_the_same_law(bart: Any, drafter: str | None) -> None:
    """Two tokens from the five best of each step: counts against the enumerated law, transformers' own as a control."""
    options = {"do_sample": True, "top_k": 5, "temperature": 1.5, "max_new_tokens": 2, "num_return_sequences": 1500}
    source = torch.tensor([[5, 6, 7, 8, 5, 6, 2]])
    law = _law_of_two_tokens(bart, source, 1.5, 5)
    torch.manual_seed(1)
    ours = bart.generate(source, custom_generate=custom_generate, drafter=drafter, **options)
    theirs = bart.generate(source, **options)
    assert ours.shape == (1500, 3)
    for samples in (ours, theirs):
        assert p_value(_counts(samples, law.shape[0]), law.flatten()) > 0.001
    flat = _law_of_two_tokens(bart, source, 3.0, 5)
    assert p_value(_counts(ours, law.shape[0]), flat.flatten()) < 1e-6, "the test can tell another temperature"


def _law_of_two_tokens(model: Any, source: Tensor, temperature: float, top_k: int) -> Tensor:
    """Probability [V, V] of every pair of tokens; behind an EOS comes the pad."""

    def law(prefixes: Tensor) -> Tensor:
        logits = model(input_ids=source.expand(len(prefixes), -1), decoder_input_ids=prefixes).logits[:, -1]
        best = logits.topk(top_k).values[:, -1:]
        return (logits.masked_fill(logits < best, -torch.inf) / temperature).softmax(-1).detach()

    size = model.config.vocab_size
    first = law(torch.tensor([[2]]))[0]
    second = law(torch.stack([torch.full((size,), 2), torch.arange(size)], dim=1))
    second[2] = torch.nn.functional.one_hot(torch.tensor(1), size).float()
    return first[:, None] * second


def _counts(samples: Tensor, size: int) -> Tensor:
    return (samples[:, 1] * size + samples[:, 2]).bincount(minlength=size * size)


def test_samples_are_fixed_by_torchs_seed(bart: Any) -> None:
    inputs = batch(bart)
    options = {"do_sample": True, "top_k": 0, "top_p": 0.9, "min_p": 0.01, "num_return_sequences": 2}

    def draw(seed: int) -> list[list[int]]:
        torch.manual_seed(seed)
        rows = bart.generate(
            **inputs, custom_generate=custom_generate, drafter="prompt_lookup", max_new_tokens=6, **options
        )
        return list(rows.tolist())

    assert draw(1) == draw(1) != draw(2)
    assert len(draw(1)) == 8
    assert draw(1)[0] != draw(1)[1]


def test_a_streamer_gets_prompt_and_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, TextStreamer

    make_text_model("marian", tmp_path / "marian")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "marian")
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "marian").eval()
    inputs = tokenizer(LINES[0], return_tensors="pt")
    streamer = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    ids = model.generate(
        **inputs, custom_generate=custom_generate, drafter="prompt_lookup", token_streamer=streamer, num_beams=1,
        max_new_tokens=LIMIT,
    )  # fmt: skip
    text = tokenizer.decode(ids[0], skip_special_tokens=True)
    assert capsys.readouterr().out == text + "\n"
    assert ids.tolist() == model.generate(**inputs, num_beams=1, max_new_tokens=LIMIT).tolist()
    with pytest.raises(OptionError, match="streamer does not go with num_beams=2"):
        model.generate(**inputs, custom_generate=custom_generate, token_streamer=streamer, num_beams=2)
    two = tokenizer(LINES[:2], return_tensors="pt", padding=True)
    with pytest.raises(InputError, match="a streamer takes one input in one piece, and this call has 2 inputs"):
        model.generate(**two, custom_generate=custom_generate, token_streamer=streamer, num_beams=1)


# ---------------------------------------------------------------- what is refused


def _processor() -> Any:
    from transformers import LogitsProcessor

    class Shouting(LogitsProcessor):
        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            return scores

    return Shouting()


def _criterion() -> Any:
    from transformers import StoppingCriteria

    class Bored(StoppingCriteria):
        def __call__(self, input_ids: Tensor, scores: Tensor, **_: Any) -> Tensor:
            return torch.zeros(len(input_ids), dtype=torch.bool)

    return Bored()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"output_attentions": True}, "output_attentions is not supported by custom_generate"),
        ({"output_hidden_states": True}, "output_hidden_states is not supported by custom_generate"),
        ({"logits_processor": "own"}, "logits processor Shouting is not supported by custom_generate"),
        ({"stopping_criteria": "own"}, "stopping criterion Bored is not supported by custom_generate"),
        ({"max_time": 3.0}, "max_time=3.0 is not supported by custom_generate"),
        ({"do_sample": True, "typical_p": 0.5}, "logits processor TypicalLogitsWarper is not supported"),
        ({"encoder_repetition_penalty": 1.5}, "encoder_repetition_penalty=1.5 is not supported"),
        ({"exponential_decay_length_penalty": (3, 1.1)}, r"exponential_decay_length_penalty=\(3, 1.1\) is not"),
        ({"begin_suppress_tokens": [4]}, r"begin_suppress_tokens=\[4\] is not supported"),
        ({"sequence_bias": [[[5], 2.0]]}, "sequence_bias="),
        ({"prompt_lookup_num_tokens": 4}, "prompt_lookup_num_tokens=4 is not supported"),
        ({"num_beams": 2, "return_dict_in_generate": True, "output_logits": True}, "output_logits=True is not"),
        ({"num_beams": 2, "do_sample": True}, "do_sample=True .* contradicts num_beams=2"),
        ({"max_new_tokens": 500}, "max_new_tokens=500 exceeds the 128 positions of the model"),
        ({"prefix_allowed_tokens_fn": lambda row, ids: [5]}, "logits processor PrefixConstrainedLogitsProcessor"),
    ],
)
def test_what_cannot_be_honoured_is_named(bart: Any, options: dict[str, Any], message: str) -> None:
    if options.get("logits_processor"):
        options = {"logits_processor": [_processor()]}
    if options.get("stopping_criteria"):
        options = {"stopping_criteria": [_criterion()]}
    with pytest.raises(OptionError, match=message):
        bart.generate(**batch(bart), custom_generate=custom_generate, **{"max_new_tokens": 5, **options})


def test_processors_of_the_caller(bart: Any) -> None:
    """Those that this package has are taken in their usual place, with what they themselves say."""
    from transformers import MinLengthLogitsProcessor, NoRepeatNGramLogitsProcessor, RepetitionPenaltyLogitsProcessor
    from transformers.generation import ForcedEOSTokenLogitsProcessor, MaxLengthCriteria, TemperatureLogitsWarper

    inputs = batch(bart)
    expected, got = both(bart, inputs, repetition_penalty=1.1, logits_processor=[RepetitionPenaltyLogitsProcessor(1.7)])
    assert got.tolist() == expected.tolist() == both(bart, inputs, repetition_penalty=1.7)[0].tolist()
    expected, got = both(bart, inputs, stopping_criteria=[MaxLengthCriteria(6)])
    assert got.tolist() == expected.tolist()
    assert got.shape[1] == 6
    late = [NoRepeatNGramLogitsProcessor(2)]
    with pytest.raises(OptionError, match="NoRepeatNGramLogitsProcessor comes after SuppressTokensLogitsProcessor"):
        both(bart, inputs, suppress_tokens=[8], logits_processor=late)
    for processor, message in (
        (RepetitionPenaltyLogitsProcessor(1.2, prompt_ignore_length=1), "prompt_ignore_length=1 is not supported"),
        (MinLengthLogitsProcessor(5, eos_token_id=7), r"eos_token_id=\[7\] is not supported; this call has \[2\]"),
        (ForcedEOSTokenLogitsProcessor(4, 2), "max_length=4 is not supported; this call has 15"),
        (TemperatureLogitsWarper(2.0), "TemperatureLogitsWarper is not supported without do_sample=True"),
    ):
        with pytest.raises(OptionError, match=message):
            both(bart, inputs, logits_processor=[processor])


def test_what_the_model_must_be(bart: Any) -> None:
    inputs = {**batch(bart), "custom_generate": custom_generate, "max_new_tokens": 4}
    with pytest.raises(OptionError, match=r"the model is in training mode.*call model.eval\(\) first"):
        bart.train().generate(**inputs)
    bart.eval()
    prompt = torch.tensor([[2, 5]] * 4)
    mask = torch.tensor([[1, 1]] * 3 + [[0, 1]])
    with pytest.raises(OptionError, match="decoder_attention_mask with zeros is not supported"):
        bart.generate(**inputs, decoder_input_ids=prompt, decoder_attention_mask=mask)
    first = bart.generate(**batch(bart), max_new_tokens=4, return_dict_in_generate=True)
    with pytest.raises(OptionError, match="a cache that is filled already is not supported"):
        bart.generate(**inputs, cache=first.cache)
    bart.model.decoder.layers[0].fc1.weight.data[:] = torch.nan
    with pytest.raises(NumericsError, match="row 0: the model produced NaN"):
        bart.generate(**inputs)
    del bart.model.decoder.layers[0].fc1.bias
    with pytest.raises(CheckpointError, match=r"lack decoder\.layers\.0\.fc1\.bias"):
        bart.generate(**inputs)


def test_another_kind_of_model() -> None:
    from transformers import BlenderbotSmallConfig, BlenderbotSmallForConditionalGeneration

    config = BlenderbotSmallConfig(
        vocab_size=20, d_model=8, encoder_layers=1, decoder_layers=1, encoder_attention_heads=1,
        decoder_attention_heads=1, encoder_ffn_dim=8, decoder_ffn_dim=8, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = BlenderbotSmallForConditionalGeneration(config).eval()
    with pytest.raises(UnsupportedModelError, match="model of type 'blenderbot-small', which is not supported"):
        model.generate(torch.tensor([[4, 5, 2]]), custom_generate=custom_generate, max_new_tokens=3)


# ---------------------------------------------------------------- one memory for both


def test_weights_are_not_copied(models: dict[str, Any]) -> None:
    for family in FAMILIES:
        model = tiny_hf_model(family, seed=9)
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        live = live_model(model)
        network = live.pipeline(None).verifier.network
        ours = {parameter.untyped_storage().data_ptr() for parameter in network.parameters()}
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, before[name]), name
            is_table = "embed_positions" in name and not model.get_parameter(name).requires_grad
            assert is_table or tensor.untyped_storage().data_ptr() in ours, name
            assert tensor.is_contiguous()
        assert live_model(model) is live


@pytest.mark.parametrize("family", ["bart", "t5_v1_1", "marian_separate"])
def test_training_afterwards_is_seen(family: str) -> None:
    model = tiny_hf_model(family, seed=9)
    inputs = batch(model)
    with torch.inference_mode():
        before, got = both(model, inputs, num_beams=1)
    assert got.tolist() == before.tolist()
    live = live_model(model)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.05)
    for _ in range(3):
        loss = model(**inputs, labels=torch.randint(4, 40, (4, 6))).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    after, got = both(model, inputs, num_beams=1)
    assert got.tolist() == after.tolist() != before.tolist()
    assert live_model(model) is live, "and nothing was loaded anew"


def test_a_model_that_moved_is_read_again(models: dict[str, Any], tmp_path: Path) -> None:
    model = tiny_hf_model("marian", seed=9)
    inputs = batch(model)
    first = live_model(model)
    expected, _ = both(model, inputs, num_beams=1)
    for change in (lambda: model.to(torch.float64), lambda: model.resize_token_embeddings(55), lambda: _reload(model)):
        change()
        expected, got = both(model, inputs, num_beams=1)
        assert got.tolist() == expected.tolist()
        assert live_model(model) is not first
        first = live_model(model)


def _reload(model: Any) -> None:
    state = {name: tensor.clone() for name, tensor in tiny_hf_model("marian", seed=10).state_dict().items()}
    layers = {name: tensor.double() for name, tensor in state.items() if ".layers." in name}
    model.load_state_dict(layers, strict=False, assign=True)


def test_saving_and_copying_a_model_in_use(tmp_path: Path) -> None:
    import copy

    from transformers import AutoModelForSeq2SeqLM

    model = tiny_hf_model("bart", seed=9)
    inputs = batch(model)
    expected, _ = both(model, inputs, num_beams=1)
    model.save_pretrained(tmp_path)
    saved = AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    for other in (saved, copy.deepcopy(model)):
        theirs, ours = both(other, inputs, num_beams=1)
        assert ours.tolist() == theirs.tolist() == expected.tolist()
        assert live_model(other) is not live_model(model)


def test_a_model_that_is_gone_leaves_nothing(models: dict[str, Any]) -> None:
    model = tiny_hf_model("t5", seed=9)
    network = weakref.ref(live_model(model).pipeline(None).verifier.network)
    del model
    gc.collect()
    assert network() is None


def test_half_precision_copies_what_differs_in_type() -> None:
    model = tiny_hf_model("t5", seed=9).half()
    name = "decoder.block.0.layer.2.DenseReluDense.wo.weight"
    network = live_model(model).pipeline(None).verifier.network
    ours = network.decoder.layers[0].ffn.output_weight
    assert (ours.dtype, model.get_parameter(name).dtype) == (torch.float32, torch.float16)
    model.get_parameter(name).data.add_(1.0)
    live_model(model).pipeline(None)
    assert torch.equal(ours, model.get_parameter(name).float())


def test_bfloat16(models: dict[str, Any]) -> None:
    model = tiny_hf_model("bart", seed=9).to(torch.bfloat16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ids = model.generate(**batch(model), custom_generate=custom_generate, max_new_tokens=6, num_beams=1)
    assert ids.shape[0] == 4
    assert live_model(model).pipeline(None).verifier.dtype == torch.bfloat16


def test_weights_that_are_nowhere() -> None:
    model = tiny_hf_model("bart", seed=9)
    model.model.decoder.layers[0].to("meta")
    with pytest.raises(UnsupportedModelError, match="are on cpu, meta; load it on one device"):
        live_model(model)
    whole = tiny_hf_model("bart", seed=9)
    whole.model.shared.weight.data = whole.model.shared.weight.data.to(torch.float8_e4m3fn)
    with pytest.raises(UnsupportedModelError, match=r"are of type .*float8_e4m3fn.*; load it as one of float32"):
        live_model(whole)
