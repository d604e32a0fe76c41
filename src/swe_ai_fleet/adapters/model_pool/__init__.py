"""Several model servers as one chat model: routing, fail-over, waiting, and the fleet's limits."""

from __future__ import annotations

import asyncio
import hashlib
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, Self
from weakref import WeakValueDictionary

from swe_ai_fleet.adapters.model_pool.admission import LeasedAdmission, estimated_tokens
from swe_ai_fleet.adapters.model_pool.dispatcher import PING_SECONDS, CallDispatcher, PoolRules
from swe_ai_fleet.adapters.model_pool.endpoint import Binding, Counters, Endpoint, MemberStatus, PoolMember, PoolStatus
from swe_ai_fleet.adapters.model_pool.ledger import CallQuota, Demand, Grant, MemoryLedger
from swe_ai_fleet.adapters.model_pool.load import Circuit, Fault, FaultKind, vllm_load
from swe_ai_fleet.domain.errors import ModelError, ModelUnavailable
from swe_ai_fleet.domain.message import ModelCapabilities, ModelReply, ModelRequest
from swe_ai_fleet.ports import CallTimeout, ChatModel

__all__ = [
    "CallQuota",
    "Demand",
    "Fault",
    "FaultKind",
    "Grant",
    "LeasedAdmission",
    "MemoryLedger",
    "ModelPool",
    "ModelSession",
    "PoolMember",
    "PoolRules",
    "estimated_tokens",
    "vllm_load",
]

_GRACE_SECONDS = 2.0
_LONGEST_UNASKED_SECONDS = 60.0
_USUAL = CallTimeout()


class ModelPool:
    """A `ChatModel` over one endpoint or several, shared by all agents of a process.

    Calls go to the least loaded endpoint; those of a `session` stay at one, whose prefix cache they warm. A failed
    call goes to another endpoint; while none is available, calls wait. All waiting and retrying happens here: the
    members must not retry themselves. Use it as an async context manager, within one event loop; the caller opens
    the members.

    Args:
        members: the endpoints; at least one without a `source`.
        admission: enforces the fleet's limits; None without limits.
        source: where members are discovered, for messages; `renew` then sets them.
    """

    def __init__(
        self,
        members: Sequence[PoolMember],
        *,
        read_fault: Callable[[ModelUnavailable], Fault],
        admission: LeasedAdmission | None = None,
        rules: PoolRules | None = None,
        source: str = "",
    ) -> None:
        if not members and not source:
            raise ValueError("a pool needs at least one server")
        self._rules = rules or PoolRules()
        self._dispatcher = CallDispatcher(members, read_fault=read_fault, rules=self._rules, source=source)
        self._admission = admission
        self._bindings: WeakValueDictionary[str, Binding] = WeakValueDictionary()
        self._polling: dict[Endpoint, asyncio.Task[None]] = {}
        self._probing: dict[Endpoint, asyncio.Task[ModelCapabilities]] = {}
        self._leaving: dict[asyncio.Task[None], Endpoint] = {}
        self._active = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._start_polling(self._endpoints)
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = (*self._polling.values(), *self._probing.values(), *self._leaving)
        leaving = list(self._leaving.values())
        await _cancel(tasks)
        await self._dispatcher.close()
        for endpoint in (*self._endpoints, *leaving):
            await _close(endpoint)

    def set_members(self, members: Collection[PoolMember]) -> None:
        """Replace the members, within the context.

        Runs stay at their endpoint unless its member leaves: then their next calls go elsewhere, and running ones end
        there. A new member gets calls once it answers a ping.
        """
        new, departed = self._dispatcher.set_members(members)
        self._start_polling(new)
        for endpoint in departed:
            leaving = asyncio.create_task(self._leave(endpoint))
            self._leaving[leaving] = endpoint
            leaving.add_done_callback(self._leaving.pop)

    @property
    def _endpoints(self) -> tuple[Endpoint, ...]:
        return self._dispatcher.endpoints

    def _start_polling(self, endpoints: Iterable[Endpoint]) -> None:
        self._polling |= {
            endpoint: asyncio.create_task(self._poll(endpoint)) for endpoint in endpoints if endpoint.member.load
        }

    async def _leave(self, endpoint: Endpoint) -> None:
        """Close a departed member after its last call."""
        tasks = [task for tasks in (self._polling, self._probing) if (task := tasks.pop(endpoint, None)) is not None]
        await _cancel(tasks)
        assert endpoint.emptied is not None
        await endpoint.emptied.wait()
        # A ping of all endpoints may still be running.
        await asyncio.sleep(PING_SECONDS)
        await _close(endpoint)

    @property
    def counters(self) -> Counters:
        """The counters since the pool was opened."""
        return self._dispatcher.counters

    def session(
        self, key: str, *, tenant: str = "", priority: int = 0, timeout: CallTimeout | None = None
    ) -> ModelSession:
        """A `ChatModel` for one agent run, whose calls stay at one endpoint while it is available and not overloaded.

        Runs spread evenly over the endpoints. The binding lasts as long as a session with its key exists, so that
        sub-agents with their run's key share it. When calls wait, tenants take turns, and calls of a higher priority
        precede the others of their tenant.
        """
        binding = self._bindings.get(key)
        if binding is None:
            name = hashlib.sha256(key.encode(errors="replace")).hexdigest()[:32]
            binding = Binding(name=name, tenant=tenant, priority=priority, started=time.monotonic())
            self._bindings[key] = binding
            self._active.set()
        return ModelSession(self, binding, timeout or CallTimeout())

    async def probe(self) -> ModelCapabilities:
        """The capabilities of the first endpoint that answers, with the shortest context of all that answer.

        Unlike a session's, it does not wait for servers that are down. Capabilities that an endpoint lacks (pictures,
        replies that follow a schema, several calls in one reply) are left out. The protocol of tool calls is each
        endpoint's own. Raises the first endpoint's ModelError where none answers.
        """
        if not self._endpoints:
            raise self._dispatcher.none_available()
        await self._probe_all()
        if not any(endpoint.capabilities for endpoint in self._endpoints):
            # Every endpoint is slow or down, so wait for their own faults and timeouts.
            probes = [self._probe(endpoint) for endpoint in self._endpoints]
            await asyncio.wait(probes)
            if not any(endpoint.capabilities for endpoint in self._endpoints):
                return probes[0].result()
        return self._merged()

    async def ping(self) -> None:
        """Return as soon as one endpoint answers. Raises the first endpoint's ModelError where none does."""
        if not self._endpoints:
            raise self._dispatcher.none_available()
        pings = [asyncio.create_task(endpoint.member.model.ping()) for endpoint in self._endpoints]
        try:
            for ping in asyncio.as_completed(pings):
                try:
                    await ping
                except ModelError:
                    continue
                return
        finally:
            for ping in pings:
                ping.cancel()
            await asyncio.gather(*pings, return_exceptions=True)
        await pings[0]

    async def reply(self, request: ModelRequest) -> ModelReply:
        """One completion from the least loaded endpoint, once the fleet's limits allow it.

        Raises ContextTooLong, ModelRejected, and ModelUnavailable once the timeout or the retries are used up.
        """
        # Routers send all requests without a session, or with the same one, to one server.
        return await self.reply_at(None, replace(request, session=request.session or uuid.uuid4().hex))

    async def reply_at(
        self, binding: Binding | None, request: ModelRequest, timeout: CallTimeout = _USUAL
    ) -> ModelReply:
        """As `reply`, at the endpoint that a run is bound to."""

        async def ask(model: ChatModel) -> ModelReply:
            reply = await model.reply(request)
            if binding is not None:
                binding.add_usage(reply.usage)
            return reply

        self._active.set()
        admission = self._admission
        if admission is None:
            return await self._dispatcher.serve(ask, binding, timeout)
        reserved = spent = estimated_tokens(request)
        await admission.admit(reserved, binding)
        try:
            reply = await self._dispatcher.serve(ask, binding, timeout)
            spent = reply.usage.total_tokens or reserved
            return reply
        except ModelError:
            spent = 0
            raise
        finally:
            admission.settle(reserved, spent)

    async def probe_at(self, binding: Binding | None, timeout: CallTimeout = _USUAL) -> ModelCapabilities:
        """As `probe`, but waits while no endpoint is available. Raises ModelError."""
        capabilities = await self._dispatcher.serve(lambda model: model.probe(), binding, timeout)
        await self._probe_all()
        return self._merged() if any(endpoint.capabilities for endpoint in self._endpoints) else capabilities

    def status(self) -> PoolStatus:
        """The state of each endpoint in this process."""
        now = asyncio.get_running_loop().time()
        return PoolStatus(
            endpoints=tuple(
                MemberStatus(
                    name=endpoint.member.name,
                    circuit=endpoint.breaker.circuit,
                    in_flight=endpoint.in_flight,
                    limit=endpoint.window.limit(now),
                    sessions=len(endpoint.bindings),
                    load=endpoint.load,
                    last_fault=endpoint.last_fault.message if endpoint.last_fault else "",
                )
                for endpoint in self._endpoints
            ),
            waiting=self._dispatcher.waiting,
        )

    def _merged(self) -> ModelCapabilities:
        reported = [endpoint.capabilities for endpoint in self._endpoints if endpoint.capabilities]
        lengths = [capabilities.max_model_len for capabilities in reported if capabilities.max_model_len]
        return replace(
            reported[0],
            max_model_len=min(lengths, default=0),
            parallel_tools=all(capabilities.parallel_tools for capabilities in reported),
            structured_output=all(capabilities.structured_output for capabilities in reported),
            images=all(capabilities.images for capabilities in reported),
            logprobs=all(capabilities.logprobs for capabilities in reported),
        )

    async def _probe_all(self) -> None:
        """Probe every available endpoint, and wait a moment for slow ones; most probes are remembered."""
        probes = [self._probe(endpoint) for endpoint in self._endpoints if endpoint.breaker.circuit is not Circuit.OPEN]
        if probes:
            await asyncio.wait(probes, timeout=_GRACE_SECONDS)

    def _probe(self, endpoint: Endpoint) -> asyncio.Task[ModelCapabilities]:
        task = self._probing.get(endpoint)
        if task is None or task.done():
            task = self._probing[endpoint] = asyncio.create_task(endpoint.member.model.probe())
            task.add_done_callback(lambda done: _note(endpoint, done))
        return task

    async def _poll(self, endpoint: Endpoint) -> None:
        """Poll a server's load while anything runs here, at growing intervals if it reports none."""
        probe, pause = endpoint.member.load, self._rules.poll_every
        assert probe is not None
        loop = asyncio.get_running_loop()
        while True:
            if not self._bindings and not any(other.in_flight for other in self._endpoints):
                self._active.clear()
                await self._active.wait()
            in_flight = endpoint.in_flight
            load = await probe()
            if load is not None:
                endpoint.take_load(load, asked_with=in_flight, now=loop.time())
            pause = self._rules.poll_every if load else min(2 * pause, _LONGEST_UNASKED_SECONDS)
            await asyncio.sleep(pause)


class ModelSession:
    """The `ChatModel` of one agent run, bound to one endpoint of the pool. Made by `ModelPool.session`."""

    def __init__(self, pool: ModelPool, binding: Binding, timeout: CallTimeout) -> None:
        self._pool = pool
        self._binding = binding
        self._timeout = timeout

    @property
    def endpoint(self) -> str:
        """The name of the endpoint it is bound to; empty before its first call."""
        return self._binding.endpoint.member.name if self._binding.endpoint else ""

    async def probe(self) -> ModelCapabilities:
        return await self._pool.probe_at(self._binding, self._timeout)

    async def ping(self) -> None:
        await self._pool.ping()

    async def reply(self, request: ModelRequest) -> ModelReply:
        return await self._pool.reply_at(self._binding, replace(request, session=self._binding.name), self._timeout)


async def _cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    for task in (tasks := list(tasks)):
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _close(endpoint: Endpoint) -> None:
    if endpoint.member.close is not None:
        await endpoint.member.close()


def _note(endpoint: Endpoint, done: asyncio.Task[ModelCapabilities]) -> None:
    if not done.cancelled() and done.exception() is None:
        endpoint.capabilities = done.result()
