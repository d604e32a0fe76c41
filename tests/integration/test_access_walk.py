"""Strangers at every entry: a walk over each RPC, each HTTP route and each stream, made from what is really served.

What answers behind the services here says only who was let in, so that a new RPC or route is walked without a line of
test.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass
from httpx2 import ASGITransport, AsyncClient, Response
from starlette.applications import Starlette
from starlette.routing import Route, WebSocketRoute
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from fleet.options.v1 import options_pb2
from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from services.access.store import AccessStore
from services.auth import principal
from services.gateway.access.credentials import CredentialChecker
from services.gateway.main import gateway_app, serve_http
from services.gateway.upstream import FILES, open_upstream
from services.grpc_server import Service, serve_grpc
from services.roles import ROLES
from swe_ai_fleet.domain.access import AccessRole, Principal
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing.memory_stores import MemoryKeyValue
from tests.access_world import AccessWorld
from tests.gateway_house import closed, ready

METHODS: tuple[MethodDescriptor, ...] = tuple(
    method for file in FILES for service in file.services_by_name.values() for method in service.methods
)
SESSION_PATH = "/api/session"
OPEN_PATHS = ("/health", "/ready")
LOCAL = "the-token-of-whoever-starts-the-fleet"
CHECK_SECONDS = 0.05
HELD = ("x-held", "1")
"""Says that a stream is not to end by itself."""
_PEOPLE = ("viewer", "submitter", "approver", "admin")
_SECONDS = 20.0


EXECUTION, ANOTHER = (f"00000000-0000-4000-8000-{number:012}" for number in (1, 2))


def filled(path: str) -> str:
    """A path with something in its places that can stand there."""
    return path.format_map(defaultdict(lambda: "something", execution_id=EXECUTION, digest=64 * "0"))


@dataclass(kw_only=True)
class House:
    """Every service of the contract behind gRPC and HTTP."""

    world: AccessWorld
    channel: grpc.aio.Channel
    client: AsyncClient
    inside: AsyncClient
    """The same application without a socket, for thousands of requests."""
    url: str
    app: Starlette
    calls: list[tuple[str, Principal]] = field(default_factory=list[tuple[str, Principal]])

    @property
    def seen(self) -> list[Principal]:
        """Who has reached a service."""
        return [who for _, who in self.calls]

    def callers(self, rpc: str) -> list[tuple[str, str]]:
        """Tenant and name of those who have called an RPC."""
        return [(who.tenant, who.name) for name, who in self.calls if name == rpc]

    async def code(self, method: MethodDescriptor | str, metadata: Sequence[tuple[str, str]]) -> grpc.StatusCode:
        """What an RPC comes to, with no more in its request than has to be there."""
        least = b"" if isinstance(method, str) else least_request(method)
        path = method if isinstance(method, str) else f"/{method.containing_service.full_name}/{method.name}"
        # Every kind of call is a stream on the wire. The request goes with the call: a write of its own that comes
        # after a refusal is INTERNAL to grpcio's client, whatever the server said.
        call = self.channel.unary_stream(path)(least, metadata=metadata, timeout=_SECONDS)
        try:
            async for _ in call:
                pass
        except grpc.aio.AioRpcError as error:
            return error.code()
        return await call.code()

    async def codes(
        self, methods: Iterable[MethodDescriptor | str], metadata: Sequence[tuple[str, str]]
    ) -> dict[str, grpc.StatusCode]:
        """The same of many, at once."""
        asked = list(methods)
        found = await asyncio.gather(*(self.code(method, metadata) for method in asked))
        names = (method if isinstance(method, str) else method.full_name for method in asked)
        return dict(zip(names, found, strict=True))

    def http_requests(self) -> list[tuple[str, str]]:
        """Every verb of every route that is not open, with something in the places of its path."""
        found: list[tuple[str, str]] = []
        for route in self.app.routes:
            if isinstance(route, Route) and route.path not in OPEN_PATHS:
                path = filled(route.path_format)
                verbs = sorted((route.methods or set()) - {"HEAD"})
                found += [(verb, path) for verb in verbs if (verb, path) != ("POST", SESSION_PATH)]
        return found

    def sockets(self) -> list[str]:
        """Every WebSocket route."""
        return [
            f"ws{self.url.removeprefix('http')}{filled(route.path_format)}"
            for route in self.app.routes
            if isinstance(route, WebSocketRoute)
        ]

    async def statuses(
        self, headers: Sequence[tuple[str, str]], requests: Iterable[tuple[str, str]] = ()
    ) -> dict[tuple[str, str], int]:
        """What every route answers, of all that can be said of it the status."""
        asked = list(requests) or self.http_requests()
        answers = await asyncio.gather(
            *(
                self.inside.request(verb, path, headers=list(headers), content=b"{}" if verb == "POST" else None)
                for verb, path in asked
            )
        )
        return {request: answer.status_code for request, answer in zip(asked, answers, strict=True)}


def least_request(method: MethodDescriptor) -> bytes:
    """The smallest request that the contract allows."""
    request = GetMessageClass(method.input_type)()
    for one in method.input_type.fields:
        bounds = cast("Any", one.GetOptions()).Extensions[options_pb2.bounds]
        if bounds.required:
            setattr(request, one.name, EXECUTION if bounds.HasField("pattern") else "something")
    return request.SerializeToString()


def everything(calls: list[tuple[str, Principal]]) -> list[Service]:
    """All services of the contract; each RPC notes who called, and answers with an empty message."""

    def handler(method: MethodDescriptor) -> Any:
        reply = GetMessageClass(method.output_type)()
        if "sequence" in reply.DESCRIPTOR.fields_by_name:
            # Whoever watches an execution waits for its first event.
            reply.sequence = 1

        async def answer(_: Any, __: Any) -> Any:
            calls.append((method.name, principal()))
            return reply

        async def answers(_: Any, context: Any) -> AsyncIterator[Any]:
            calls.append((method.name, principal()))
            yield reply
            if HELD in context.invocation_metadata():
                await asyncio.Event().wait()

        shape = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
        make = getattr(grpc, f"{shape}_rpc_method_handler")
        return make(
            answers if method.server_streaming else answer,
            GetMessageClass(method.input_type).FromString,
            lambda message: message.SerializeToString(),
        )

    def add(handlers: Any, server: Any) -> None:
        server.add_generic_rpc_handlers((handlers,))

    return [
        Service(
            name=service.full_name,
            add=add,
            servicer=grpc.method_handlers_generic_handler(
                service.full_name, {method.name: handler(method) for method in service.methods}
            ),
        )
        for file in FILES
        for service in file.services_by_name.values()
    ]


@pytest.fixture(scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    world = AccessWorld(folder=tmp_path_factory.mktemp("access"))
    settings = Settings(home=world.folder, http_requests_per_minute=1_000_000)
    calls: list[tuple[str, Principal]] = []
    store = await AccessStore.open(world.path, local=LOCAL)
    async with (
        serve_grpc(
            everything(calls), "127.0.0.1:0", store, ready, grace_seconds=0.1, check_seconds=CHECK_SECONDS
        ) as address,
        grpc.aio.insecure_channel(address) as channel,
        open_upstream(address, address) as upstream,
    ):
        credentials = CredentialChecker("the gateway's own", store)
        app = gateway_app(settings, upstream, credentials, MemoryKeyValue(), ready, check_seconds=CHECK_SECONDS)
        async with (
            serve_http(app, "127.0.0.1:0") as url,
            AsyncClient(base_url=url, timeout=_SECONDS) as client,
            AsyncClient(base_url=url, transport=ASGITransport(app)) as inside,
        ):
            yield House(world=world, channel=channel, client=client, inside=inside, url=url, app=app, calls=calls)
            await app.state.feeds.close()


@pytest.fixture(autouse=True)
def nobody_yet(house: House) -> None:
    house.calls.clear()


def bearer(token: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {token}")]


def shown(world: AccessWorld) -> dict[str, list[tuple[str, str]]]:
    """The headers of everybody who must not come in, by what is wrong with them."""
    good = world.tokens["acme-admin"]
    return {
        "nothing": [],
        "an empty header": [("authorization", "")],
        "a scheme alone": [("authorization", "Bearer")],
        "another scheme": [("authorization", f"Basic {good}")],
        "no scheme": [("authorization", good)],
        "a token and more": [("authorization", f"Bearer {good} {good}")],
        "another header": [("x-authorization", f"Bearer {good}")],
        "two headers": [*bearer(good), *bearer(good)],
        "the right one second": [*bearer("wrong"), *bearer(good)],
        "a name alone": [("fleet-caller", "acme-admin"), ("fleet-tenant", "acme")],
        **{what: bearer(token) for what, token in world.strangers().items()},
    }


def test_every_rpc_has_a_role_and_every_role_an_rpc() -> None:
    served = {method.full_name for method in METHODS}
    assert served - ROLES.keys() == set(), "without a row in services/roles.py only admins may call it"
    assert ROLES.keys() - served == set(), "there is no such RPC"
    assert set(ROLES.values()) == {AccessRole(role) for role in _PEOPLE}


async def test_no_stranger_reaches_any_rpc_route_or_socket(house: House) -> None:
    requests, sockets = house.http_requests(), house.sockets()
    assert {path for _, path in requests} >= {f"/api/executions/{EXECUTION}/events", "/api/openapi.json", SESSION_PATH}
    assert sockets
    for what, headers in shown(house.world).items():
        # What lets people in is one for all of them: each entry is tried with these, and each stranger at some entries.
        whole = what in ("nothing", "expired JWT")
        codes = await house.codes(METHODS if whole else METHODS[::20], headers)
        assert set(codes.values()) == {grpc.StatusCode.UNAUTHENTICATED}, (what, codes)
        for accept in ("application/json", "text/event-stream") if whole else ("application/json",):
            statuses = await house.statuses([*headers, ("accept", accept)], requests if whole else requests[::20])
            assert set(statuses.values()) == {401}, (what, statuses)
        for url in sockets:
            async with connect(url, additional_headers=headers) as socket:
                with pytest.raises(ConnectionClosed):
                    await asyncio.wait_for(socket.recv(), _SECONDS)
                assert socket.close_code == 4401, what
    assert house.seen == []


async def test_no_foreign_page_or_name_reaches_any_route(house: House) -> None:
    good = bearer(house.world.tokens["acme-admin"])
    for header, status in ((("origin", "http://evil.example"), 403), (("host", "evil.example"), 421)):
        for shown_token in (good, []):
            statuses = await house.statuses([*shown_token, header])
            assert set(statuses.values()) == {status}, (header, statuses)
    for url in house.sockets():
        assert await closed(url, origin="http://evil.example", **dict(good)) == 4403
    assert house.seen == []


@pytest.mark.parametrize("role", _PEOPLE)
async def test_each_role_reaches_what_is_its_own_and_nothing_else(house: House, role: str) -> None:
    who = Principal(tenant="acme", name=f"acme-{role}", roles=frozenset({AccessRole(role)}))
    headers = bearer(house.world.tokens[f"acme-{role}"])
    for method, code in (await house.codes([*METHODS], headers)).items():
        allowed = grpc.StatusCode.OK if who.may(ROLES[method]) else grpc.StatusCode.PERMISSION_DENIED
        assert code is allowed, method
    assert house.seen and set(house.seen) == {who}
    # An HTTP operation takes the role of the RPC that the API's document names.
    needed = {method.name: ROLES[method.full_name] for method in METHODS}
    document = (await house.inside.get("/api/openapi.json", headers=dict(headers))).json()
    operations = [
        (verb.upper(), filled(path), operation["operationId"])
        for path, verbs in document["paths"].items()
        for verb, operation in verbs.items()
        if operation.get("operationId") in needed
    ]
    assert len(operations) > len(METHODS) - 10
    for verb, path, rpc in operations:
        [status] = (await house.statuses(headers, [(verb, path)])).values()
        assert status not in (401, 404, 405), path
        assert (status == 403) is not who.may(needed[rpc]), (path, status)
    assert set(house.seen) == {who}


async def test_who_has_no_role_or_no_tenant_of_the_file_may_do_nothing(house: House) -> None:
    nowhere = bearer(house.world.jwt(org={"tenant": "nowhere"}, realm={"roles": ["admin"]}))
    headers = bearer(house.world.jwt(realm={"roles": ["boss", "service", 7]}))
    for who in (nowhere, headers):
        codes = await house.codes(METHODS, who)
        assert set(codes.values()) == {grpc.StatusCode.PERMISSION_DENIED}, codes
    assert set((await house.statuses(nowhere)).values()) == {401}
    statuses = await house.statuses(headers)
    assert statuses.pop(("GET", SESSION_PATH)) == 200 and statuses.pop(("DELETE", SESSION_PATH)) == 204
    assert set(statuses.values()) == {403}, statuses
    for url in house.sockets():
        assert await closed(url, **dict(headers)) == 4403
    assert house.seen == []


async def test_only_services_name_a_tenant(house: House) -> None:
    tokens, ok, denied = house.world.tokens, {grpc.StatusCode.OK}, grpc.StatusCode.PERMISSION_DENIED
    foreign = ("fleet-tenant", "umbrella")

    async def codes(metadata: Sequence[tuple[str, str]]) -> set[grpc.StatusCode]:
        return set((await house.codes(METHODS, metadata)).values())

    shown = [*bearer(tokens["acme-admin"]), foreign]
    assert await codes(shown) == {denied}
    assert set((await house.statuses(shown)).values()) == {403}
    assert house.seen == []
    own = [*bearer(tokens["acme-admin"]), ("fleet-tenant", "acme"), ("fleet-caller", "somebody-else")]
    assert await codes(own) == ok
    assert {(who.tenant, who.name) for who in house.seen} == {("acme", "acme-admin")}
    house.calls.clear()
    for token in (tokens["acme-service"], LOCAL):
        assert await codes([*bearer(token), foreign, ("fleet-caller", "ada")]) == ok
    assert {(who.tenant, who.name) for who in house.seen} == {("umbrella", "ada")}
    house.calls.clear()
    for wrong in ("nowhere", "Umbrella", "a b", "../x", ""):
        code = await house.code(METHODS[0], [*bearer(LOCAL), ("fleet-tenant", wrong)])
        assert code in (denied, grpc.StatusCode.INVALID_ARGUMENT), wrong
    twice = [*bearer(tokens["acme-service"]), foreign, ("fleet-tenant", "acme")]
    assert await house.code(METHODS[0], twice) is grpc.StatusCode.INVALID_ARGUMENT
    assert house.seen == []


# Sessions and streams end with what let them in


async def sign_in(house: House, token: str) -> Mapping[str, str]:
    answer = await house.client.post(SESSION_PATH, json={"token": token}, headers={"Origin": house.url})
    assert answer.status_code == 200, answer.text
    house.client.cookies.clear()
    cookie = answer.headers["set-cookie"].partition(";")[0]
    assert token not in cookie
    return {"Cookie": cookie, "Origin": house.url}


async def test_a_session_ends_when_its_token_is_revoked(house: House) -> None:
    world = house.world
    session = await sign_in(house, world.tokens["acme-viewer"])
    told = (await house.client.get(SESSION_PATH, headers=session)).json()
    assert (told["by"], told["tenant"], told["name"], told["roles"]) == ("cookie", "acme", "acme-viewer", ["viewer"])
    assert (await house.client.get("/api/executions", headers=session)).status_code == 200
    assert [who.name for who in house.seen] == ["acme-viewer"]
    world.write(without="acme-viewer")
    try:
        assert (await house.client.get("/api/executions", headers=session)).status_code == 401
        assert await house.code(METHODS[0], bearer(world.tokens["acme-viewer"])) is grpc.StatusCode.UNAUTHENTICATED
    finally:
        world.write()


async def test_streams_end_when_the_token_of_their_watcher_does(house: House) -> None:
    world = house.world
    session = await sign_in(house, world.tokens["acme-viewer"])
    [url] = house.sockets()
    stays = bearer(world.tokens["acme-admin"])
    # What one tenant watches is not shown to another: each has its own stream.
    for tenant in ("acme", "umbrella"):
        token = bearer(world.tokens[f"{tenant}-viewer"])
        async with connect(url.replace(EXECUTION, ANOTHER), additional_headers=token) as socket:
            await asyncio.wait_for(socket.recv(), _SECONDS)
        assert (tenant, f"{tenant}-viewer") in house.callers("StreamExecution")
    watch = house.channel.unary_stream("/fleet.orchestrator.v1.OrchestratorService/StreamExecution")
    named = pb.StreamExecutionRequest(execution_id=EXECUTION).SerializeToString()
    by_grpc, kept = (
        watch(named, metadata=[*bearer(world.tokens[name]), HELD], timeout=_SECONDS)
        for name in ("acme-viewer", "acme-admin")
    )
    await asyncio.gather(by_grpc.read(), kept.read())
    async with (
        connect(url, additional_headers=bearer(world.tokens["acme-viewer"])) as by_bearer,
        connect(url, additional_headers=session) as by_cookie,
        connect(url, additional_headers=stays) as other,
        house.client.stream(
            "GET", f"/api/executions/{EXECUTION}/events", headers={**session, "accept": "text/event-stream"}
        ) as events,
    ):
        assert events.status_code == 200
        world.write(without="acme-viewer")
        try:
            for socket in (by_bearer, by_cookie):
                with pytest.raises(ConnectionClosed):
                    while True:
                        await asyncio.wait_for(socket.recv(), _SECONDS)
                assert socket.close_code == 4401
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                await by_grpc.read()
            assert (ended.value.code(), kept.done()) == (grpc.StatusCode.UNAUTHENTICATED, False)
            kept.cancel()
            told = b"".join([piece async for piece in events.aiter_bytes()])
            assert b"event: end" not in told
            await other.send('{"type": "ping"}')
            while json.loads(await asyncio.wait_for(other.recv(), _SECONDS))["type"] != "pong":
                pass
        finally:
            world.write()


async def test_an_answer_is_not_given_again_to_who_has_lost_the_role(house: House) -> None:
    headers = {"idempotency-key": "of-a-role", "content-type": "application/json"}

    async def ask(*roles: str) -> Response:
        token = house.world.jwt(sub="eve", realm={"roles": roles})
        return await house.client.post("/api/executions", headers={**dict(bearer(token)), **headers}, json={})

    assert (await ask("viewer")).status_code == 403
    first = await ask("submitter")
    assert first.is_success and "idempotency-replayed" not in first.headers
    lost = await ask("viewer", "approver")
    assert (lost.status_code, lost.json()["field"]) == (403, "idempotency-key")
    for roles in (("submitter", "viewer"), ("admin",)):
        again = await ask(*roles)
        assert (again.content, again.headers["idempotency-replayed"]) == (first.content, "true")
    assert house.callers("SubmitTask") == [("acme", "eve")]
