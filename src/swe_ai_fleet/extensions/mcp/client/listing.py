"""The tools of a server that are offered, with their names, descriptions and schemas.

A server's JSON schema is untrusted: it is bounded and cleaned before models see it and arguments are checked with it.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from swe_ai_fleet.domain.command import NetworkGrant
from swe_ai_fleet.domain.environment import Mount
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.json_values import is_list, is_mapping, is_object, mapping
from swe_ai_fleet.domain.tool import OperationSpec, Risk
from swe_ai_fleet.ports import SecretMask
from swe_ai_fleet.tools.definition import ToolFailure
from swe_ai_fleet.tools.http_transport import parse_url

_NAME = re.compile(r"[a-z0-9_-]{1,32}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer:
    """An MCP server as an operator configured it; either `command` or `url` is given.

    Args:
        name: Letters a-z, digits, `_` and `-`, at most 32; its tools are called `<name>_<tool>`.
        command: The argv of a server that speaks over its standard input and output. It starts in an empty home of
            its own; `{workspace}` in it stands for the agent's workspace as the server sees it (`/workspace`).
        url: The endpoint of a server that speaks streamable HTTP. Redirects are not followed.
        variables: Variables for the command. Nothing of the fleet's own or the repository's environment reaches it.
        secret_variables: The same, with values that are masked in everything the server says.
        headers: Request headers for the URL; their values are secrets.
        mounts: Directories of the host that the command sees, read-only.
        network: Hosts that the command may reach, through the fleet's proxy; none without it.
        confined: False lets the command run as the fleet's own user, with its files and network. By default it sees
            the workspace, `mounts` and the system's programs, and no network.
        read_only_workspace: Whether the command may only read the workspace.
        private: Whether the URL's host may have an address on a private network or this machine.
        tools: Globs of the names of tools that agents may see; empty: none. `*` is all.
        read_only_tools: Globs of the tools that change nothing. The server's own word (`readOnlyHint`) counts in chats
            only, which offer no other tools.
        cache_seconds: How long results of read-only tools are cached, for each tenant; 0: they are not.
        time_limit_seconds: The time limit of one call.
        start_seconds: The time limit for starting up and for listing the tools.

    Raises:
        InvalidRequest: A value is invalid; `field` names it.
    """

    name: str
    command: tuple[str, ...] = ()
    url: str = ""
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    secret_variables: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    mounts: tuple[Mount, ...] = ()
    network: NetworkGrant = field(default_factory=NetworkGrant)
    confined: bool = True
    read_only_workspace: bool = False
    private: bool = False
    tools: tuple[str, ...] = ()
    read_only_tools: tuple[str, ...] = ()
    cache_seconds: float = 0.0
    time_limit_seconds: float = 60.0
    start_seconds: float = 30.0

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidRequest(
                f"{self.name[:64]!r} is not a valid server name", field="name", hint="use 1-32 of a-z, 0-9, _ and -"
            )
        if bool(self.command) == bool(self.url):
            raise InvalidRequest(f"the MCP server {self.name} needs either a command or a url", field="command")
        for amount in ("time_limit_seconds", "start_seconds"):
            if not 0 < getattr(self, amount) <= 3600:
                raise InvalidRequest(f"{amount} of the MCP server {self.name} is not 0 to 3600", field=amount)
        if not 0 <= self.cache_seconds <= 86_400:
            raise InvalidRequest(
                f"cache_seconds of the MCP server {self.name} is not 0 to 86400", field="cache_seconds"
            )
        if self.url:
            self._check_url()
        else:
            self._check_command()

    def _check_command(self) -> None:
        if not self.command[0] or self.command[0].startswith("-") or any("\0" in word for word in self.command):
            raise InvalidRequest(f"the command of the MCP server {self.name} cannot be run", field="command")
        for name, value in (*self.variables.items(), *self.secret_variables.items()):
            if not _VARIABLE.fullmatch(name) or "\0" in value:
                raise InvalidRequest(
                    f"{name[:64]!r} is not a variable for the MCP server {self.name}", field="variables"
                )
        if self.headers:
            raise InvalidRequest(f"the MCP server {self.name} is a command and takes no headers", field="headers")
        if not self.confined and (self.mounts or self.network or self.read_only_workspace):
            raise InvalidRequest(
                f"the MCP server {self.name} is not confined: mounts, network and read_only_workspace mean nothing",
                field="confined",
            )

    def _check_url(self) -> None:
        try:
            url = parse_url(self.url)
        except ToolFailure as error:
            raise InvalidRequest(f"the MCP server {self.name}: {error.message}", field="url") from None
        if self.headers and url.scheme == "http" and not self.private:
            raise InvalidRequest(
                f"the headers of the MCP server {self.name} would travel in clear text", field="url", hint="use https"
            )
        for name, value in self.headers.items():
            if not _HEADER.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
                raise InvalidRequest(f"the header {name[:64]!r} holds what no header may hold", field="headers")

    @property
    def secrets(self) -> tuple[str, ...]:
        """The values to mask: those of headers, with and without the scheme in front, and of secret variables."""
        values = (*self.headers.values(), *self.secret_variables.values())
        return (*values, *(value.partition(" ")[2] for value in self.headers.values() if " " in value))

    @property
    def networked(self) -> bool:
        return bool(self.url or self.network or not self.confined)

    def offers(self, tool: str) -> bool:
        return any(fnmatchcase(tool, glob) for glob in self.tools)

    def only_reads(self, tool: str) -> bool:
        """Whether the operator declares that the tool changes nothing."""
        return any(fnmatchcase(tool, glob) for glob in self.read_only_tools)


MAX_SCHEMA_CHARS = 16_384
MAX_DEPTH = 24
MAX_COST = 5_000
_MAX_REFERENCES = 100
_TEXT_CHARS = 400
# The keys below `_NAMED` are names, not keywords; below `_VALUES` there are values, not schemas.
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_VALUES = frozenset({"enum", "const", "default", "examples", "required"})
# Identifiers change the target of references; with the others, a check takes time exponential in the depth.
_DROPPED = frozenset({"$id", "$schema", "$comment", "$anchor", "unevaluatedProperties", "unevaluatedItems"})
_REFUSED = ("$dynamicRef", "$recursiveRef")


class UnfitSchemaError(ValueError):
    """A schema that cannot be used; the message says why."""


def fit(schema: Mapping[str, object]) -> dict[str, object]:
    """A copy with clean, short texts and no outside references, which is cheap to check arguments with.

    A circular reference becomes "anything": the server checks its arguments again. Raises UnfitSchemaError.
    """
    copy = dict(mapping(_copy(schema, 0)))
    size = len(json.dumps(copy))
    if size > MAX_SCHEMA_CHARS:
        raise UnfitSchemaError(f"its schema has {size} characters, more than {MAX_SCHEMA_CHARS}")
    if _Costs(copy).of_all() > MAX_COST:
        raise UnfitSchemaError("its schema is too expensive to check")
    return copy


def plain(text: str, limit: int) -> str:
    """An untrusted text without invisible characters, cut to `limit` characters."""
    visible = "".join(
        character for character in text[: 4 * limit] if character in "\n\t" or unicodedata.category(character)[0] != "C"
    ).strip()
    return visible if len(visible) <= limit else visible[: limit - 4].rstrip() + " ..."


def _copy(node: object, depth: int, *, named: bool = False) -> object:
    if depth > MAX_DEPTH:
        raise UnfitSchemaError(f"its schema is nested more than {MAX_DEPTH} deep")
    if is_list(node):
        return [_copy(part, depth + 1) for part in node]
    if not is_mapping(node):
        return node
    copy: dict[str, object] = {}
    for key, value in node.items():
        if named:
            copy[key] = _copy(value, depth + 1)
        elif key in _REFUSED:
            raise UnfitSchemaError(f"its schema uses {key}")
        elif key in ("description", "title") and isinstance(value, str):
            copy[key] = plain(value, _TEXT_CHARS)
        elif key in _VALUES:
            copy[key] = value
        elif key not in _DROPPED:
            copy[key] = _copy(value, depth + 1, named=key in _NAMED)
    return copy


class _Costs:
    """Counts the subschemas that a check can visit, through references, too."""

    def __init__(self, root: dict[str, object]) -> None:
        self._root = root
        self._known: dict[str, int] = {}
        self._open: set[str] = {"#"}

    def of_all(self) -> int:
        return self._of(self._root)

    def _of(self, schema: object) -> int:
        if is_list(schema):
            return sum(self._of(part) for part in schema)
        if not is_object(schema):
            return 0
        # Bounded, so that the sums stay small numbers.
        total = min(MAX_COST + 1, 1 + sum(self._of(part) for part in list(schema.values())))
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return total
        if reference in self._open:
            del schema["$ref"]
            return total
        return total + self._of_target(reference)

    def _of_target(self, reference: str) -> int:
        if reference not in self._known:
            if len(self._known) + len(self._open) > _MAX_REFERENCES:
                raise UnfitSchemaError("its schema has too many references")
            self._open.add(reference)
            self._known[reference] = self._of(self._target(reference))
            self._open.discard(reference)
        return self._known[reference]

    def _target(self, reference: str) -> object:
        node: object = self._root
        if not reference.startswith("#/"):
            raise UnfitSchemaError(f"its schema refers to {plain(reference, 80)!r}, outside itself")
        for part in reference[2:].split("/"):
            name = part.replace("~1", "/").replace("~0", "~")
            if not is_object(node) or name not in node:
                raise UnfitSchemaError(f"its schema refers to {plain(reference, 80)!r}, which it does not hold")
            node = node[name]
        return node


MAX_TOOLS = 128
"""The most tools of one server; further ones are left out."""
MAX_LISTING_CHARS = 100_000
"""The most characters of all names, descriptions and schemas of one server: a model reads them with every call."""
MAX_DESCRIPTION_CHARS = 1_024
_NAME_CHARS = 64
_HASH_CHARS = 6
_UNFIT = re.compile(r"[^a-zA-Z0-9_-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTool:
    """A tool as its server describes it; `read_only` is its `readOnlyHint`."""

    name: str
    description: str
    schema: Mapping[str, object]
    read_only: bool = False

    @property
    def fingerprint(self) -> str:
        """A digest of everything that a model sees of it."""
        canonical = json.dumps([self.name, self.description, self.schema, self.read_only], sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTool:
    """A tool as agents see it, and the fingerprint of the `ServerTool` that it was made from."""

    tool: str
    spec: OperationSpec
    fingerprint: str


def offers(
    server: McpServer, listed: Mapping[str, ServerTool], *, taken: Collection[str], mask: SecretMask, hints: bool
) -> tuple[list[ListedTool], list[str]]:
    """The offered tools, and notes for operators on those left out. `taken` are names already in use.

    With `hints`, a tool also counts as read-only if only its server says so.
    """
    notes: list[str] = []
    offered = {name: tool for name, tool in listed.items() if server.offers(name)}
    names = operation_names(server.name, offered, taken=taken)
    offers_made: list[ListedTool] = []
    room = MAX_LISTING_CHARS
    for name, tool in offered.items():
        if len(offers_made) == MAX_TOOLS:
            notes.append(f"{len(offered) - MAX_TOOLS} tools more than {MAX_TOOLS} are left out")
            break
        try:
            spec = _spec(server, tool, names[name], mask, reads=server.only_reads(name) or (hints and tool.read_only))
        except UnfitSchemaError as error:
            notes.append(f"the tool {plain(name, _NAME_CHARS)!r} is left out: {error}")
            continue
        room -= len(spec.name) + len(spec.description) + len(json.dumps(spec.parameters))
        if room < 0:
            notes.append(
                f"its tools from {spec.name} on are left out: they take more than {MAX_LISTING_CHARS} characters"
            )
            break
        offers_made.append(ListedTool(tool=name, spec=spec, fingerprint=tool.fingerprint))
    if listed and not offered:
        notes.append("none of its tools is allowed; name some in its list of tools")
    return offers_made, notes


def operation_names(server: str, tools: Collection[str], *, taken: Collection[str] = ()) -> dict[str, str]:
    """A name for each tool that model servers accept, whatever the order of the tools.

    A name that is too long, has other characters, or belongs to another tool ends in a part of its digest.
    """
    plainly = {tool: f"{server}_{_UNFIT.sub('_', tool)}" for tool in tools}
    counts, exact = Counter(plainly.values()), {f"{server}_{tool}" for tool in tools}
    names: dict[str, str] = {}
    for tool, name in plainly.items():
        clash = name in taken or (name != f"{server}_{tool}" and (name in exact or counts[name] > 1))
        if clash or len(name) > _NAME_CHARS:
            digest = hashlib.sha256(tool.encode()).hexdigest()[:_HASH_CHARS]
            name = f"{name[: _NAME_CHARS - _HASH_CHARS - 1]}_{digest}"
        names[tool] = name
    return names


def _spec(server: McpServer, tool: ServerTool, name: str, mask: SecretMask, *, reads: bool) -> OperationSpec:
    description = plain(mask(tool.description), MAX_DESCRIPTION_CHARS) or "nothing about this tool."
    return OperationSpec(
        name=name,
        tool=server.name,
        operation=plain(tool.name, _NAME_CHARS),
        description=f"[The MCP server {server.name} says:] {description}",
        parameters=fit(tool.schema),
        read_only=reads,
        risk=Risk.MEDIUM,
        network=server.networked,
        locks=frozenset({f"mcp:{server.name}" if server.url else "workspace"}),
        time_limit_seconds=server.time_limit_seconds,
        cache_seconds=server.cache_seconds if server.only_reads(tool.name) else 0.0,
    )
