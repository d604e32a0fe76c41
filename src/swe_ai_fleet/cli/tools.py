"""`fleet tools`: lists the catalogue; runs one operation from the terminal, sandboxed and audited like an agent's."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, cast

from swe_ai_fleet.agents.sub_agents.toolkit import SubAgentTools
from swe_ai_fleet.cli.executions import audit_table
from swe_ai_fleet.cli.messages import pairs
from swe_ai_fleet.cli.options import argument, option
from swe_ai_fleet.cli.screen import CommandFault, Exit, Screen
from swe_ai_fleet.cli.tables import plain_table
from swe_ai_fleet.codec import to_plain
from swe_ai_fleet.domain.audit import AuditEntry, AuditFault, verify
from swe_ai_fleet.domain.audit_chains import ChainVerdict
from swe_ai_fleet.domain.command import NetworkGrant
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.domain.json_values import is_object, mapping, parse_json
from swe_ai_fleet.domain.task import DEFAULT_TENANT, Constraints, EnvironmentSpec, RepoRef, Role, UncommittedChanges
from swe_ai_fleet.domain.text import nearest
from swe_ai_fleet.domain.tool import OperationSpec, Outcome
from swe_ai_fleet.ports import Workspace
from swe_ai_fleet.runtime.tool_services import make_sandbox, secret_mask, tool_access, with_isolation_level
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.tools.audit import AuditFile, AuditTrail
from swe_ai_fleet.tools.builtin import BuiltinTools
from swe_ai_fleet.tools.catalogue import all_toolkits, operations
from swe_ai_fleet.tools.pipeline import Pipeline
from swe_ai_fleet.tools.policy import Policy
from swe_ai_fleet.tools.registry import RegisteredOperation, RegisteredTools
from swe_ai_fleet.watching.events import report
from swe_ai_fleet.watching.text import one_line

_COLUMNS = ("operation", "reads only", "risk", "network", "executes", "locks", "seconds", "roles", "what it does")
_EXITS = {Outcome.SUCCESS: Exit.ACCEPTED, Outcome.INVALID: Exit.USAGE, Outcome.TIMEOUT: Exit.STOPPED}
AGENT = "terminal"
"""The agent id in the audit of operations that a person ran."""


async def list_tools(
    screen: Screen,
    settings: Settings,
    *,
    role: Annotated[str, option("Only operations of this role: DEV, QA, ARCHITECT, DEVOPS or DATA.")] = "",
    read_only: Annotated[bool, option("Only operations of a read-only run.")] = False,
) -> Exit:
    specs = list(_specs(settings).values())
    if role or read_only:
        policy = Policy(role=Role.parse(role), read_only=read_only) if role else Policy(read_only=read_only)
        specs = [spec for spec in specs if policy.offers(spec)]
    if screen.json:
        screen.document({"tools": [_document(spec) for spec in specs]})
    else:
        screen.out.print(plain_table(_COLUMNS, map(_row, specs)))
    return Exit.ACCEPTED


async def run_tool(
    screen: Screen,
    settings: Settings,
    operation: Annotated[str, argument("The operation's name, such as files_read_file.")],
    given: Annotated[tuple[str, ...], argument("The operation's arguments.", metavar="[K=V]...")] = (),
    *,
    workspace: Annotated[str, option("The working directory.", metavar="DIR")] = ".",
    args: Annotated[str, option("Arguments as a JSON object.", metavar="JSON")] = "",
    role: Annotated[str, option("The role of the caller.")] = "DEV",
    read_only: Annotated[bool, option("Refuse operations that can change something.")] = False,
) -> Exit:
    # Every audit entry is on disk before the operation continues.
    specs = _specs(settings)
    if operation not in specs:
        raise CommandFault(f"no operation is called {operation[:64]!r}", hint=nearest(operation, specs))
    spec = specs[operation]
    arguments = _arguments(spec, args, given)
    root = _directory(Path(workspace))
    audit = AuditFile(settings.home / "audit" / "tools.jsonl")
    trail = AuditTrail(
        execution_id=f"tools-{uuid.uuid4().hex[:12]}",
        agent_id=AGENT,
        key=settings.audit_key.encode(),
        seal=audit.seal,
    )
    policy = Policy(role=Role.parse(role), read_only=read_only)
    pipeline = Pipeline(trail=trail, policy=policy, mask=secret_mask(settings))
    settings = await with_isolation_level(settings)
    access = tool_access(settings)
    network = access.hosts(Constraints())
    async with _workspace(settings, root, network, builds=spec.executes) as opened:
        kits = all_toolkits(opened, pipeline, access)
        kit = kits.get(spec.tool, kits[BuiltinTools.name])
        if spec.name in {tool.name for tool in access.plugins}:
            kit = RegisteredTools(access.plugins, opened, pipeline)
        if spec.name in SubAgentTools.definitions:
            # They import the clients of models, which nothing else here needs.
            from swe_ai_fleet.runtime.default_tools import planning_tools

            tools = planning_tools(settings, opened, pipeline, builtin=access.builtin)
            kit = RegisteredTools(tools, opened, pipeline)
        result = await kit.call(spec.operation, arguments)
    code = _EXITS.get(result.outcome, Exit.NOT_ACCEPTED)
    if screen.json:
        audit_document = {
            "file": str(audit.path),
            "entries": [entry.seq for entry in trail.entries],
            "head": trail.head,
        }
        codes = {"exit_code": int(code), "command_exit_code": result.exit_code}
        screen.document({**to_plain(result), **codes, "audit": audit_document})
    else:
        screen.line(result.observation())
        screen.note(f"audit: {audit.path}, entry {trail.entries[-1].seq}, hash {trail.head}")
    return code


@asynccontextmanager
async def _workspace(
    settings: Settings, root: Path, network: NetworkGrant | None, *, builds: bool
) -> AsyncGenerator[Workspace]:
    """The directory as an agent's workspace; with `builds` a clone has its repository's environment."""
    if not builds or not (root / ".git").is_dir():
        async with make_sandbox(settings).workspace(root, environment=Environment(network=network)) as opened:
            yield opened
        return
    # It imports the clients of models and NATS, which nothing else here needs.
    from swe_ai_fleet.runtime.factories import workspace_provider

    workspaces = workspace_provider(settings)
    repo = RepoRef(location=str(root), uncommitted=UncommittedChanges.IGNORE)
    pinned = await workspaces.pin(DEFAULT_TENANT, repo)
    environment = replace(await workspaces.environment(pinned, EnvironmentSpec()), network=network)
    async with workspaces.attach(AGENT, pinned, environment) as clone:
        yield clone


async def verify_audit_file(screen: Screen, path: Path, *, head: str) -> Exit:
    """Recompute the chain in an audit file. Without `head`, entries removed from its end go unnoticed."""
    file = AuditFile(path)
    entries: list[AuditEntry] = []
    fault: AuditFault | None = None
    try:
        for entry in file.entries():
            entries.append(entry)  # noqa: PERF402 - the entries before a damaged one are verified
    except PreconditionFailed as error:
        fault = AuditFault(seq=len(entries) + 1, reason=error.message)
    except OSError as error:
        raise CommandFault(f"{path} cannot be read: {error.strerror}") from None
    verdict = ChainVerdict(
        agent_id=AGENT,
        run=1,
        entries=len(entries),
        head=entries[-1].hash if entries else "",
        recorded_head=head,
        fault=verify(entries) or fault or verify(entries, head=head or None),
    )
    if screen.json:
        screen.document({"file": str(path), **report((verdict,))})
    else:
        screen.out.print(audit_table((verdict,)))
    return Exit.ACCEPTED if verdict.intact else Exit.NOT_ACCEPTED


def _directory(path: Path) -> Path:
    if not path.is_dir():
        raise CommandFault(f"{path} is not a directory", field="workspace")
    return path.resolve()


def _specs(settings: Settings) -> dict[str, OperationSpec]:
    """The callable operations: the catalogue, those of sub-agents, and the tools of plug-ins."""
    plugins = tool_access(settings).plugins if settings.plugins else ()
    definitions = {
        **operations(),
        **SubAgentTools.definitions,
        **{tool.name: RegisteredOperation(tool) for tool in plugins},
    }
    return {name: definition.spec for name, definition in definitions.items()}


def _arguments(spec: OperationSpec, text: str, texts: Sequence[str]) -> dict[str, object]:
    """The arguments from `--args` and from `K=V`, which takes precedence. The operation itself checks them."""
    given: object = {}
    if text:
        try:
            given = parse_json(text)
        except ValueError as error:
            raise CommandFault(f"--args must be JSON: {error}", field="args") from None
        if not is_object(given):
            raise CommandFault("--args must be a JSON object", field="args")
    properties = cast("Mapping[str, Mapping[str, Any]]", spec.parameters.get("properties", {}))
    named = {key: _value(properties.get(key, {}), value) for key, value in pairs(texts, "argument").items()}
    return {**mapping(given), **named}


def _value(schema: Mapping[str, Any], text: str) -> object:
    """The text itself for a string argument, else its JSON value, if it is valid JSON."""
    kinds = {part.get("type") for part in (schema, *schema.get("anyOf", ()))}
    if "string" in kinds:
        return text
    try:
        return parse_json(text)
    except ValueError:
        return text


def _document(spec: OperationSpec) -> dict[str, object]:
    return {**to_plain(spec), "locks": sorted(spec.locks), "roles": [role.value for role in Role if role in spec.roles]}


def _row(spec: OperationSpec) -> tuple[str, ...]:
    roles = "all" if spec.roles == frozenset(Role) else ", ".join(role.value for role in Role if role in spec.roles)
    return (
        spec.name,
        "yes" if spec.read_only else "-",
        str(spec.risk),
        "yes" if spec.network else "-",
        "yes" if spec.executes else "-",
        ", ".join(sorted(spec.locks)) or "-",
        # The time limit of a command is the task's.
        "the task's" if spec.executes else f"{spec.time_limit_seconds:g}",
        roles,
        one_line(spec.description.partition("\n")[0], 120),
    )
