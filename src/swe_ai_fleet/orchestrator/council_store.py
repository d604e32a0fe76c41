"""The councils of an installation: kept in a key-value store, the same for every replica."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from swe_ai_fleet.codec import from_json, from_plain, to_json
from swe_ai_fleet.domain.council import Council, CouncilMember, EndpointRules, is_harness
from swe_ai_fleet.domain.errors import AlreadyExists, InvalidRequest, PreconditionFailed, fields_named
from swe_ai_fleet.domain.task import DEFAULT_AGENTS, ApprovalPolicy, Role, Task
from swe_ai_fleet.domain.text import now
from swe_ai_fleet.following import rewritten
from swe_ai_fleet.orchestrator.councils import (
    OUTSIDE_AGENTS,
    CouncilRules,
    adopted,
    council_name,
    council_of,
    own_agents,
)
from swe_ai_fleet.ports import KeyValue, KeyValueEntry

MAX_COUNCIL_BYTES = 512 * 1024

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class CouncilRecord:
    """The stored entry of a role: its council, or None where it has no council despite the defaults."""

    council: Council | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """The result of a deletion. Without a `council` there was none to delete."""

    council: Council | None
    was_default: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """The council with the agent. `known`: it had an agent with this id before."""

    council: Council
    known: bool


class CouncilStore:
    """Creates, lists, changes and deletes councils; of two concurrent changes of one council, both take effect.

    Args:
        defaults: The councils of roles without an entry in the store.
        rules: The rules for councils. Defaults that break them raise InvalidRequest.
        places: The endpoints that a tenant allows for external agents; None: those of `rules`.
        now: The time, ISO 8601.
    """

    def __init__(
        self,
        store: KeyValue,
        *,
        defaults: Iterable[Council] = (),
        rules: CouncilRules | None = None,
        places: Callable[[str], EndpointRules] | None = None,
        now: Callable[[], str] = now,
    ) -> None:
        self._store = store
        self._rules = rules or CouncilRules()
        self._places = places
        self._now = now
        self._defaults = {council.role: council for council in defaults}
        for role, council in self._defaults.items():
            with fields_named(lambda head, role=role: f"councils_file: {role}.{head}"):
                self._rules.check(council)

    async def get(self, tenant: str, role: Role) -> Council | None:
        """A role's council. Raises Unavailable."""
        return self._council(role, await self._store.get(_key(tenant, role)))

    async def list(self, tenant: str, role: Role | None = None) -> tuple[Council, ...]:
        """All councils, or that of a role, in the order of the roles. Raises Unavailable."""
        stored = {entry.key: entry for entry in await self._store.entries(_prefix(tenant))}
        roles = tuple(Role) if role is None else (role,)
        councils = (self._council(each, stored.get(_key(tenant, each))) for each in roles)
        return tuple(council for council in councils if council is not None)

    async def create(self, tenant: str, settings: Council, *, num_agents: int = 0) -> Council:
        """Create a council with `settings` and, where they name no members, `num_agents` agents of the fleet (0: 3).

        It replaces a default one. Raises InvalidRequest naming the field, AlreadyExists, Unavailable.
        """
        council = replace(settings, council_id=council_name(settings.role))
        self._rules.check_settings(council)
        if not 0 <= num_agents <= self._rules.max_agents:
            raise InvalidRequest(
                f"num_agents is {num_agents}", field="num_agents", hint=f"between 0 and {self._rules.max_agents}"
            )
        outside = council.agent_type == OUTSIDE_AGENTS
        if outside and num_agents:
            raise InvalidRequest(
                "external agents cannot be created with a council",
                field="num_agents",
                hint="leave it out, and register each agent with its endpoint",
            )
        if not council.members and not outside:
            council = replace(council, members=own_agents(council.role, num_agents or DEFAULT_AGENTS))
        now = self._now()
        council = replace(council, members=tuple(replace(member, registered_at=now) for member in council.members))

        def put(stored: CouncilRecord | None) -> tuple[CouncilRecord, Council]:
            if stored is not None and stored.council is not None:
                raise AlreadyExists(
                    f"{council.role} already has a council", field="role", hint="delete it first, or register agents"
                )
            return CouncilRecord(council=council), council

        return await self._change(tenant, council.role, put)

    async def delete(self, tenant: str, role: Role) -> Deletion:
        """Remove a role's council, even a default one; agents are then made for each of its tasks.

        Raises Unavailable.
        """

        def drop(stored: CouncilRecord | None) -> tuple[CouncilRecord | None, Deletion]:
            council = stored.council if stored is not None else self._defaults.get(role)
            deletion = Deletion(council=council, was_default=stored is None and council is not None)
            return (None if council is None else CouncilRecord()), deletion

        return await self._change(tenant, role, drop)

    async def register(self, tenant: str, role: Role, member: CouncilMember) -> Registration:
        """Add an agent to a role's council, which is created if there is none; one with the same id is replaced.

        Raises InvalidRequest naming the field, PreconditionFailed (the council is full), Unavailable.
        """
        member = replace(member, registered_at=self._now())
        if member.elsewhere and self._places is not None:
            self._rules.endpoints.check(member.endpoint)
            self._places(tenant).check(member.endpoint)

        def add(record: CouncilRecord | None) -> tuple[CouncilRecord, Registration]:
            council = record.council if record is not None else self._defaults.get(role)
            council = council or Council(council_id=council_name(role), role=role, members=())
            self._rules.check_member(council, member)
            is_member = any(present.agent_id == member.agent_id for present in council.members)
            if not is_member and len(council.members) >= self._rules.max_agents:
                raise PreconditionFailed(
                    f"{council.council_id} has {len(council.members)} agents",
                    field="agent_id",
                    hint="unregister one first",
                )
            members = [member if present.agent_id == member.agent_id else present for present in council.members]
            council = replace(council, members=tuple(members if is_member else [*members, member]))
            return CouncilRecord(council=council), Registration(council=council, known=is_member)

        return await self._change(tenant, role, add)

    async def unregister(self, tenant: str, role: Role, agent_id: str) -> bool:
        """Remove an agent; False where it is not a member. Its current runs continue. Raises Unavailable."""

        def remove(record: CouncilRecord | None) -> tuple[CouncilRecord | None, bool]:
            council = record.council if record is not None else self._defaults.get(role)
            members = council.members if council else ()
            remaining = tuple(member for member in members if member.agent_id != agent_id)
            if council is None or len(remaining) == len(members):
                return None, False
            return CouncilRecord(council=replace(council, members=remaining)), True

        return await self._change(tenant, role, remove)

    @property
    def harnesses(self) -> Collection[str]:
        """The harnesses of this installation."""
        return self._rules.harnesses

    def reachable(self, tenant: str, council: Council) -> Council:
        """The council without members at endpoints that the tenant's current rules forbid."""
        default = self._defaults.get(council.role)
        provided = {member.endpoint for member in default.members} if default is not None else set[str]()
        members = [
            member
            for member in council.members
            if member.endpoint in provided or self._is_allowed(tenant, member.endpoint)
        ]
        return replace(council, members=tuple(members))

    def _is_allowed(self, tenant: str, endpoint: str) -> bool:
        """Whether a tenant may have an agent at an endpoint; the fleet's own agents have none."""
        if not endpoint or is_harness(endpoint) or self._places is None:
            return True
        try:
            self._places(tenant).check(endpoint)
        except InvalidRequest:
            return False
        return True

    def _council(self, role: Role, entry: KeyValueEntry | None) -> Council | None:
        record = _record(entry)
        return self._defaults.get(role) if record is None else record.council

    async def _change(
        self, tenant: str, role: Role, change: Callable[[CouncilRecord | None], tuple[CouncilRecord | None, T]]
    ) -> T:
        """Apply a change to the stored entry, again after a concurrent change; None stores nothing."""
        answers: list[T] = []

        def changed(entry: KeyValueEntry | None) -> bytes | None:
            record, answer = change(_record(entry))
            answers[:] = [answer]
            if record is None:
                return None
            data = to_json(record)
            if len(data) > MAX_COUNCIL_BYTES:
                raise PreconditionFailed(
                    f"the council of {role} would take {len(data)} bytes",
                    field="metadata",
                    hint=f"at most {MAX_COUNCIL_BYTES}; shorten the descriptions of the agents",
                )
            return data

        await rewritten(self._store, _key(tenant, role), changed, name=f"the council of {role}")
        return answers[0]


async def council_for(task: Task, store: CouncilStore) -> Council | None:
    """The council of a task at its acceptance, with the task's own settings; None: agents are made for the task.

    External agents cannot ask for approvals, so a task with approvals is done without them. Raises PreconditionFailed
    where the council has no agent for the task, Unavailable.
    """
    council = await store.get(task.tenant, task.role)
    if task.seats:
        return adopted(task, council_of(task, council, store.harnesses))
    if council is None:
        return None
    council = store.reachable(task.tenant, council)
    if not council.members:
        raise PreconditionFailed(
            f"the council of {task.role} has no agents that are allowed",
            field="role",
            hint="register one, or delete the council",
        )
    if task.approval is not ApprovalPolicy.NONE:
        council = replace(council, members=tuple(member for member in council.members if not member.elsewhere))
        if not council.members:
            raise PreconditionFailed(
                f"no agent in the council of {task.role} can ask for approvals",
                field="approval",
                hint="leave it out, or register an agent of the fleet's own",
            )
    return adopted(task, council)


def _record(entry: KeyValueEntry | None) -> CouncilRecord | None:
    if entry is None:
        return None
    try:
        return from_json(CouncilRecord, entry.value)
    except ValueError as error:
        raise PreconditionFailed(f"the stored council {entry.key} cannot be read: {error}") from None


def _prefix(tenant: str) -> str:
    return f"council.{tenant.encode().hex()}."


def _key(tenant: str, role: Role) -> str:
    return f"{_prefix(tenant)}{role.lower()}"


MAX_FILE_BYTES = 1024 * 1024


class _Agent(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    agent_id: str = Field(min_length=1)
    model_profile: str = ""
    endpoint: str = ""
    max_concurrent_tasks: int = 1
    supported_tasks: list[str] = []
    languages: list[str] = []
    metadata: dict[str, str] = {}


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    num_agents: int | None = Field(default=None, ge=0)
    rounds: int = 0
    peer_review: bool = True
    model_profile: str = ""
    agent_type: str = ""
    custom_params: dict[str, str] = {}
    agents: list[_Agent] | None = None


def read_councils(path: Path) -> tuple[Council, ...]:
    """The councils of a file; profiles and endpoints are checked later, by `CouncilRules`.

    Raises InvalidRequest naming the key, such as `DEV.agents[0].endpoint`.
    """
    try:
        data = path.read_bytes()
        if len(data) > MAX_FILE_BYTES:
            raise _fault("the file is too large", "", hint=f"at most {MAX_FILE_BYTES} bytes")
        tables: dict[str, object] = tomllib.loads(data.decode())
    except OSError as error:
        raise _fault(f"{path} cannot be read: {error.strerror}", "") from None
    except ValueError as error:
        raise _fault(f"{path} is not TOML: {error}", "") from None
    councils: dict[Role, Council] = {}
    for name, table in tables.items():
        role = _role(name)
        if role in councils:
            raise _fault(f"two tables configure {role}", name, hint="use one table for each role")
        councils[role] = _council(role, name, table)
    return tuple(councils.values())


def _role(name: str) -> Role:
    try:
        return Role.parse(name or "?")
    except InvalidRequest as error:
        raise _fault(error.message, name, hint=error.hint) from None


def _council(role: Role, key: str, value: object) -> Council:
    try:
        table = _Table.model_validate(value)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part[:64]}" for part in fault["loc"])
        raise _fault(f"{key}{path}: {fault['msg']}", f"{key}{path}", hint="docs/councils.md") from None
    if table.agents is not None and table.num_agents is not None:
        raise _fault("num_agents and agents are given both", f"{key}.num_agents", hint="leave one of them out")
    members: tuple[CouncilMember, ...] = ()
    if table.agents is not None:
        members = tuple(from_plain(CouncilMember, agent.model_dump()) for agent in table.agents)
    elif table.agent_type != OUTSIDE_AGENTS:
        members = own_agents(role, table.num_agents or DEFAULT_AGENTS)
    return Council(
        council_id=council_name(role),
        role=role,
        members=members,
        **table.model_dump(exclude={"num_agents", "agents"}),
    )


def _fault(message: str, key: str, *, hint: str = "") -> InvalidRequest:
    return InvalidRequest(message, field=f"councils_file: {key}" if key else "councils_file", hint=hint)
