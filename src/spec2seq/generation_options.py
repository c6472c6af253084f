"""The options of a call: as they are said, and as they apply in the end."""

from __future__ import annotations

import difflib
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

from spec2seq.errors import OptionError
from spec2seq.option_values import Kind, OptionInfo

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def _option(
    kind: Kind,
    default: object,
    help: str,
    *,
    minimum: int | None = None,
    is_above_minimum: bool = False,
    maximum: int | None = None,
) -> Any:
    info = OptionInfo(kind, default, help, minimum, is_above_minimum, maximum)
    return field(default=None, metadata={"option": info})


@dataclass(frozen=True)
class GenerationOptions:
    """What a call asks for, with transformers' names. None means "not said": see `config.resolve_options`.

    The default that applies in the end, the help text and the range of each option are in `option_info(name)`. Lists
    are stored as tuples. An empty list for suppress_tokens, eos_token_id, forced_bos_token_id or forced_eos_token_id
    turns off what the checkpoint says.

    Raises:
        OptionError: a value has the wrong type or is out of range.
    """

    max_new_tokens: int | None = _option(
        "count", 256, "Most tokens to generate, end of sequence included; cut to the model's positions.", minimum=1
    )
    max_length: int | None = _option(
        "count", None, "The same limit counting the decoder start token too; max_new_tokens beats it.", minimum=2
    )
    min_new_tokens: int | None = _option("count", 0, "No end of sequence before this many tokens.", minimum=0)
    min_length: int | None = _option(
        "count", 0, "The same counting the decoder start token too; min_new_tokens beats it.", minimum=0
    )
    num_beams: int | None = _option("count", 1, "Beams of beam search; 1 is greedy search.", minimum=1)
    num_return_sequences: int | None = _option(
        "count", 1, "How many of the beams to return, best first, or how many samples to draw per input.", minimum=1
    )
    do_sample: bool | None = _option("flag", False, "Draw tokens at random from the model's law.")
    temperature: float | None = _option(
        "number",
        1.0,
        "With do_sample, scores are divided by it: below 1 sharpens the law, 0 is greedy search.",
        minimum=0,
    )
    top_k: int | None = _option("count", 50, "With do_sample, draw among this many best tokens; 0 is off.", minimum=0)
    top_p: float | None = _option(
        "number",
        1.0,
        "With do_sample, draw among the fewest tokens whose probabilities add up to this; 1 is off.",
        minimum=0,
        maximum=1,
    )
    min_p: float | None = _option(
        "number",
        0.0,
        "With do_sample, draw among tokens at least this probable, compared with the best one; 0 is off.",
        minimum=0,
        maximum=1,
    )
    seed: int | None = _option(
        "count",
        None,
        "With do_sample, fixes the text: the same for every drafter, block length and batch.",
        minimum=0,
        maximum=2**63 - 1,
    )
    length_penalty: float | None = _option(
        "number", 1.0, "Beam scores are divided by length ** length_penalty; above 0 favours long outputs."
    )
    early_stopping: bool | Literal["never"] | None = _option(
        "early_stopping",
        False,
        "When beam search stops: True as soon as num_beams outputs are finished, False when better ones are unlikely, "
        '"never" when better ones are impossible.',
    )
    renormalize_logits: bool | None = _option(
        "flag", False, "Normalise scores again after all other options have changed them."
    )
    no_repeat_ngram_size: int | None = _option("count", 0, "No n-gram of this size twice; 0 is off.", minimum=0)
    repetition_penalty: float | None = _option(
        "number", 1.0, "Above 1 makes tokens less likely that are there already.", minimum=0, is_above_minimum=True
    )
    bad_words_ids: Sequence[Sequence[int]] | None = _option("words", None, "Token sequences never to generate.")
    suppress_tokens: Sequence[int] | None = _option("ids", (), "Tokens never to generate.")
    forced_bos_token_id: int | Sequence[int] | None = _option(
        "row_ids", None, "First generated token, such as a language code; a list gives one per input."
    )
    forced_eos_token_id: int | Sequence[int] | None = _option(
        "ids", (), "Token that ends an output reaching the length limit."
    )
    eos_token_id: int | Sequence[int] | None = _option("ids", None, "Token or tokens that end an output; the model's.")
    num_draft_tokens: int | Literal["auto"] | None = _option(
        "draft_tokens",
        "auto",
        'Tokens drafted per round; "auto" drafts as many as pay, none included (relaxed and beams: a fixed number).',
        minimum=0,
    )
    speculative_beams: bool | None = _option(
        "flag",
        False,
        "Let the drafter guess ahead in beam search too; the output stays that of plain beam search.",
    )
    top_beta: int | None = _option(
        "count", 1, "Accept draft tokens among this many best ones; 1 is exact, more is relaxed.", minimum=1
    )
    tau: float | None = _option(
        "number", 1.0, "With top_beta, how many nats below the best token a draft token may score.", minimum=0
    )
    guard_eos: bool | None = _option(
        "flag", True, "Even when relaxed, end an output exactly where the model itself would."
    )
    output_scores: bool | None = _option(
        "flag", False, "Return the score of every output, and the scores that each of its tokens was chosen from."
    )
    output_logits: bool | None = _option(
        "flag", False, "Return the model's own scores behind each token, before any option has changed them."
    )
    output_margin: bool | None = _option("flag", False, "Return by how much the closest choice of a token was decided.")

    def __post_init__(self) -> None:
        for name in OPTION_NAMES:
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, option_info(name).checked(name, value))

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> GenerationOptions:
        """Options by name.

        Raises:
            OptionError: a name is unknown (the message holds similar ones), or a value is not allowed.
        """
        for name in values:
            if name not in OPTION_NAMES:
                raise OptionError(unknown_option(name, values[name]))
        return cls(**values)


OPTION_NAMES = tuple(option.name for option in fields(GenerationOptions))


def option_info(name: str) -> OptionInfo:
    """Default, help text and range of an option."""
    info: OptionInfo = GenerationOptions.__dataclass_fields__[name].metadata["option"]
    return info


def unknown_option(name: str, value: object) -> str:
    """The message for a name that is no option, with the names like it."""
    similar = difflib.get_close_matches(name, OPTION_NAMES, n=3)
    remedy = f"did you mean {' or '.join(similar)}?" if similar else f"the options are {', '.join(OPTION_NAMES)}"
    return f"unknown option {name}={value!r}; {remedy}"


@dataclass(frozen=True)
class ResolvedOptions:
    """The options that really apply to a request: every one has a value. Hashable.

    Requests may share a batch exactly when their resolved options are equal. What each row may have for itself takes no
    part in that comparison: the length limit (`budget`) and the forced first token
    (`forced_first_tokens`).

    Attributes:
        min_new_tokens, min_length: at most one of them is above 0.
        bad_words_ids: without those that are just an end-of-sequence token, as in transformers.
        forced_eos_token_ids: without suppressed ones, which stay suppressed even where they are forced.
        do_sample: False also where the temperature is 0, which is greedy search.
        temperature, top_k, top_p, min_p: 1.0, 0, 1.0 and 0.0, which change nothing, where there is no sampling.
        is_seeded: whether sampling follows a given seed.
        eos_token_ids: may be empty; then every output runs to its limit.
        tau: nats; 0.0 where top_beta is 1.
        forced_bos_token_id: a tuple has one id per row. It holds where only the decoder start precedes it.
        max_new_tokens: for a prompt of the decoder start alone; see `budget` for others.
        max_length: limit that counts the prompt, None when there is none.
        max_positions: how many target tokens the model can take in, None when there is no limit.
        seed: None unless `is_seeded`.
    """

    num_beams: int
    num_return_sequences: int
    do_sample: bool
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    is_seeded: bool
    length_penalty: float
    early_stopping: bool | Literal["never"]
    renormalize_logits: bool
    no_repeat_ngram_size: int
    repetition_penalty: float
    min_new_tokens: int
    min_length: int
    bad_words_ids: tuple[tuple[int, ...], ...]
    suppress_tokens: tuple[int, ...]
    forced_eos_token_ids: tuple[int, ...]
    eos_token_ids: tuple[int, ...]
    num_draft_tokens: int | Literal["auto"]
    speculative_beams: bool
    top_beta: int
    tau: float
    guard_eos: bool
    output_scores: bool
    output_logits: bool
    output_margin: bool
    forced_bos_token_id: int | tuple[int, ...] | None = field(compare=False)
    max_new_tokens: int = field(compare=False)
    max_length: int | None = field(compare=False)
    max_positions: int | None = field(compare=False)
    seed: int | None = field(compare=False)

    def budget(self, prompt_length: int = 1) -> int:
        """How many tokens a row may generate after a prompt of this many tokens, decoder start included.

        Raises:
            OptionError: the prompt leaves no room, or the limit the user asked for exceeds the positions after it.
        """
        if self.max_length is not None:
            if prompt_length >= self.max_length:
                raise OptionError(
                    f"a decoder prompt of {prompt_length} tokens leaves no room in a length of {self.max_length}; "
                    "shorten it or raise max_length"
                )
            return min(self.max_new_tokens, self.max_length - prompt_length)
        # The last token is never fed to the model and needs no position.
        if self.max_positions is not None and prompt_length + self.max_new_tokens - 1 > self.max_positions:
            if prompt_length > self.max_positions:
                raise OptionError(
                    f"a decoder prompt of {prompt_length} tokens leaves no room in the {self.max_positions} positions "
                    "of the model; shorten it"
                )
            raise OptionError(
                f"max_new_tokens={self.max_new_tokens} after a decoder prompt of {prompt_length} tokens exceeds the "
                f"{self.max_positions} positions of the model; use at most {self.max_positions + 1 - prompt_length}"
            )
        return self.max_new_tokens

    def forced_first_tokens(self, num_rows: int) -> list[int | None]:
        """The forced first token of each of `num_rows` rows.

        Raises:
            OptionError: there are not as many forced first tokens as rows.
        """
        forced = self.forced_bos_token_id
        if not isinstance(forced, tuple):
            return [forced] * num_rows
        if len(forced) != num_rows:
            raise OptionError(
                f"forced_bos_token_id has {len(forced)} ids for {num_rows} inputs; pass one id, or one for each input"
            )
        return list(forced)

    def as_dict(self) -> dict[str, Any]:
        """Every option by name, for printing and JSON."""
        return asdict(self)
