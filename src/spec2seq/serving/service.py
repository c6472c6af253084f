"""What every endpoint needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastapi import Request

    from spec2seq.pipelines.arguments import LongInput
    from spec2seq.serving.engine import Engine
    from spec2seq.serving.languages import ServedLanguages
    from spec2seq.serving.limits import Limits
    from spec2seq.serving.metrics import Metrics


@dataclass(frozen=True)
class ServiceSettings:
    """What is served, and how.

    Attributes:
        model_name: what clients call the model.
        drafter_name: what they call the drafter; None for plain search.
        source_lang, target_lang: languages of a model that does not name them, or the only ones of its to serve.
        source_prefix: put in front of every text, such as "translate English to German: " for a T5.
        long_input: as for `Pipeline.generate`.
        allowed_origins: of pages elsewhere that may use the service from a browser.
        has_texts_in_log: whether the log may hold texts of users.
    """

    model_name: str
    drafter_name: str | None = None
    source_lang: str | None = None
    target_lang: str | None = None
    source_prefix: str = ""
    long_input: LongInput | None = None
    allowed_origins: tuple[str, ...] = ()
    has_texts_in_log: bool = False


@dataclass(frozen=True)
class Service:
    """The parts of a running service."""

    engine: Engine
    limits: Limits
    settings: ServiceSettings
    languages: ServedLanguages
    metrics: Metrics
    created: int = field(default_factory=lambda: int(time()))

    @staticmethod
    def of(request: Request) -> Service:
        """The service that a request came to."""
        service: Service = request.app.state.service
        return service
