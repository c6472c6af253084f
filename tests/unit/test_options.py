"""Options: what is allowed, who counts when several say one, and what becomes of a checkpoint's other settings."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from transformers import GenerationConfig, MarianConfig, MarianMTModel

from spec2seq.config import ModelConfig
from spec2seq.errors import OptionError
from spec2seq.generation_options import OPTION_NAMES, GenerationOptions, option_info
from spec2seq.option_resolution import CHECKPOINT_SETTINGS, resolve_options

MODEL = ModelConfig(
    "marian", 50, 50, 16, 2, 2, 2, 2, 8, 32, 32, "relu", "sinusoidal",
    pad_token_id=1, decoder_start_token_id=0, eos_token_ids=(2,), max_target_positions=64,
)  # fmt: skip
UNLIMITED = replace(MODEL, max_target_positions=None)


def resolve(checkpoint=None, options=None, model=MODEL, **arguments):
    return resolve_options(checkpoint or {}, model, options, arguments)


# ---------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_new_tokens", 0), ("max_new_tokens", -3), ("max_new_tokens", 2.5), ("max_new_tokens", "7"),
        ("max_new_tokens", True), ("max_length", 1), ("min_new_tokens", -1), ("min_length", -1), ("num_beams", 0),
        ("num_beams", False), ("num_return_sequences", 0), ("length_penalty", float("nan")),
        ("length_penalty", float("inf")), ("length_penalty", "1.0"), ("length_penalty", True),
        ("early_stopping", "always"), ("early_stopping", 1), ("renormalize_logits", "yes"), ("renormalize_logits", 1),
        ("no_repeat_ngram_size", -1), ("repetition_penalty", 0), ("repetition_penalty", -1.5), ("bad_words_ids", []),
        ("bad_words_ids", [[]]), ("bad_words_ids", [[3], []]), ("bad_words_ids", [3]), ("bad_words_ids", ["ab"]),
        ("bad_words_ids", [[-1]]), ("suppress_tokens", "ab"), ("suppress_tokens", [1.5]), ("suppress_tokens", -2),
        ("forced_bos_token_id", -1), ("forced_bos_token_id", [3, "x"]), ("forced_eos_token_id", 1.0),
        ("eos_token_id", [2, -1]), ("eos_token_id", "</s>"), ("num_draft_tokens", -1), ("num_draft_tokens", "many"),
        ("num_draft_tokens", 2.0), ("top_beta", 0), ("tau", -0.1), ("top_p", 1.5), ("min_p", -0.1),
        ("guard_eos", 0), ("output_scores", "no"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_with_name_value_and_range(name, value):
    for say in (GenerationOptions, GenerationOptions.from_mapping):
        with pytest.raises(OptionError) as caught:
            say(**{name: value}) if say is GenerationOptions else say({name: value})
        assert f"{name}={value!r}" in str(caught.value)
        assert option_info(name).allowed in str(caught.value)


def test_values_are_stored_in_one_form():
    options = GenerationOptions(
        max_new_tokens=torch.tensor(7), length_penalty=2, bad_words_ids=[[3, 4], (5,)], eos_token_id=2,
        suppress_tokens=torch.tensor([6]), forced_bos_token_id=[3, 4], early_stopping="never", num_draft_tokens="auto",
    )  # fmt: skip
    assert (options.max_new_tokens, type(options.max_new_tokens)) == (7, int)
    assert (options.length_penalty, type(options.length_penalty)) == (2.0, float)
    assert options.bad_words_ids == ((3, 4), (5,))
    assert options.suppress_tokens == (6,)
    assert options.eos_token_id == (2,)
    assert options.forced_bos_token_id == (3, 4)
    assert hash(options) == hash(replace(options))


def test_every_option_has_help_and_an_allowed_default():
    for name in OPTION_NAMES:
        info = option_info(name)
        assert info.help.endswith(".")
        assert info.allowed
        if info.default is not None:
            info.checked(name, info.default)


def test_an_unknown_name_is_refused_with_similar_ones():
    with pytest.raises(OptionError, match=r"unknown option num_beam=4; did you mean num_beams"):
        resolve(num_beam=4)
    with pytest.raises(OptionError, match=r"unknown option zork=None; the options are max_new_tokens, "):
        resolve(zork=None)
    with pytest.raises(OptionError, match=r"unknown option max_token=3; did you mean max_new_tokens"):
        GenerationOptions.from_mapping({"max_token": 3})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("eos_token_id", 50), ("eos_token_id", [2, 99]), ("suppress_tokens", [3, 50]), ("bad_words_ids", [[1, 50]]),
        ("forced_eos_token_id", 50), ("forced_bos_token_id", 50), ("forced_bos_token_id", [3, 50]),
    ],
)  # fmt: skip
def test_ids_outside_the_vocabulary_are_refused(name, value):
    with pytest.raises(OptionError, match=rf"{name} holds (50|99), but the target vocabulary has 50 tokens"):
        resolve(**{name: value})
    with pytest.raises(OptionError, match=name):
        resolve({name: value})


# ---------------------------------------------------------------- precedence


def test_arguments_before_options_before_checkpoint_before_defaults():
    checkpoint = {"num_beams": 4, "length_penalty": 0.8, "no_repeat_ngram_size": 3}
    options = GenerationOptions(num_beams=3, length_penalty=0.9)
    resolved = resolve(checkpoint, options, num_beams=2, min_length=None)
    assert (resolved.num_beams, resolved.length_penalty, resolved.no_repeat_ngram_size) == (2, 0.9, 3)
    assert (resolved.min_length, resolved.repetition_penalty, resolved.early_stopping) == (0, 1.0, False)
    assert resolve(checkpoint).num_beams == 4


def test_false_and_zero_are_said():
    checkpoint = {"renormalize_logits": True, "no_repeat_ngram_size": 3, "min_length": 9, "early_stopping": True}
    resolved = resolve(checkpoint, renormalize_logits=False, no_repeat_ngram_size=0, min_length=0, num_beams=2)
    assert not resolved.renormalize_logits
    assert (resolved.no_repeat_ngram_size, resolved.min_length) == (0, 0)
    assert resolved.early_stopping is True


def test_an_empty_list_turns_off_what_the_checkpoint_says():
    checkpoint = {
        "eos_token_id": [2, 3], "forced_eos_token_id": 2, "forced_bos_token_id": 4, "suppress_tokens": [7],
    }  # fmt: skip
    assert resolve(checkpoint).eos_token_ids == (2, 3)
    assert resolve(checkpoint).forced_eos_token_ids == (2,)
    assert resolve(checkpoint).forced_bos_token_id == 4
    assert resolve(checkpoint).suppress_tokens == (7,)
    off = resolve(checkpoint, eos_token_id=[], forced_eos_token_id=[], forced_bos_token_id=[], suppress_tokens=[])
    assert (off.eos_token_ids, off.forced_eos_token_ids, off.forced_bos_token_id, off.suppress_tokens) == (
        (),
        (),
        None,
        (),
    )


def test_ends_come_from_the_model_where_nobody_says_them():
    assert resolve().eos_token_ids == (2,)
    assert resolve({"eos_token_id": 5}).eos_token_ids == (5,)
    assert resolve({"eos_token_id": 5}, eos_token_id=[6, 7, 6]).eos_token_ids == (6, 7)


def test_bad_words_that_are_just_an_end_are_dropped():
    assert resolve({"bad_words_ids": [[2], [1], [2, 3]]}).bad_words_ids == ((1,), (2, 3))
    assert resolve({"bad_words_ids": [[2]]}).bad_words_ids == ()
    with pytest.raises(OptionError, match="min_new_tokens"):
        resolve(bad_words_ids=[[2]])


# ---------------------------------------------------------------- lengths


@pytest.mark.parametrize(
    ("checkpoint", "arguments", "budget"),
    [
        ({}, {"max_new_tokens": 7}, 7),
        ({}, {"max_length": 7}, 6),
        ({}, {"max_new_tokens": 7, "max_length": 4}, 7),
        ({"max_length": 9}, {}, 8),
        ({"max_new_tokens": 9}, {}, 9),
        ({"max_new_tokens": 9, "max_length": 4}, {}, 9),
        ({"max_length": 9}, {"max_new_tokens": 7}, 7),
        ({"max_length": 9}, {"max_length": 7}, 6),
        ({"max_new_tokens": 9}, {"max_new_tokens": 7}, 7),
    ],
)
def test_lengths_as_in_transformers(checkpoint, arguments, budget):
    assert resolve(checkpoint, **arguments).budget() == budget
    model = MarianMTModel(
        MarianConfig(
            vocab_size=50, d_model=8, encoder_layers=1, decoder_layers=1, encoder_attention_heads=1,
            decoder_attention_heads=1, encoder_ffn_dim=8, decoder_ffn_dim=8, max_position_embeddings=64,
            pad_token_id=1, eos_token_id=None, decoder_start_token_id=0, forced_eos_token_id=None,
        )
    )  # fmt: skip
    model.generation_config.update(**checkpoint)
    assert model.generate(torch.tensor([[5, 6]]), **arguments).shape[1] == budget + 1


def test_whoever_speaks_first_sets_the_length_whatever_its_name():
    assert resolve({"max_new_tokens": 9}, max_length=7).budget() == 6
    assert resolve({"max_new_tokens": 9}, GenerationOptions(max_length=7)).budget() == 6
    assert resolve({}, GenerationOptions(max_new_tokens=9), max_length=7).budget() == 6
    resolved = resolve({"min_new_tokens": 9}, min_length=7)
    assert (resolved.min_new_tokens, resolved.min_length) == (0, 7)
    resolved = resolve({"min_length": 9}, min_new_tokens=7, min_length=8)
    assert (resolved.min_new_tokens, resolved.min_length) == (7, 0)


def test_without_a_length_256_new_tokens_cut_to_the_positions():
    assert resolve(model=UNLIMITED).budget() == 256
    assert resolve().budget() == resolve().max_new_tokens == 63
    assert resolve().budget(prompt_length=20) == 44


def test_a_length_beyond_the_positions_is_an_error_when_the_user_says_it():
    # 64 positions: the 65th token is generated but never fed
    assert resolve(max_new_tokens=64).budget() == 64
    assert resolve(max_length=65).budget() == 64
    with pytest.raises(OptionError, match=r"max_new_tokens=65 exceeds the 64 positions .* use at most"):
        resolve(max_new_tokens=65)
    with pytest.raises(OptionError, match=r"max_length=66 exceeds the 64 positions .* use at most 65"):
        resolve(options=GenerationOptions(max_length=66))
    assert resolve({"max_length": 512}).budget() == 64
    assert resolve({"max_new_tokens": 512}).budget() == 64
    assert resolve(model=UNLIMITED, max_new_tokens=5000).budget() == 5000


def test_a_target_prefix_takes_from_the_length():
    assert resolve(max_length=10).budget(prompt_length=4) == 6
    assert resolve(max_new_tokens=10).budget(prompt_length=4) == 10
    with pytest.raises(OptionError, match=r"prompt of 10 tokens leaves no room"):
        resolve(max_length=10).budget(prompt_length=10)
    assert resolve({"max_new_tokens": 60}).budget(prompt_length=20) == 45
    assert resolve({"max_length": 512}).budget(prompt_length=20) == 45
    assert resolve(max_new_tokens=45).budget(prompt_length=20) == 45
    with pytest.raises(OptionError, match=r"max_new_tokens=46 after a decoder prompt of 20 tokens .* at most 45"):
        resolve(max_new_tokens=46).budget(prompt_length=20)
    with pytest.raises(OptionError, match=r"prompt of 65 tokens leaves no room in the 64 positions .* shorten it"):
        resolve(max_new_tokens=1).budget(prompt_length=65)


def test_a_minimum_above_the_maximum_is_an_error_when_the_user_says_both():
    with pytest.raises(OptionError, match="at least 9 new tokens are asked for and at most 8"):
        resolve(min_new_tokens=9, max_new_tokens=8)
    with pytest.raises(OptionError, match="at least 9 new tokens are asked for and at most 8"):
        resolve(min_length=10, max_length=9)
    assert resolve(min_length=9, max_new_tokens=8).min_length == 9
    assert resolve({"min_length": 56, "max_length": 142}, model=UNLIMITED, max_new_tokens=8).min_length == 56


# ---------------------------------------------------------------- combinations


def test_relaxed_acceptance():
    assert (resolve().top_beta, resolve().tau) == (1, 0.0)
    assert (resolve(top_beta=3).top_beta, resolve(top_beta=3).tau) == (3, 1.0)
    assert resolve(options=GenerationOptions(top_beta=3), tau=0.5).tau == 0.5
    assert resolve(top_beta=1, tau=3.0) == resolve()
    with pytest.raises(OptionError, match=r"tau=1.0 without top_beta"):
        resolve(tau=1.0)
    with pytest.raises(OptionError, match=r"top_beta=3 .* num_beams=4; pass num_beams=1"):
        resolve({"num_beams": 4}, top_beta=3)


def test_several_outputs_need_as_many_beams():
    assert resolve(num_beams=3, num_return_sequences=3).num_return_sequences == 3
    with pytest.raises(OptionError, match=r"num_return_sequences=2 .* num_beams=1; pass do_sample=True, num_beams=2"):
        resolve(num_return_sequences=2)
    with pytest.raises(OptionError, match=r"num_return_sequences=4 .* num_beams=3; pass .*num_beams=4"):
        resolve(num_beams=3, num_return_sequences=4)


def test_a_token_cannot_be_forced_and_suppressed():
    with pytest.raises(OptionError, match="forced_bos_token_id"):
        resolve({"forced_bos_token_id": 5}, suppress_tokens=[5])
    with pytest.raises(OptionError, match="forced_eos_token_id"):
        resolve({"forced_eos_token_id": [2, 3]}, suppress_tokens=[2, 3])
    assert resolve(forced_eos_token_id=[2, 3], suppress_tokens=[2]).forced_eos_token_ids == (3,)


@pytest.mark.parametrize("said", [{"length_penalty": 2.0}, {"early_stopping": True}, {"early_stopping": "never"}])
def test_a_beam_option_without_beams_warns_the_user_but_not_about_the_checkpoint(said, recwarn):
    with pytest.warns(UserWarning, match=rf"{next(iter(said))}=.* has no effect"):
        resolve(**said)
    recwarn.clear()
    resolve(said)
    resolve(**said, num_beams=2)
    assert not recwarn


# ---------------------------------------------------------------- settings of transformers that are no options


def test_every_setting_of_transformers_is_known():
    config = GenerationConfig()
    assert set(config.to_dict()) | set(config._get_default_generation_params()) <= CHECKPOINT_SETTINGS


def test_neutral_settings_of_a_checkpoint_are_let_through(recwarn):
    defaults = {**GenerationConfig().to_dict(), **GenerationConfig()._get_default_generation_params()}
    defaults |= {"transformers_version": "5.24.0", "_from_model_config": True, "max_length": 30, "pad_token_id": 1}
    defaults |= {
        "bos_token_id": 0,
        "decoder_start_token_id": 0,
        "temperature": 0.3,
        "top_k": 5,
        "num_assistant_tokens": 9,
    }
    defaults |= {"no_such_setting": None}
    assert resolve(defaults) == resolve()
    assert resolve(defaults).budget() == 29
    assert not recwarn


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("encoder_no_repeat_ngram_size", 3, "pass encoder_no_repeat_ngram_size=0"),
        ("encoder_repetition_penalty", 1.2, "pass encoder_repetition_penalty=1.0"),
        ("num_beam_groups", 2, "pass num_beam_groups=1"),
        ("remove_invalid_values", True, "pass remove_invalid_values=False"),
        ("begin_suppress_tokens", [3], "pass begin_suppress_tokens=[]"),
        ("exponential_decay_length_penalty", [5, 1.1], "remove it from generation_config.json"),
        ("sequence_bias", [[[3], 1.0]], "remove it from generation_config.json"),
        ("guidance_scale", 1.5, "pass guidance_scale=1.0"),
        ("penalty_alpha", 0.6, "pass penalty_alpha=0.0"),
        ("no_such_setting", 1, "remove it from generation_config.json"),
    ],
)
def test_other_settings_of_a_checkpoint_are_refused(name, value, remedy):
    with pytest.raises(OptionError) as caught:
        resolve({name: value})
    assert f"{name}={value!r} in the checkpoint's generation settings" in str(caught.value)
    assert remedy in str(caught.value)


def test_a_wrong_value_in_the_checkpoint_is_located():
    with pytest.raises(OptionError, match=r"checkpoint's generation settings: num_beams=0"):
        resolve({"num_beams": 0})


def test_a_neutral_argument_overrides_the_checkpoint():
    checkpoint = {"encoder_no_repeat_ngram_size": 3, "remove_invalid_values": True}
    assert resolve(checkpoint, encoder_no_repeat_ngram_size=0, remove_invalid_values=False) == resolve()
    assert resolve(use_cache=False, output_attentions=False, num_beam_groups=1) == resolve()


def test_sampling_goes_with_neither_beams_nor_relaxed_acceptance():
    with pytest.raises(OptionError, match=r"do_sample=True contradicts num_beams=4"):
        resolve({"num_beams": 4}, do_sample=True)
    with pytest.raises(OptionError, match=r"do_sample=True in the checkpoint's .* contradicts num_beams=4: pass do_sa"):
        resolve({"do_sample": True}, num_beams=4)
    with pytest.raises(OptionError, match=r"do_sample=True contradicts top_beta=3"):
        resolve(do_sample=True, top_beta=3)


def test_what_tunes_sampling_counts_only_with_it():
    said = {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "seed": 3}
    sampling = resolve(said, do_sample=True)
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.7, 5, 0.9, 0.1)
    assert (sampling.is_seeded, sampling.seed) == (True, 3)
    assert resolve(said) == resolve({**said, "do_sample": True}, do_sample=False) == resolve()
    assert resolve(do_sample=True, temperature=0) == resolve()
    assert resolve(do_sample=True, num_return_sequences=3).num_return_sequences == 3


def test_tuning_sampling_without_it_warns_the_user_but_not_about_the_checkpoint(recwarn):
    for name, value in {"temperature": 0.7, "top_k": 5, "seed": 3, "typical_p": 0.5}.items():
        with pytest.warns(UserWarning, match=rf"{name}={value} has no effect: .* do_sample is off"):
            assert resolve(**{name: value}) == resolve()
        recwarn.clear()
        assert resolve({name: value}) == resolve()
    assert resolve(temperature=1.0, top_k=50, top_p=1.0, typical_p=1.0) == resolve()
    assert not recwarn


def test_sampling_settings_that_are_no_options_are_refused_with_sampling():
    with pytest.raises(OptionError, match=r"typical_p=0.5 in the checkpoint's .* pass typical_p=1.0 to do without"):
        resolve({"typical_p": 0.5}, do_sample=True)
    with pytest.raises(OptionError, match=r"typical_p=0.5 is not supported; leave it out"):
        resolve(do_sample=True, typical_p=0.5)
    assert resolve({"typical_p": 0.5}, do_sample=True, typical_p=1.0) == resolve(do_sample=True)


@pytest.mark.parametrize(
    ("name", "value"), [("pad_token_id", 1), ("num_beam_groups", 2), ("prompt_lookup_num_tokens", 5)]
)
def test_other_settings_of_transformers_as_arguments_are_refused(name, value):
    with pytest.raises(OptionError, match=rf"{name}={value} is not supported; leave it out"):
        resolve(**{name: value})


# ---------------------------------------------------------------- sharing a batch


def test_requests_share_a_batch_when_their_options_are_equal_but_for_length_and_first_token():
    one = resolve(num_beams=2, max_new_tokens=5, forced_bos_token_id=7, bad_words_ids=[[3, 4]])
    two = resolve(num_beams=2, max_length=9, forced_bos_token_id=8, bad_words_ids=[[3, 4]])
    assert one == two
    assert hash(one) == hash(two)
    assert one != resolve(num_beams=2, max_new_tokens=5, forced_bos_token_id=7, bad_words_ids=[[3, 5]])
    assert one != resolve(num_beams=3, max_new_tokens=5, forced_bos_token_id=7, bad_words_ids=[[3, 4]])


def test_every_row_has_its_own_first_token():
    assert resolve(forced_bos_token_id=[7, 8, 9]).forced_first_tokens(3) == [7, 8, 9]
    assert resolve(forced_bos_token_id=7).forced_first_tokens(2) == [7, 7]
    assert resolve().forced_first_tokens(1) == [None]
    with pytest.raises(OptionError, match="3 ids for 2 inputs"):
        resolve(forced_bos_token_id=[7, 8, 9]).forced_first_tokens(2)


def test_resolved_options_can_be_printed():
    shown = resolve({"num_beams": 4}, max_new_tokens=5).as_dict()
    assert shown["num_beams"] == 4
    assert shown["max_new_tokens"] == 5
    assert shown["eos_token_ids"] == (2,)


def test_options_need_no_torch():
    code = "import sys, spec2seq.option_resolution; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
