"""The gateway's composition root: its ASGI application, served over HTTP in front of the gRPC services.

The web server may share its process: its socket is bound first, it ends gracefully, and it handles no signals.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from email.utils import formatdate
from typing import TYPE_CHECKING

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from services.access.store import AccessStore
from services.auth import CHECK_SECONDS, Authenticator
from services.certificates import Certificates, ServerTls, server_tls
from services.gateway.access import access_middleware, session_routes
from services.gateway.access.credentials import CredentialChecker
from services.gateway.access.limits import FramedProtocol, StalledProtocol
from services.gateway.problems import HANDLERS, Observed
from services.gateway.rest.answering import rest_routes
from services.gateway.streams import stream_routes
from services.gateway.streams.feeds import Feeds
from services.gateway.upstream import Upstream, open_upstream
from services.grpc_server import nats_metrics
from swe_ai_fleet.adapters.jetstream import JetStream
from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.ports import KeyValue
from swe_ai_fleet.runtime.channels import channel_tls, is_local, target
from swe_ai_fleet.runtime.nats_server import open_state
from swe_ai_fleet.runtime.tool_services import secret_mask
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.telemetry import Telemetry, configure_logging, open_telemetry, own_telemetry

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric


@contextmanager
def gateway_metrics(telemetry: Telemetry, feeds: Feeds) -> Generator[None]:
    """A context in which this process's metrics include its watchers."""
    if telemetry.exposition is None:
        yield
        return
    from prometheus_client.metrics_core import GaugeMetricFamily

    async def watching() -> list[Metric]:
        return [
            GaugeMetricFamily("fleet_http_watchers", "Event streams and WebSockets that are served.", feeds.watchers),
            GaugeMetricFamily("fleet_http_feeds", "Executions that they watch.", feeds.size),
        ]

    with telemetry.exposition.source("gateway", watching):
        yield


def gateway_app(
    settings: Settings,
    upstream: Upstream,
    credentials: CredentialChecker,
    keys: KeyValue,
    ready: Callable[[], Awaitable[bool]],
    *,
    check_seconds: float = CHECK_SECONDS,
) -> Starlette:
    """The application; its server must run its lifespan."""
    feeds = Feeds(upstream, max_watchers=settings.http_max_watchers)

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "alive"})

    async def readiness(_: Request) -> Response:
        answers = await ready()
        return JSONResponse({"status": "ready" if answers else "not ready"}, status_code=200 if answers else 503)

    app = Starlette(
        routes=[
            Route("/health", health),
            Route("/ready", readiness),
            *session_routes(credentials, grpc=settings.orchestrator_url),
            *rest_routes(upstream),
            *stream_routes(feeds),
        ],
        middleware=[
            Middleware(Observed, telemetry=own_telemetry()),
            *access_middleware(settings, credentials, keys, check_seconds=check_seconds),
        ],
        exception_handlers=dict(HANDLERS),
    )
    # A redirect would have our own scheme, which is wrong behind a proxy that ends TLS.
    app.router.redirect_slashes = False
    # Closed before the server, which waits for watchers.
    app.state.feeds = feeds
    return app


GRACE_SECONDS = 3
PING_SECONDS = 20.0
_BACKLOG = 2048
MAX_MESSAGE_BYTES = 64 * 1024
"""The maximum size of a client's WebSocket message."""
KEYS_BUCKET = "HTTP_KEYS"
KEYS_KEPT_SECONDS = 86_400.0
KEYS_MAX_BYTES = 256 * 1024 * 1024
"""The size of stored responses, above which the oldest are dropped."""


class _State(ServerState):
    # The date is computed for each response; the library does so every second.
    default_headers = property(lambda _: [(b"date", formatdate(usegmt=True).encode())], lambda _, __: None)


class _Server(uvicorn.Server):
    """A server that waits for an event to end; the library's polls ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.server_state = _State()
        self.ends = asyncio.Event()

    async def main_loop(self) -> None:
        await self.ends.wait()

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
        listen: `host:port`; port 0 takes any free one.
        elsewhere: Whether to listen on any free port if the one in `listen` is in use.
        tls: The certificate; None: no TLS.

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
            # Frames are small, but 500 compressors would need much memory.
            ws_per_message_deflate=False,
            timeout_graceful_shutdown=GRACE_SECONDS,
            server_header=False,
            date_header=True,
            proxy_headers=False,
            ssl_context_factory=(lambda _, __: context) if context is not None else None,
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
            scheme = "http" if context is None else "https"
            yield f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        finally:
            server.ends.set()
            await serving


@contextmanager
def _bound(listen: str, elsewhere: bool) -> Generator[socket.socket]:
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdigit():
        raise PreconditionFailed(
            f"{listen!r} is not a valid address", field="http_listen", hint="such as 127.0.0.1:8000"
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio disables Nagle's algorithm, which delays responses in two pieces by 40 ms.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((host, int(port)))
        except OSError as error:
            if not elsewhere:
                raise PreconditionFailed(
                    f"cannot listen on {listen}", field="http_listen", hint="another process may use the port"
                ) from error
            bound.bind((host, 0))
        bound.listen(_BACKLOG)
        bound.setblocking(False)
        yield bound
    finally:
        bound.close()


@asynccontextmanager
async def open_gateway(
    settings: Settings,
    log: JetStream,
    *,
    token: str | None,
    ready: Callable[[], Awaitable[bool]],
    authenticator: Authenticator | None = None,
) -> AsyncGenerator[str]:
    """Serve in front of `settings.orchestrator_url` and `settings.context_url`; yields the base URL.

    Raises:
        PreconditionFailed: The address cannot be bound.
    """
    keys = await log.bucket(KEYS_BUCKET, ttl_seconds=KEYS_KEPT_SECONDS, max_bytes=KEYS_MAX_BYTES)
    # The context service may require another token than the gateway: it is then called with that one, after the auth
    # middleware has admitted the caller. Otherwise it is called with the caller's token.
    context_token = "" if settings.context_token == token else settings.context_token
    # Without a context service, the orchestrator answers its RPCs with UNIMPLEMENTED, like those of other extensions.
    context_url = settings.context_url or settings.orchestrator_url
    async with open_upstream(
        settings.orchestrator_url,
        context_url,
        context_token=context_token,
        orchestrator_tls=channel_tls(settings, settings.orchestrator_url),
        context_tls=channel_tls(settings, context_url),
    ) as upstream:
        app = gateway_app(settings, upstream, CredentialChecker(token, authenticator), keys, ready)
        async with serve_http(
            app, settings.http_address, elsewhere=not settings.http_listen, tls=server_tls(settings)
        ) as url:
            try:
                with gateway_metrics(own_telemetry(), app.state.feeds):
                    yield url
            finally:
                await app.state.feeds.close()


async def serve(settings: Settings) -> None:
    """Serve as a process of its own until SIGINT or SIGTERM."""
    for name in ("orchestrator_url", "orchestrator_token", "context_url"):
        if not getattr(settings, name):
            raise PreconditionFailed(f"{name} is empty", field=name, hint=f"set FLEET_{name.upper()}")
    if is_local(target(settings.orchestrator_url).rpartition(":")[0].strip("[]")) and not (
        settings.alone or settings.access_file or settings.repository_roots
    ):
        raise PreconditionFailed(
            "callers from other machines could use every directory of this machine as a repository",
            field="repository_roots",
            hint="FLEET_REPOSITORY_ROOTS, here and for the orchestrator, or FLEET_ACCESS_FILE",
        )
    mask = secret_mask(settings)
    configure_logging(settings.log_level, settings.log_format, mask=mask)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    # With an access file, its own token (the orchestrator's) is not the callers' token.
    authenticator = await AccessStore.open(settings.access_file) if settings.access_file else None
    async with (
        open_telemetry(settings, service="fleet-gateway", mask=mask) as telemetry,
        open_state(settings, name="gateway") as state,
        nats_metrics(telemetry, state.log),
        open_gateway(
            state.settings,
            state.log,
            token=settings.orchestrator_token,
            ready=lambda: _pings(state.log),
            authenticator=authenticator,
        ),
    ):
        await stop.wait()


async def _pings(log: JetStream) -> bool:
    return (await log.ping()).ok


if __name__ == "__main__":
    asyncio.run(serve(Settings()))
