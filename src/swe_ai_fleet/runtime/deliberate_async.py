"""`DeliberateAsync`: submits a task to a running fleet from a library, without waiting for its end."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any, TypedDict, cast

import grpc
import grpc.aio

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from fleet.orchestrator.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from swe_ai_fleet.contract import to_message
from swe_ai_fleet.domain.errors import (
    AlreadyExists,
    FleetError,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    ResourceExhausted,
    Unavailable,
)
from swe_ai_fleet.domain.task import Role
from swe_ai_fleet.runtime.channels import FleetAddress, find_fleet, named_field, open_channel, tls_fault
from swe_ai_fleet.runtime.library_requests import read_constraints, repository_reference
from swe_ai_fleet.settings import Settings

ACCEPTANCE_SECONDS = 600.0
"""How long an acceptance may take: the fleet may have to clone the repository first."""
_STATUS = "DELIBERATION_STATUS_"
_START_HINT = "start one with `fleet up`, or set its address"
_FAULTS: Mapping[grpc.StatusCode, type[FleetError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExists,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhausted,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.CANCELLED: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: Unavailable,
}
# The one limit that a fleet sets for all of its tasks.
_RESERVED = "command_timeout_seconds"


class Accepted(TypedDict):
    """An accepted task: `status` is `PENDING`, or the current one of a task that was submitted before."""

    task_id: str
    execution_id: str
    status: str


class DeliberateAsync:
    """Lets several agents of a running fleet solve a task, without waiting for them.

    Results come on NATS (`agent.results.<task_id>`; each agent's own, named `agent-<role>-<i>`, behind it) and from
    the fleet's `GetDeliberationResult`.

    Args:
        server: `host:port` of the fleet; empty: FLEET_SERVER, else the fleet that runs on the home of the settings.
        token: The fleet's token; empty: FLEET_TOKEN, else that of the home's fleet, which is sent to no other address.
        repo: The repository to work on, a directory or a URL; a task's `constraints["repo_url"]` takes precedence.
            Without either it is the fleet's default repository, if it has one.
        role: DEV, QA, ARCHITECT, DEVOPS or DATA.
        rounds: Rounds of peer review; 0: the fleet's default.
        model_profile: Model profiles of the fleet, separated by commas; the agents take them in turn.
        settings: For the home and the TLS of a fleet; from the environment when not given.
    """

    def __init__(
        self,
        server: str = "",
        token: str = "",
        *,
        repo: str = "",
        role: str = "DEV",
        rounds: int = 0,
        model_profile: str = "",
        settings: Settings | None = None,
    ) -> None:
        self._settings = settings or Settings()
        self._server = server or os.environ.get("FLEET_SERVER", "")
        self._token = token or os.environ.get("FLEET_TOKEN", "")
        self._repo = repo
        self._role = Role.parse(role)
        self._rounds = rounds
        self._model_profile = model_profile

    async def execute(
        self,
        task_id: str,
        task: str,
        context: str = "",
        constraints: Mapping[str, object] | None = None,
        num_agents: int = 3,
    ) -> Accepted:
        """Submit a task; its acceptance is durable when this returns. Submitting the same task again changes nothing.

        Args:
            task_id: Identifies the task, its results and its agents' audit; makes the call idempotent.
            task: The instruction.
            context: Further information for the agents.
            constraints: As for `ToolEnabledAgent.execute_task`: limits, tools, paths, checks; repo_url and ref.
            num_agents: How many agents solve it.

        Raises:
            InvalidRequest, AlreadyExists (other content under the same id), PreconditionFailed, ResourceExhausted:
                The fleet's refusal; `field` names what to change.
            Unavailable: No fleet answers.
        """
        request = self._request(task_id, task, context, dict(constraints or {}), num_agents)
        fleet = find_fleet(self._settings, server=self._server, token=self._token)
        if fleet is None:
            raise Unavailable(f"no fleet is running in {self._settings.home}", field="server", hint=_START_HINT)
        answer = await _submit(fleet, request)
        status = pb.DeliberationStatus.Name(answer.status).removeprefix(_STATUS)
        return Accepted(task_id=answer.task_id, execution_id=answer.execution_id, status=status)

    def _request(
        self, task_id: str, task: str, context: str, constraints: dict[str, object], num_agents: int
    ) -> pb.SubmitTaskRequest:
        location = str(constraints.pop("repo_url", "") or "") or self._repo
        ref = str(constraints.pop("ref", "") or "")
        if num_agents < 1:
            raise InvalidRequest(f"num_agents is {num_agents}", field="num_agents", hint="at least 1")
        return pb.SubmitTaskRequest(
            deliberate=pb.DeliberateRequest(
                task_id=task_id,
                task_description=task,
                role=self._role,
                constraints=constraints_message(constraints),
                rounds=self._rounds,
                num_agents=num_agents,
                repo=repository_reference(location, ref=ref) if location else pb.RepoRef(ref=ref),
                context=context,
                model_profile=self._model_profile,
            )
        )


def constraints_message(constraints: Mapping[str, object]) -> pb.TaskConstraints:
    """A library caller's constraints as a message; fields that are not given are left to the fleet.

    Raises InvalidRequest naming what is malformed.
    """
    if _RESERVED in constraints:
        field = f"constraints.{_RESERVED}"
        raise InvalidRequest(f"{_RESERVED} is reserved by the fleet", field=field, hint="leave it out")
    read = read_constraints(constraints)
    limits, hosts = read.limits, read.allowed_hosts
    numbers: dict[str, float] = {
        "max_iterations": limits.max_iterations,
        "max_tool_calls": limits.max_tool_calls,
        "max_tokens": limits.max_tokens,
        "timeout_seconds": math.ceil(limits.timeout_seconds),
        "max_cost": limits.max_cost,
    }
    return to_message(
        pb.TaskConstraints,
        read,
        checks=[
            to_message(pb.CheckSpec, check, timeout_seconds=math.ceil(check.timeout_seconds)) for check in read.checks
        ],
        network=pb.NetworkPolicy(allowed_hosts=hosts) if hosts is not None else None,
        total_max_tokens=read.totals.max_tokens,
        total_max_tool_calls=read.totals.max_tool_calls,
        total_max_cost=read.totals.max_cost,
        **{name: value if name in constraints else None for name, value in numbers.items()},
    )


async def _submit(fleet: FleetAddress, request: pb.SubmitTaskRequest) -> pb.SubmitTaskResponse:
    metadata = (("authorization", f"Bearer {fleet.token}"),) if fleet.token else ()
    async with open_channel(fleet.address, fleet.tls, options=[("grpc.enable_http_proxy", 0)]) as channel:
        stub = cast("Any", OrchestratorServiceStub)(channel)
        try:
            answer = await stub.SubmitTask(request, metadata=metadata, timeout=ACCEPTANCE_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise _fault(error, fleet.address) from error
    return cast("pb.SubmitTaskResponse", answer)


def _fault(error: grpc.aio.AioRpcError, address: str) -> FleetError:
    field = named_field(error)
    code = error.code()
    if code is grpc.StatusCode.UNAVAILABLE and field is None:
        tls_problem = tls_fault(error.details() or "")
        why, hint = (f": {tls_problem[0]}", tls_problem[1]) if tls_problem else ("", _START_HINT)
        return Unavailable(f"no fleet answers at {address}{why}", field="server", hint=hint)
    kind = _FAULTS.get(code, PreconditionFailed)
    message = error.details() or code.name.lower().replace("_", " ")
    return kind(message, field=(field or "").removeprefix("deliberate."))
