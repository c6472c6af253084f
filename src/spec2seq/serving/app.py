"""The HTTP application."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from spec2seq.serving import completions_api, status_api, trace_api, translate_api
from spec2seq.serving.access import Access
from spec2seq.serving.bodies import BodyLimit
from spec2seq.serving.engine import Engine
from spec2seq.serving.http_errors import add_error_handlers
from spec2seq.serving.languages import ServedLanguages
from spec2seq.serving.metrics import Metrics
from spec2seq.serving.openapi import document
from spec2seq.serving.page import page_routes
from spec2seq.serving.service import Service

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from spec2seq.generation_options import GenerationOptions
    from spec2seq.pipelines.pipeline import Pipeline
    from spec2seq.serving.limits import Limits
    from spec2seq.serving.service import ServiceSettings

STATIC = Path(__file__).with_name("static")
# How long the body of a request may take to arrive, and how long a stopped service goes on working.
BODY_SECONDS, GRACE_SECONDS = 30.0, 30.0


def create_service(
    pipeline: Pipeline, settings: ServiceSettings, limits: Limits, defaults: GenerationOptions
) -> Service:
    """The parts of a service for this model; `defaults` are the options where a request says nothing.

    Raises:
        OptionError: the languages in the settings are not the model's.
    """
    metrics = Metrics()
    engine = Engine(pipeline, defaults, limits, metrics, has_texts_in_log=settings.has_texts_in_log)
    metrics.watch(engine)
    languages = ServedLanguages.of(pipeline.tokenizer, settings.source_lang, settings.target_lang)
    return Service(engine, limits, settings, languages, metrics)


def create_app(service: Service, *, grace: float = GRACE_SECONDS) -> FastAPI:
    """The application. Its lifespan starts the engine, and lets it finish what it has begun, for `grace` seconds."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.engine.start()
        yield
        await asyncio.to_thread(service.engine.stop, grace)

    app = FastAPI(
        title="spec2seq",
        version=version("spec2seq"),
        description="Translation and other text-to-text generation with exact speculative decoding.",
        lifespan=lifespan,
        docs_url=None,  # the pages load scripts from elsewhere
        redoc_url=None,
    )
    app.state.service = service
    for module in (translate_api, completions_api, trace_api, status_api):
        app.include_router(module.router)
    app.openapi = cache(partial(document, app, service.limits))  # type: ignore[method-assign]
    app.router.routes.extend(page_routes(STATIC))
    add_error_handlers(app)
    app.add_middleware(BodyLimit, max_bytes=service.limits.max_body_bytes, seconds=BODY_SECONDS)
    if service.settings.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=service.settings.allowed_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["content-type"],
        )
    app.add_middleware(Access, metrics=service.metrics)
    return app
