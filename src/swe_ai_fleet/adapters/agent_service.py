"""A gRPC client of external agents that serve `fleet.agent.v1.AgentService`."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from ipaddress import IPv4Address, IPv6Address, ip_address
from itertools import chain
from typing import Any, cast

import grpc
import grpc.aio

from fleet.agent.v1 import agent_pb2 as pb
from fleet.agent.v1.agent_pb2_grpc import AgentServiceStub
from swe_ai_fleet.agents.external_agent import (
    MAX_BUNDLE_BYTES,
    MAX_PATCH_BYTES,
    AgentBusy,
    AgentFault,
    HandedIn,
    Handout,
)
from swe_ai_fleet.contract import from_message, to_message
from swe_ai_fleet.domain.assignment import CodingAssignment
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import CheckReport
from swe_ai_fleet.domain.council import AgentEndpoint, EndpointRules
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.review import Critique
from swe_ai_fleet.domain.task import Task
from swe_ai_fleet.domain.text import well_formed
from swe_ai_fleet.ports import RepositoryBundle, SecretMask
from swe_ai_fleet.sandbox.network import METADATA, Resolver, SystemResolver, is_public

MAX_ADDRESSES = 4
CHUNK_BYTES = 256 * 1024
MAX_COUNT = 10**12
MAX_COST = 1e9
MAX_CRITIQUES = 16
MAX_TEXT_CHARS = 16_000
_MAX_FINDINGS = 50
_COUNTS = ("prompt_tokens", "completion_tokens", "cached_tokens", "model_calls", "tool_calls", "duration_ms")
PROTOCOL_VERSION = 1
DESCRIBE_SECONDS = 10.0
MAX_MESSAGE_BYTES = MAX_PATCH_BYTES + 1024 * 1024
_DETAILS_CHARS = 500
_TOO_LARGE = "message larger than max"
_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", 16 * 1024),
    # Neither this process's environment nor a name server may configure a call.
    ("grpc.enable_http_proxy", 0),
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
)


async def target_of(endpoint: AgentEndpoint, rules: EndpointRules, resolver: Resolver | None = None) -> str:
    """The endpoint's addresses in gRPC's format, after checking each of them. Raises AgentFault.

    A name is resolved only here, so that exactly the checked addresses are called; without a resolver by the system's.
    """
    addresses = await _addresses(endpoint, resolver or SystemResolver())
    named = rules.names(endpoint)
    for address in addresses:
        if not (is_public(address) or (named and (endpoint.is_address or not _is_guarded(address)))):
            raise AgentFault(
                f"the agent at {endpoint} is not on the public internet (its address is {address})",
                hint="add it to FLEET_AGENT_ENDPOINTS without a *; add a link-local one by its address",
            )
    targets = [
        f"[{address}]:{endpoint.port}" if ":" in address else f"{address}:{endpoint.port}" for address in addresses
    ]
    return f"{'ipv6' if ':' in addresses[0] else 'ipv4'}:{','.join(targets)}"


async def _addresses(endpoint: AgentEndpoint, resolver: Resolver) -> Sequence[str]:
    """The host's addresses of one family, IPv4 first."""
    if endpoint.is_address:
        return [endpoint.host]
    try:
        resolved = tuple(await resolver.resolve(endpoint.host, endpoint.port))
    except (OSError, UnicodeError) as error:
        raise AgentFault(f"the host of the agent at {endpoint} cannot be resolved: {error}") from None
    addresses = [each for each in resolved if ":" not in each] or resolved
    if not addresses:
        raise AgentFault(f"the host of the agent at {endpoint} has no address")
    return addresses[:MAX_ADDRESSES]


def _is_guarded(text: str) -> bool:
    """Whether an address is link-local, special or a metadata service's; strangers' names must not resolve to it."""
    address = ip_address(text.partition("%")[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    tunnelled = isinstance(address, IPv6Address) and bool(address.sixtofour or address.teredo or address.is_reserved)
    return (
        tunnelled
        or address.is_link_local
        or address.is_multicast
        or address.is_unspecified
        or (isinstance(address, IPv4Address) and address.is_reserved)
        or address in METADATA
    )


async def _requests(handout: Handout, mask: SecretMask) -> Iterator[pb.SolveRequest]:
    """The messages of one call: assignment, bundle, and the patch to revise. Raises ResourceExhausted, Unavailable."""
    repository, revised = await handout.clone.bundle(max_bytes=MAX_BUNDLE_BYTES), await handout.revised_patch()
    assignment = _assignment(handout.assignment, repository, revised, lambda text: mask(well_formed(text)))
    return chain(
        (pb.SolveRequest(assignment=assignment),),
        (pb.SolveRequest(bundle=chunk) for chunk in _chunks(repository.data)),
        (pb.SolveRequest(revised_patch=chunk) for chunk in _chunks(revised)),
    )


def _chunks(data: bytes) -> Iterator[bytes]:
    for offset in range(0, len(data), CHUNK_BYTES):
        yield data[offset : offset + CHUNK_BYTES]


def _assignment(
    assignment: CodingAssignment, repository: RepositoryBundle, revised: bytes, mask: SecretMask
) -> pb.Assignment:
    task, revision = assignment.task, assignment.revision
    message = pb.Assignment(
        execution_id=assignment.execution_id,
        agent_id=assignment.agent_id,
        attempt=assignment.generation,
        task_id=task.task_id,
        role=str(task.role),
        task_description=mask(task.description),
        context=mask(task.context),
        constraints=_constraints(task, mask),
        repository=pb.Repository(
            base_commit=repository.commit,
            branch=assignment.repository.branch,
            subdirectory=assignment.repository.subdirectory,
            bundle_bytes=len(repository.data),
            without_history=repository.without_history,
        ),
        perspective=to_message(pb.Perspective, assignment.perspective),
    )
    if revision is not None:
        message.revision.CopyFrom(
            pb.Revision(
                round=revision.round,
                patch_bytes=len(revised),
                checks=_checks(revision.report, mask),
                critiques=[
                    _critique(critique, mask) for critique in revision.critiques[:MAX_CRITIQUES] if not critique.error
                ],
            )
        )
    return message


def _constraints(task: Task, mask: SecretMask) -> pb.Constraints:
    constraints = task.constraints
    return to_message(
        pb.Constraints,
        constraints.limits,
        rubric=mask(constraints.rubric),
        requirements=[mask(each) for each in constraints.requirements],
        allowed_paths=constraints.allowed_paths,
        checks=[
            to_message(
                pb.Check,
                check,
                name=mask(check.name),
                command=mask(check.command),
                timeout_seconds=int(check.timeout_seconds),
            )
            for check in constraints.checks
        ],
        timeout_seconds=max(1, int(constraints.limits.timeout_seconds)),
        metadata={mask(name): mask(value) for name, value in constraints.metadata.items()},
        read_only=not task.enable_tools,
    )


def _checks(report: CheckReport, mask: SecretMask) -> list[pb.CheckResult]:
    return [
        to_message(
            pb.CheckResult,
            result,
            message=mask(result.message[:MAX_TEXT_CHARS]),
            output=mask(result.output[-MAX_TEXT_CHARS:]),
            problems=[mask(each[:MAX_TEXT_CHARS]) for each in result.problems[:_MAX_FINDINGS]],
        )
        for result in report.results
        if not result.skipped_reason
    ]


def _critique(critique: Critique, mask: SecretMask) -> pb.Critique:
    return to_message(
        pb.Critique,
        critique,
        content=mask(critique.content[:MAX_TEXT_CHARS]),
        findings=[
            to_message(pb.Finding, finding, text=mask(finding.text[:MAX_TEXT_CHARS]))
            for finding in critique.findings[:_MAX_FINDINGS]
        ],
    )


def _usage(message: pb.Usage) -> Usage:
    """The usage that an agent reports, with implausible values clamped."""
    cost = message.cost_usd or message.cost
    return from_message(
        Usage,
        message,
        **{counter: _count(getattr(message, counter)) for counter in _COUNTS},
        cost=min(max(cost, 0.0), MAX_COST) if math.isfinite(cost) else 0.0,
    )


def _count(value: int) -> int:
    return min(max(value, 0), MAX_COUNT)


class AgentServiceClient:
    """An `OutsideAgent` over gRPC; each call has its own connection.

    Args:
        token: The bearer token for agents, sent over TLS only; empty: none.
        roots: The trusted root certificates, as PEM; None: gRPC's own.
    """

    def __init__(self, rules: EndpointRules, *, mask: SecretMask, token: str = "", roots: bytes | None = None) -> None:
        self._rules = rules
        self._mask = mask
        self._token = token
        self._roots = roots

    in_place = False

    async def describe(self, endpoint: str) -> str:
        async with self._connected(endpoint) as (stub, metadata, agent):
            with _as_agent_fault(agent):
                description = await stub.Describe(pb.DescribeRequest(), metadata=metadata, timeout=DESCRIBE_SECONDS)
            if not isinstance(description, pb.DescribeResponse):
                raise AgentFault(f"the description of the agent at {agent} cannot be read")
            if description.protocol_version != PROTOCOL_VERSION:
                raise AgentFault(
                    f"the agent at {agent} speaks version {description.protocol_version} of the protocol",
                    hint=f"this fleet speaks version {PROTOCOL_VERSION}",
                )
            return f"external:{description.name or agent}"

    async def solve(self, endpoint: str, handout: Handout) -> HandedIn:
        requests = await _requests(handout, self._mask)
        async with self._connected(endpoint) as (stub, metadata, agent):
            call = stub.Solve(_stream(requests), metadata=metadata)
            try:
                with _as_agent_fault(agent):
                    # gRPC yields None for an unreadable message.
                    async for response in cast("AsyncIterator[pb.SolveResponse | None]", call):
                        if response is None:
                            raise AgentFault(f"the answer of the agent at {agent} cannot be read")
                        match response.WhichOneof("part"):
                            case "progress":
                                handout.record.say(response.progress.text)
                            case "result":
                                result = response.result
                                return HandedIn(patch=result.patch, summary=result.summary, usage=_usage(result.usage))
                            case _:
                                raise AgentFault("the agent sent a message without progress or result")
            finally:
                call.cancel()
        raise AgentFault("the agent ended without a result")

    @asynccontextmanager
    async def _connected(
        self, text: str
    ) -> AsyncGenerator[tuple[Any, tuple[tuple[str, str], ...], AgentEndpoint], None]:
        try:
            agent = self._rules.check(text)
        except InvalidRequest as error:
            raise AgentFault(error.message, field=error.field, hint=error.hint) from None
        target = await target_of(agent, self._rules)
        options = (*_OPTIONS, ("grpc.default_authority", agent.authority))
        if agent.tls:
            name = ("grpc.ssl_target_name_override", agent.host)
            channel = grpc.aio.secure_channel(
                target, grpc.ssl_channel_credentials(self._roots), options=(*options, name)
            )
        else:
            channel = grpc.aio.insecure_channel(target, options=options)
        metadata = (("authorization", f"Bearer {self._token}"),) if self._token and agent.tls else ()
        async with channel:
            yield cast("Any", AgentServiceStub)(channel), metadata, agent


async def _stream(requests: Iterable[pb.SolveRequest]) -> AsyncGenerator[pb.SolveRequest, None]:
    for request in requests:
        yield request


@contextmanager
def _as_agent_fault(agent: AgentEndpoint) -> Generator[None]:
    """Turns every failure of a call into an AgentFault with the agent's own message."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        code = error.code()
        words = (error.details() or "")[:_DETAILS_CHARS]
        # gRPC uses the same code for a message over the limit, where a retry does not help.
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LARGE not in words:
            raise AgentBusy(f"the agent at {agent} is busy: {words}") from None
        if code is grpc.StatusCode.UNAVAILABLE:
            raise AgentFault(f"the agent at {agent} cannot be reached, or disconnected: {words}") from None
        raise AgentFault(f"the agent at {agent} ended with {code.name}: {words}") from None
    except asyncio.CancelledError:
        # gRPC also raises this for a call that it ended itself, without a cancellation of this task.
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise
        raise AgentFault(f"the call to the agent at {agent} broke off") from None
