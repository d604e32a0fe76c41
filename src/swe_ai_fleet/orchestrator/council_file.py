"""The councils that an operator writes down in a file: a TOML table for each role."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from swe_ai_fleet.domain.council import Council, CouncilMember
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.json_values import is_list, is_object, is_strings
from swe_ai_fleet.domain.task import DEFAULT_AGENTS, Role
from swe_ai_fleet.orchestrator.councils import OUTSIDE_AGENTS, agent_name, council_name

MAX_FILE_BYTES = 1024 * 1024
_COUNCIL_KEYS = ("num_agents", "rounds", "peer_review", "model_profile", "agent_type", "custom_params", "agents")
_AGENT_KEYS = (
    *("agent_id", "model_profile", "endpoint", "max_concurrent_tasks", "supported_tasks", "languages", "metadata"),
)

T = TypeVar("T", str, int, bool)


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
    table = _table(value, key, _COUNCIL_KEYS)
    listed = table.get("agents")
    agent_type = _scalar(table, "agent_type", "", key)
    count = _scalar(table, "num_agents", 0, key)
    if listed is not None and "num_agents" in table:
        raise _fault("num_agents and agents are given both", f"{key}.num_agents", hint="leave one of them out")
    if count < 0:
        raise _fault(f"num_agents is {count}", f"{key}.num_agents", hint="a positive number")
    members: tuple[CouncilMember, ...] = ()
    if is_list(listed):
        agents = enumerate(listed)
        members = tuple(_member(each, f"{key}.agents[{number}]") for number, each in agents)
    elif listed is not None:
        raise _fault("agents is not a list of tables", f"{key}.agents", hint=f"start each agent with [[{key}.agents]]")
    elif agent_type != OUTSIDE_AGENTS:
        numbers = range(1, (count or DEFAULT_AGENTS) + 1)
        members = tuple(CouncilMember(agent_id=agent_name(role, number)) for number in numbers)
    return Council(
        council_id=council_name(role),
        role=role,
        members=members,
        rounds=_scalar(table, "rounds", 0, key),
        peer_review=_scalar(table, "peer_review", True, key),
        model_profile=_scalar(table, "model_profile", "", key),
        agent_type=agent_type,
        custom_params=_words(table, "custom_params", key),
    )


def _member(value: object, key: str) -> CouncilMember:
    table = _table(value, key, _AGENT_KEYS)
    agent_id = _scalar(table, "agent_id", "", key)
    if not agent_id:
        raise _fault("an agent has no agent_id", f"{key}.agent_id")
    return CouncilMember(
        agent_id=agent_id,
        model_profile=_scalar(table, "model_profile", "", key),
        endpoint=_scalar(table, "endpoint", "", key),
        max_concurrent_tasks=_scalar(table, "max_concurrent_tasks", 1, key),
        supported_tasks=_names(table, "supported_tasks", key),
        languages=_names(table, "languages", key),
        metadata=_words(table, "metadata", key),
    )


def _table(value: object, key: str, known: tuple[str, ...]) -> Mapping[str, object]:
    if not is_object(value):
        raise _fault(f"{key} is not a table", key, hint=f"write [{key}] and its settings below")
    for name in value:
        if name not in known:
            raise _fault(f"unknown key {name[:64]!r}", f"{key}.{name[:64]}", hint=f"one of {', '.join(known)}")
    return value


def _scalar(table: Mapping[str, object], name: str, default: T, key: str) -> T:
    value = table.get(name, default)
    # A bool is an int to Python, and is none here.
    if not isinstance(value, type(default)) or isinstance(value, bool):
        raise _fault(f"{name} is not {_KINDS[type(default)]}", f"{key}.{name}")
    return value


def _names(table: Mapping[str, object], name: str, key: str) -> tuple[str, ...]:
    value = table.get(name, [])
    if not is_strings(value):
        raise _fault(f"{name} is not a list of strings", f"{key}.{name}")
    return tuple(value)


def _words(table: Mapping[str, object], name: str, key: str) -> Mapping[str, str]:
    value = table.get(name, {})
    if not is_object(value):
        raise _fault(f"{name} is not a table of strings", f"{key}.{name}")
    words: dict[str, str] = {}
    for entry, text in value.items():
        if not isinstance(text, str):
            raise _fault(f"{entry[:64]} is not a string", f"{key}.{name}.{entry[:64]}")
        words[entry] = text
    return words


_KINDS: Mapping[type, str] = {str: "a string", int: "a whole number", bool: "true or false"}


def _fault(message: str, key: str, *, hint: str = "") -> InvalidRequest:
    return InvalidRequest(message, field=f"councils_file: {key}" if key else "councils_file", hint=hint)
