"""Options of sampling: who counts when several speak, what contradicts what, and what is said in vain."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest

from spec2seq.errors import OptionError
from spec2seq.generation_options import GenerationOptions, ResolvedOptions
from spec2seq.option_resolution import resolve_options
from spec2seq.testing import tiny_config


def resolve(
    checkpoint: dict[str, Any] | None = None, options: GenerationOptions | None = None, **arguments: Any
) -> ResolvedOptions:
    return resolve_options(checkpoint or {}, tiny_config(), options, arguments)


def warped(options: ResolvedOptions) -> tuple[float, int, float, float]:
    return options.temperature, options.top_k, options.top_p, options.min_p


def test_defaults_are_those_of_transformers() -> None:
    assert warped(resolve(do_sample=True)) == (1.0, 50, 1.0, 0.0)
    assert not resolve().do_sample


def test_the_first_who_speaks_counts_for_each_option() -> None:
    checkpoint = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.9}
    assert warped(resolve(checkpoint)) == (0.6, 20, 0.9, 0.0)
    shared = GenerationOptions(top_k=5, min_p=0.1)
    assert warped(resolve(checkpoint, shared)) == (0.6, 5, 0.9, 0.1)
    assert warped(resolve(checkpoint, shared, top_k=7, top_p=1)) == (0.6, 7, 1.0, 0.1)
    assert not resolve(checkpoint, do_sample=False).do_sample


def test_temperature_zero_is_greedy_search() -> None:
    options = resolve(do_sample=True, temperature=0.0, top_p=0.5, seed=4)
    assert replace(options, max_new_tokens=1) == replace(resolve(), max_new_tokens=1)
    assert resolve({"do_sample": True}, temperature=0) == resolve()


def test_nothing_of_sampling_is_left_without_it() -> None:
    options = resolve({"temperature": 0.6, "top_k": 20, "top_p": 0.9, "min_p": 0.1})
    assert (options.do_sample, options.is_seeded, options.seed) == (False, False, None)
    assert warped(options) == (1.0, 0, 1.0, 0.0)


@pytest.mark.parametrize(
    ("name", "value"), [("temperature", 0.7), ("top_k", 10), ("top_p", 0.9), ("min_p", 0.1), ("seed", 0)]
)
def test_tuning_without_sampling_warns_the_user(name: str, value: float) -> None:
    with pytest.warns(UserWarning, match=f"{name}={value} has no effect: it tunes sampling, and do_sample is off"):
        resolve(**{name: value})
    with pytest.warns(UserWarning, match=f"{name}={value} has no effect"):
        resolve(None, GenerationOptions(**{name: value}))


def test_checkpoints_and_neutral_values_do_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resolve({"temperature": 0.7, "top_k": 10, "top_p": 0.9, "typical_p": 0.5})
        resolve(temperature=1.0, top_k=50, top_p=1.0, min_p=0.0, typical_p=1.0)
        resolve(do_sample=True, temperature=0.7, top_k=10, top_p=0.9, min_p=0.1, seed=0)


def test_beams_cannot_sample() -> None:
    with pytest.raises(OptionError, match="do_sample=True contradicts num_beams=4: pass do_sample=False"):
        resolve({"num_beams": 4}, do_sample=True)
    with pytest.raises(OptionError, match="in the checkpoint's generation settings contradicts num_beams=4"):
        resolve({"do_sample": True, "num_beams": 4})
    with pytest.raises(OptionError, match="contradicts num_beams=2"):
        resolve(do_sample=True, temperature=0, num_beams=2)


def test_relaxed_acceptance_cannot_sample() -> None:
    with pytest.raises(OptionError, match="do_sample=True contradicts top_beta=3"):
        resolve(do_sample=True, top_beta=3)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("temperature", -0.1, "a finite number of at least 0"),
        ("temperature", float("nan"), "a finite number"),
        ("top_k", -1, "an integer of at least 0"),
        ("top_k", 2.5, "an integer"),
        ("top_p", 1.1, "a finite number from 0 to 1"),
        ("top_p", -0.1, "a finite number from 0 to 1"),
        ("min_p", 2, "a finite number from 0 to 1"),
        ("seed", -1, "an integer from 0 to 9223372036854775807"),
        ("seed", 2**63, "an integer from 0 to 9223372036854775807"),
        ("do_sample", 1, "True or False"),
    ],
)
def test_impossible_values_are_refused(name: str, value: float, allowed: str) -> None:
    with pytest.raises(OptionError, match=f"{name}={value} is not allowed: it must be {allowed}"):
        GenerationOptions(**{name: value})


@pytest.mark.parametrize(("name", "value"), [("typical_p", 0.5), ("epsilon_cutoff", 1e-4), ("top_h", 0.3)])
def test_other_warpers_are_refused_only_where_they_would_work(name: str, value: float) -> None:
    with pytest.raises(OptionError, match=f"{name}={value} is not supported; leave it out"):
        resolve(do_sample=True, **{name: value})
    with pytest.raises(OptionError, match=f"{name}={value} in the checkpoint's generation settings is not supported"):
        resolve({name: value}, do_sample=True)
    assert resolve({name: value}) == resolve()
    with pytest.warns(UserWarning, match=f"{name}={value} has no effect"):
        resolve(**{name: value})


def test_more_outputs_than_beams_need_sampling() -> None:
    assert resolve(do_sample=True, num_return_sequences=3).num_return_sequences == 3
    with pytest.raises(OptionError, match="num_return_sequences=3 needs sampling or beam search"):
        resolve(num_return_sequences=3)
    with pytest.raises(OptionError, match="num_return_sequences=3 needs sampling or beam search"):
        resolve(do_sample=True, temperature=0, num_return_sequences=3)


def test_seeds_do_not_part_a_batch_but_having_one_does() -> None:
    assert resolve(do_sample=True, seed=1) == resolve(do_sample=True, seed=2)
    assert resolve(do_sample=True, seed=1) != resolve(do_sample=True)
    assert resolve(do_sample=True, seed=1).seed == 1
