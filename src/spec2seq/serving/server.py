"""The process: a socket, a log, and an end that finishes what was begun."""

from __future__ import annotations

import errno
import logging
import socket
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spec2seq.errors import MissingExtraError, OptionError
from spec2seq.option_values import shortened

try:
    import uvicorn

    from spec2seq.serving.app import GRACE_SECONDS, create_app, create_service
    from spec2seq.serving.languages import Direction
except ImportError as error:
    raise MissingExtraError(f"serving needs more packages ({error}): pip install 'spec2seq[serve]'") from error

if TYPE_CHECKING:
    from types import FrameType

    from spec2seq.generation_options import GenerationOptions
    from spec2seq.pipelines.pipeline import Pipeline
    from spec2seq.serving.engine import Engine
    from spec2seq.serving.limits import Limits
    from spec2seq.serving.service import Service, ServiceSettings

# The model's thread needs the interpreter several times per operator: with Python's own 5 ms a busy event loop
# would hold up every round.
SWITCH_SECONDS = 0.0005
KEEP_ALIVE_SECONDS = 75  # longer than the 60 s after which proxies drop idle connections: theirs is the first word
LOG = logging.getLogger("spec2seq.serving")


@dataclass(frozen=True)
class Address:
    """Where to listen; port 0 takes a free one."""

    host: str
    port: int


class _Server(uvicorn.Server):
    """Refuses new requests from the first signal on, and leaves with the second."""

    def __init__(self, config: uvicorn.Config, engine: Engine) -> None:
        super().__init__(config)
        self._engine = engine

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # uvicorn would end the process by the same signal once more, which is no success
        self._engine.refuse_new()
        self.force_exit = self.should_exit
        self.should_exit = True


def run_server(
    pipeline: Pipeline, settings: ServiceSettings, limits: Limits, defaults: GenerationOptions, address: Address
) -> None:
    """Serve until SIGINT or SIGTERM, then finish what was begun.

    Raises:
        OptionError: the address cannot be used, or settings or options do not suit the model.
        NumericsError: the model produces NaN.
    """
    _set_up_log()
    sys.setswitchinterval(SWITCH_SECONDS)
    service = create_service(pipeline, settings, limits, defaults)
    listener = _listen(address)
    _warm_up(pipeline, service, defaults)
    _begin_listening(listener, address)
    host, port = listener.getsockname()[:2]
    LOG.info("%s on http://%s:%d", settings.model_name, f"[{host}]" if ":" in host else host, port)
    config = uvicorn.Config(
        create_app(service),
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=int(GRACE_SECONDS),
        lifespan="on",
    )
    _Server(config, service.engine).run(sockets=[listener])


def _listen(address: Address) -> socket.socket:
    try:
        return _bound(address)
    except (OSError, OverflowError, UnicodeError) as error:
        raise _unusable(address, error) from error


def _bound(address: Address) -> socket.socket:
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, place = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
    except BaseException:
        listener.close()
        raise
    return listener


def _begin_listening(listener: socket.socket, address: Address) -> None:
    """Two processes may have the same place; the first one that listens keeps it."""
    try:
        listener.listen()
    except OSError as error:
        raise _unusable(address, error) from error


def _unusable(address: Address, error: Exception) -> OptionError:
    is_no_name = isinstance(error, (socket.gaierror, UnicodeError))
    is_foreign = is_no_name or getattr(error, "errno", None) == errno.EADDRNOTAVAIL
    remedy = (
        "an address of this machine, or 0.0.0.0 for all of them" if is_foreign else "another port, or 0 for a free one"
    )
    reason = "no address can be called so" if isinstance(error, UnicodeError) else getattr(error, "strerror", None)
    return OptionError(f"--host {shortened(address.host)} --port {address.port}: {reason or error}; use {remedy}")


def _warm_up(pipeline: Pipeline, service: Service, defaults: GenerationOptions) -> None:
    """Run the model once: the first request need not wait for what happens only once, and options that do not suit the
    model are told now."""
    pair = service.languages.first_pair()
    direction = service.languages.direction(pair.source.code, pair.target.code) if pair else Direction()
    prefix = service.settings.source_prefix
    pipeline.generate(
        "1", defaults, source_lang=direction.source_lang, target_lang=direction.target_lang, source_prefix=prefix
    )


def _set_up_log() -> None:
    """To stderr, one line per event, with the time."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
