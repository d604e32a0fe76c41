"""A web server in a process that has others: bound first, ended gracefully, without signal handlers of its own."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from starlette.types import ASGIApp

from services.certificates import Certificates, ServerTls
from services.gateway.streams.frames import FramedProtocol
from services.gateway.streams.stalled import StalledProtocol
from swe_ai_fleet.domain.errors import PreconditionFailed

GRACE_SECONDS = 3
PING_SECONDS = 20.0
_BACKLOG = 2048
MAX_MESSAGE_BYTES = 64 * 1024
"""Of what a client may send over a WebSocket."""


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Generator[None]:
        # The process decides when to stop.
        yield


@asynccontextmanager
async def serve_http(
    app: ASGIApp, listen: str, *, elsewhere: bool = False, tls: ServerTls | None = None
) -> AsyncGenerator[str, None]:
    """Serve until the context ends; yields the base URL, such as `http://127.0.0.1:8000`.

    Args:
        app: Answers.
        listen: `host:port`; port 0 takes any free one.
        elsewhere: Take any free port where that one is taken.
        tls: The certificate it shows; None: it speaks without TLS.

    Raises:
        PreconditionFailed: The address cannot be bound, or the certificate cannot be used.
    """
    context = Certificates(tls).for_http() if tls is not None else None
    with _bound(listen, elsewhere) as bound:
        config = uvicorn.Config(
            app,
            http=StalledProtocol,
            log_config=None,
            access_log=False,
            lifespan="on",
            ws=FramedProtocol,
            ws_max_size=MAX_MESSAGE_BYTES,
            ws_ping_interval=PING_SECONDS,
            ws_ping_timeout=PING_SECONDS,
            # A frame of events is small; 500 compressors are not.
            ws_per_message_deflate=False,
            timeout_graceful_shutdown=GRACE_SECONDS,
            server_header=False,
            date_header=True,
            proxy_headers=False,
            ssl_context_factory=_given(context) if context is not None else None,
        )
        server = _Server(config)
        serving = asyncio.create_task(server.serve(sockets=[bound]), name="gateway")
        try:
            while not server.started:
                await asyncio.wait([serving], timeout=0.01)
                if serving.done():
                    await serving
                    raise PreconditionFailed("the gateway did not start", field="http_listen")
            host, port = bound.getsockname()[:2]
            yield f"{'https' if context is not None else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
        finally:
            server.should_exit = True
            await serving


def _given(context: ssl.SSLContext) -> Callable[[uvicorn.Config, Callable[[], ssl.SSLContext]], ssl.SSLContext]:
    def factory(_: uvicorn.Config, __: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
        return context

    return factory


@contextmanager
def _bound(listen: str, elsewhere: bool) -> Generator[socket.socket]:
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdigit():
        raise PreconditionFailed(f"{listen!r} is no address", field="http_listen", hint="such as 127.0.0.1:8000")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named as TCP, or asyncio leaves Nagle on: answers in two pieces wait 40 ms for the first to be acknowledged.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((host, int(port)))
        except OSError as error:
            if not elsewhere:
                raise PreconditionFailed(
                    f"cannot listen on {listen}", field="http_listen", hint="another process may have the port"
                ) from error
            bound.bind((host, 0))
        bound.listen(_BACKLOG)
        bound.setblocking(False)
        yield bound
    finally:
        bound.close()
