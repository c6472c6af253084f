"""What operators ask: is it alive, will it take requests, how is it doing."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

from spec2seq.serving.schemas import Health
from spec2seq.serving.service import Service

router = APIRouter(tags=["status"])
_SICK = {"model": Health, "description": "It is not."}


@router.get("/health", response_model=Health, responses={503: _SICK})
async def health(request: Request) -> Response:
    """Whether the process works; where it does not, starting it again is all that helps."""
    status = Service.of(request).engine.status
    return JSONResponse({"status": status}, 503 if status == "broken" else 200)


@router.get("/ready", response_model=Health, responses={503: _SICK})
async def ready(request: Request) -> Response:
    """Whether it takes requests."""
    status = Service.of(request).engine.status
    return JSONResponse({"status": status}, 200 if status == "ok" else 503)


@router.get(
    "/metrics", response_class=Response, responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}
)
async def metrics(request: Request) -> Response:
    """Figures in Prometheus' format."""
    return Response(Service.of(request).metrics.text(), media_type=CONTENT_TYPE_LATEST)
