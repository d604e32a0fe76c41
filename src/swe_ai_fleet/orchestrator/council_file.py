"""The councils that an operator writes down in a file: a TOML table for each role."""

from __future__ import annotations

import tomllib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from swe_ai_fleet.codec import from_plain
from swe_ai_fleet.domain.council import Council, CouncilMember
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.task import DEFAULT_AGENTS, Role
from swe_ai_fleet.orchestrator.councils import OUTSIDE_AGENTS, agent_name, council_name

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
    """The councils of a file; their profiles and endpoints are checked where they are used.

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
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part[:64]}" for part in fault["loc"])
        raise _fault(f"{key}{place}: {fault['msg']}", f"{key}{place}", hint="docs/councils.md") from None
    if table.agents is not None and table.num_agents is not None:
        raise _fault("num_agents and agents are given both", f"{key}.num_agents", hint="leave one of them out")
    members: tuple[CouncilMember, ...] = ()
    if table.agents is not None:
        members = tuple(from_plain(CouncilMember, agent.model_dump()) for agent in table.agents)
    elif table.agent_type != OUTSIDE_AGENTS:
        numbers = range(1, (table.num_agents or DEFAULT_AGENTS) + 1)
        members = tuple(CouncilMember(agent_id=agent_name(role, number)) for number in numbers)
    return Council(
        council_id=council_name(role),
        role=role,
        members=members,
        **table.model_dump(exclude={"num_agents", "agents"}),
    )


def _fault(message: str, key: str, *, hint: str = "") -> InvalidRequest:
    return InvalidRequest(message, field=f"councils_file: {key}" if key else "councils_file", hint=hint)
