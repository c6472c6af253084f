"""What goes over the wire: the bodies and events of the HTTP service, as its OpenAPI document has them.

`/translate`, `/languages`, `/frontend/settings` and their errors have LibreTranslate's shapes, `/v1/completions` and
`/v1/models` those of OpenAI's interface. `/v1/trace` is our own: see `TraceRequest`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class ErrorBody(BaseModel):
    """What every refused request gets, except those under `/v1/completions`."""

    error: str = Field(description="What was wrong, with which value, and what to do.")


class Language(BaseModel):
    """A source language and where it can be translated to."""

    code: str
    name: str
    targets: list[str]


class LanguageName(BaseModel):
    code: str
    name: str


class LanguagePair(BaseModel):
    source: LanguageName
    target: LanguageName


class FrontendSettings(BaseModel):
    """What a client should know before it asks."""

    charLimit: int = Field(description="Most characters of all texts of a request.")  # noqa: N815  LibreTranslate's
    frontendTimeout: int = Field(description="Milliseconds to wait for a typing user.")  # noqa: N815
    apiKeys: bool  # noqa: N815
    keyRequired: bool  # noqa: N815
    suggestions: bool
    filesTranslation: bool  # noqa: N815
    supportedFilesFormat: list[str]  # noqa: N815
    language: LanguagePair | None


class DetectedLanguage(BaseModel):
    confidence: float
    language: str


class TranslateRequest(BaseModel):
    """A text or several. The same fields may come as a form."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"q": "This package contains the documentation.", "source": "en", "target": "it"}}
    )

    q: str | list[str] = Field(description="Text, or list of texts. Blank ones come back as they are.")
    source: str = Field(description='Language code, or "auto" where only one source language is served.')
    target: str = Field(description="Language code.")
    format: Literal["text", "html"] = Field(
        default="text", description="html keeps the tags and translates what is between."
    )
    alternatives: int = Field(default=0, ge=0, description="How many other translations to return, from a beam search.")
    api_key: str | None = Field(default=None, description="Accepted and ignored: there are no keys.")


class TranslateResponse(BaseModel):
    """A text for a text, a list for a list. Fields that do not apply are left out."""

    translatedText: str | list[str]  # noqa: N815
    detectedLanguage: DetectedLanguage | list[DetectedLanguage] | None = None  # noqa: N815
    alternatives: list[str] | list[list[str]] | None = None


class TraceRequest(BaseModel):
    """One text whose decoding is to be watched.

    The answer is a stream of server-sent events, each with a name (`event:`) and one JSON object (`data:`): one `start`
    (`TraceStart`), then `round` for every round of every piece (`TraceRound`), then one `end` (`TraceEnd`), or at any
    time after the status line one `error` (`ErrorBody`). What is wrong with the request itself is told before, with
    status 4xx and an `ErrorBody`.

    The same text with `drafter` false is decoded plainly, one token per round: the other lane of a race. Run both one
    after the other: at the same time they would share the model. Options that are not said are as the service was
    started.
    """

    model_config = ConfigDict(extra="forbid")

    text: str
    source: str = Field(default="auto", description="As for /translate; ignored by models without languages.")
    target: str | None = Field(default=None, description="As for /translate; may be left out where there is only one.")
    drafter: bool = Field(default=True, description="false: plain search, whatever num_draft_tokens says.")
    num_draft_tokens: int | Literal["auto"] | None = Field(
        default=None, description='Drafted per round; "auto": as many as pay.'
    )
    top_beta: int | None = Field(
        default=None, ge=1, description="1 is exact; more accepts drafts among this many best tokens."
    )
    tau: float | None = Field(
        default=None, ge=0, description="With top_beta above 1: how many nats below the best a draft token may score."
    )
    max_new_tokens: int | None = Field(default=None, ge=1, description="Most tokens per piece.")


class TraceStart(BaseModel):
    """The first event. The final text is separators[0] + output of piece 0 + separators[1] + ... + separators[n]."""

    pieces: list[str] = Field(description="What is decoded, one request each: lines, or sentences of too long lines.")
    separators: list[str] = Field(description="What stands before, between and after them; one more than pieces.")
    drafter: str | None = Field(description="Name of the drafter in use; null for plain search.")
    num_draft_tokens: int | Literal["auto"]
    is_exact: bool = Field(description="false where drafts are accepted by top_beta above 1.")


class TraceToken(BaseModel):
    """One emitted token."""

    id: int
    text: str = Field(description="What it adds to the piece's output; empty for the end of sequence and the like.")
    origin: Literal["forced", "accepted", "correction", "bonus"] = Field(
        description="forced: a language code. accepted: drafted and kept. correction: the model's own token where it "
        "rejected a drafted one. bonus: the model's own token after a draft kept whole, or after none: a plain step."
    )


class TraceRound(BaseModel):
    """What one round gave one piece. The token texts of a piece, joined, are its output."""

    piece: int = Field(description="Index into TraceStart.pieces.")
    round: int = Field(description="From 1 on for every piece; 0 for a forced first token.")
    ms: float = Field(description="Milliseconds since the model began with this request.")
    tokens: list[TraceToken]


class DecodingStats(BaseModel):
    """Counts and times, summed over the pieces; a verifier call that several rows share is divided among them."""

    num_tokens: int = Field(description="Emitted tokens, end of sequence included.")
    num_rounds: int = Field(description="Rounds of all pieces.")
    num_drafted: int
    num_judged: int = Field(description="Drafted tokens that counted: none past the limit or an accepted end.")
    num_accepted: int
    tokens_per_round: float
    acceptance_rate: float = Field(description="Accepted per judged token.")
    accepted_per_position: list[int] = Field(description="Rounds in which draft token i was kept.")
    judged_per_position: list[int]
    seconds_encode: float
    seconds_draft: float
    seconds_verify: float
    seconds_rest: float


class TraceEnd(BaseModel):
    """The last event."""

    text: str = Field(description="The whole output, the same as /translate gives for these options.")
    finish_reason: Literal["eos", "length"]
    ms: float = Field(description="Milliseconds since the model began with this request.")
    tokens_per_second: float
    stats: DecodingStats


class ServedModel(BaseModel):
    """The model of this service, and what it takes. Its id is a name; nothing can be loaded through it."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "spec2seq"
    drafter: str | None = Field(description="Name of the drafter; null for plain search.")
    max_draft_tokens: int = Field(description="Most tokens that may be drafted at once; 0 without a drafter.")
    max_input_chars: int
    max_texts: int
    max_output_tokens: int
    max_beams: int


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ServedModel]


class Health(BaseModel):
    status: Literal["ok", "starting", "shutting down", "broken"]


class CompletionRequest(BaseModel):
    """Texts to generate from, with the field names of OpenAI's completions; beside these, the generation options of
    this package under their own names. What is not said is as the service was started."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"prompt": "This package contains files."}})

    prompt: str | list[str] = Field(description="Source text, or list of them.")
    model: str | None = Field(default=None, description="Name of the served model; there is no other.")
    stream: bool = Field(default=False, description="Tell verified text as server-sent events while it is generated.")
    max_tokens: int | None = Field(default=None, ge=1, description="The same as max_new_tokens.")
    n: int | None = Field(default=None, ge=1, description="The same as num_return_sequences.")
    source: str | None = Field(default=None, description="Language code, as for /translate.")
    target: str | None = Field(default=None, description="Language code, as for /translate.")
    source_prefix: str | None = Field(default=None, description='Put in front of every text, as in "summarize: ".')
    target_prefix: str | None = Field(default=None, description="What every output begins with; it is continued.")
    long_input: Literal["split", "truncate", "error"] | None = Field(
        default=None, description="What to do with texts longer than the model takes."
    )


StopReason = Literal["stop", "length"]


class Choice(BaseModel):
    """One output. There are n for each prompt, in the order of the prompts."""

    index: int
    text: str
    finish_reason: StopReason | None
    logprobs: None = None


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Completion(BaseModel):
    """The outputs; in a stream, the next part of one of them, and in the last event all but the text."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[Choice]
    usage: Usage | None = None
    stats: DecodingStats | None = Field(default=None, description="What decoding took; not among OpenAI's fields.")
    warnings: list[str] | None = Field(
        default=None, description="What the options may not have meant; not OpenAI's either."
    )


class CompletionErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class CompletionError(BaseModel):
    """What a refused request under /v1/completions gets."""

    error: CompletionErrorDetail
