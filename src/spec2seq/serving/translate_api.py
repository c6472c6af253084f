"""Translation in LibreTranslate's shapes, so that its clients work unchanged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request

from spec2seq.option_values import shortened
from spec2seq.pipelines.plans import TextOptions
from spec2seq.serving.bodies import read_fields
from spec2seq.serving.calls import TextCall
from spec2seq.serving.events import finish
from spec2seq.serving.fields import check_pieces, read_string, read_texts
from spec2seq.serving.html_text import HtmlText
from spec2seq.serving.languages import AUTO
from spec2seq.serving.openapi import body_of, errors
from spec2seq.serving.refusals import InvalidRequestError
from spec2seq.serving.schemas import (
    DetectedLanguage,
    FrontendSettings,
    Language,
    TranslateRequest,
    TranslateResponse,
)
from spec2seq.serving.service import Service

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spec2seq.pipelines.arguments import GenerationArguments
    from spec2seq.pipelines.results import GenerationResult
    from spec2seq.serving.limits import Limits

FORMATS = ("text", "html")
# LibreTranslate's own default: how long its page waits for the next key
_TYPING_MS = 500
# Of a language that was not detected: it is the only one there is.
_CERTAIN = 100.0

router = APIRouter(tags=["translate"])


@dataclass(frozen=True)
class Translation:
    """A request as it was read."""

    texts: list[str]
    is_list: bool
    source: str
    target: str
    is_html: bool
    num_alternatives: int


@dataclass(frozen=True)
class _Output:
    """What becomes of one text."""

    text: str
    alternatives: list[str]


@router.post(
    "/translate",
    response_model_exclude_none=True,
    openapi_extra=body_of(TranslateRequest, is_form=True),
    responses=errors(400, 408, 413, 415, 429, 500, 503),
)
async def translate(request: Request) -> TranslateResponse:
    """Translate a text, or each of a list. Blank texts come back as they are."""
    service = Service.of(request)
    wanted = read_translation(await read_fields(request), service.limits)
    direction = service.languages.direction(wanted.source, wanted.target)
    documents = [HtmlText.parse(text) for text in wanted.texts] if wanted.is_html else None
    texts = wanted.texts if documents is None else [text for document in documents for text in document.texts]
    check_pieces(texts, "q", service.limits)  # tags cut HTML up where neither a line nor a sentence ends
    settings = service.settings
    text_options = TextOptions(
        direction.source_lang, direction.target_lang, settings.source_prefix, settings.long_input
    )
    finished = await finish(service.engine, request, TextCall(texts, text_options, _arguments(wanted)))
    outputs = _outputs(finished.results, documents)
    detected = DetectedLanguage(confidence=_CERTAIN, language=direction.source) if wanted.source == AUTO else None
    return _response(wanted, outputs, detected)


@router.get("/languages")
async def languages(request: Request) -> list[Language]:
    """The source languages, each with what it can be translated to."""
    return Service.of(request).languages.listing()


@router.get("/frontend/settings")
async def frontend_settings(request: Request) -> FrontendSettings:
    """What a client should know before it asks."""
    service = Service.of(request)
    return FrontendSettings(
        charLimit=service.limits.max_input_chars,
        frontendTimeout=_TYPING_MS,
        apiKeys=False,
        keyRequired=False,
        suggestions=False,
        filesTranslation=False,
        supportedFilesFormat=[],
        language=service.languages.first_pair(),
    )


def read_translation(fields: dict[str, Any], limits: Limits) -> Translation:
    """The fields of a request.

    Raises:
        InvalidRequestError: one is missing, has the wrong type, or is beyond a limit.
    """
    texts, is_list = read_texts(fields, "q", limits)
    source, target = (_required(fields, name) for name in ("source", "target"))
    text_format = read_string(fields, "format", "text")
    if text_format not in FORMATS:
        raise InvalidRequestError(
            f"{str(text_format)[:40]} format is not supported; use {' or '.join(FORMATS)}", "format"
        )
    return Translation(texts, is_list, source, target, text_format == "html", _num_alternatives(fields, limits))


def _required(fields: dict[str, Any], name: str) -> str:
    value = read_string(fields, name)
    if not value:
        raise InvalidRequestError(f"Invalid request: missing {name} parameter", name)
    return value


def _num_alternatives(fields: dict[str, Any], limits: Limits) -> int:
    value = fields.get("alternatives", 0)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidRequestError(
            f"Invalid request: alternatives parameter is not a number of at least 0: {shortened(value)}", "alternatives"
        )
    if value >= limits.max_beams:
        raise InvalidRequestError(
            f"Invalid request: alternatives parameter must be <= {limits.max_beams - 1} (max_beams - 1)", "alternatives"
        )
    return value


def _arguments(wanted: Translation) -> GenerationArguments:
    """Alternatives come from a beam search, the best translation with them. There are none of HTML."""
    if not wanted.num_alternatives or wanted.is_html:
        return {}
    num_beams = wanted.num_alternatives + 1
    return {"num_beams": num_beams, "num_return_sequences": num_beams}


def _outputs(results: Sequence[GenerationResult], documents: Sequence[HtmlText] | None) -> list[_Output]:
    """One per text of the request; with documents, out of the results for all their texts."""
    if documents is None:
        return [_Output(result.text, [one.text for one in result.alternatives]) for result in results]
    rest = iter(results)
    return [_Output(document.join([next(rest).text for _ in document.texts]), []) for document in documents]


def _response(wanted: Translation, outputs: Sequence[_Output], detected: DetectedLanguage | None) -> TranslateResponse:
    """Lists for a list; for a text its only output."""
    texts, others = [output.text for output in outputs], [output.alternatives for output in outputs]
    has_alternatives = wanted.num_alternatives > 0
    if wanted.is_list:
        return TranslateResponse(
            translatedText=texts,
            detectedLanguage=[detected] * len(texts) if detected else None,
            alternatives=others if has_alternatives else None,
        )
    return TranslateResponse(
        translatedText=texts[0], detectedLanguage=detected, alternatives=others[0] if has_alternatives else None
    )
