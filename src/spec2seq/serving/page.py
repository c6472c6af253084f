"""The static page, which may load nothing but itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi.staticfiles import StaticFiles
from starlette.routing import Route

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.responses import Response
    from starlette.types import Scope

HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",  # ask whether it changed: scripts of two versions do not fit together
}


class Page(StaticFiles):
    """Static files with headers that keep scripts, styles and data of other places out, and inline ones too."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(HEADERS)
        return response


def page_routes(folder: Path) -> list[Route]:
    """A route for every file, and / for index.html.

    A mount at / would take every request that no endpoint does, whatever its method, and hide which methods they have.
    """
    page = Page(directory=folder, html=True)
    files = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]
    return [Route(f"/{name}", page, methods=["GET"], include_in_schema=False) for name in ("", *files)]
