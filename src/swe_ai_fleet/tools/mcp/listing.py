"""Which of a server's tools are offered, under which names and with which words."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from swe_ai_fleet.domain.tool import OperationSpec, Risk
from swe_ai_fleet.ports import SecretMask
from swe_ai_fleet.tools.mcp.schemas import UnfitSchemaError, fit, plain
from swe_ai_fleet.tools.mcp.server import McpServer

MAX_TOOLS = 128
"""Of one server; what it lists beyond is left out."""
MAX_LISTING_CHARS = 100_000
"""For all names, descriptions and schemas of one server: a model reads them with every call."""
MAX_DESCRIPTION_CHARS = 1_024
_NAME_CHARS = 64
_HASH_CHARS = 6
_UNFIT = re.compile(r"[^a-zA-Z0-9_-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTool:
    """A tool as its server describes it."""

    name: str
    description: str
    schema: Mapping[str, object]

    @property
    def fingerprint(self) -> str:
        """A digest of all that a model is told of it."""
        canonical = json.dumps([self.name, self.description, self.schema], sort_keys=True)
        return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A tool as agents see it, and the fingerprint of what it was made from."""

    tool: str
    spec: OperationSpec
    fingerprint: str


def offers(
    server: McpServer, listed: Sequence[ServerTool], *, taken: Collection[str], mask: SecretMask
) -> tuple[list[Offer], list[str]]:
    """The offered tools, and a note on each that an operator may miss. `taken` are names in use already."""
    notes: list[str] = []
    wanted: dict[str, ServerTool] = {}
    for tool in listed:
        if server.offers(tool.name):
            wanted.setdefault(tool.name, tool)
    names = operation_names(server.name, wanted, taken=taken)
    found: list[Offer] = []
    room = MAX_LISTING_CHARS
    for name, tool in wanted.items():
        if len(found) == MAX_TOOLS:
            notes.append(f"{len(wanted) - MAX_TOOLS} tools more than {MAX_TOOLS} are left out")
            break
        try:
            spec = _spec(server, tool, names[name], mask)
        except (UnfitSchemaError, RecursionError) as error:
            notes.append(f"the tool {plain(name, _NAME_CHARS)!r} is left out: {error}")
            continue
        room -= len(spec.name) + len(spec.description) + len(json.dumps(spec.parameters))
        if room < 0:
            notes.append(
                f"its tools from {spec.name} on are left out: they take more than {MAX_LISTING_CHARS} characters"
            )
            break
        found.append(Offer(tool=name, spec=spec, fingerprint=tool.fingerprint))
    if listed and not wanted:
        notes.append("none of its tools is allowed; name some in its list of tools")
    return found, notes


def operation_names(server: str, tools: Collection[str], *, taken: Collection[str] = ()) -> dict[str, str]:
    """A name for each tool that a model's server takes; the same ones whatever order the tools come in.

    A name that is not plain or too long, or that another tool has, ends in a piece of its digest.
    """
    plainly = {tool: f"{server}_{_UNFIT.sub('_', tool)}" for tool in tools}
    exact = {f"{server}_{tool}" for tool in tools}
    names: dict[str, str] = {}
    for tool, name in plainly.items():
        clash = name in taken or (name != f"{server}_{tool}" and (name in exact or _shared(name, plainly)))
        if clash or len(name) > _NAME_CHARS:
            digest = hashlib.sha256(tool.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_CHARS]
            name = f"{name[: _NAME_CHARS - _HASH_CHARS - 1]}_{digest}"
        names[tool] = name
    return names


def _shared(name: str, names: Mapping[str, str]) -> bool:
    return sum(other == name for other in names.values()) > 1


def _spec(server: McpServer, tool: ServerTool, name: str, mask: SecretMask) -> OperationSpec:
    cut = partial(plain, limit=MAX_DESCRIPTION_CHARS)
    said = cut(mask(tool.description))
    local = not server.url
    return OperationSpec(
        name=name,
        tool=server.name,
        operation=plain(tool.name, _NAME_CHARS),
        description=f"[The MCP server {server.name} says:] {said or 'nothing about this tool.'}",
        parameters=fit(tool.schema),
        read_only=server.only_reads(tool.name),
        risk=Risk.MEDIUM,
        network=server.networked,
        locks=frozenset({"workspace"}) if local else frozenset({f"mcp:{server.name}"}),
        time_limit_seconds=server.time_limit_seconds,
        cache_seconds=server.cache_seconds if server.only_reads(tool.name) else 0.0,
    )
