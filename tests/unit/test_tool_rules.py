"""What a run may call and reach: the rules themselves, apart from the pipeline that keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from swe_ai_fleet.domain.command import NetworkGrant, NetworkRules, TaskMcpServer
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.task import Constraints, Role
from swe_ai_fleet.domain.tool import OperationSpec, Risk
from swe_ai_fleet.tools.catalogue import ToolAccess
from swe_ai_fleet.tools.policy import Policy, risks
from tests.tables import table

LOOK = OperationSpec(name="files_look", tool="files", operation="look", description="", parameters={}, read_only=True)
WRITE = replace(LOOK, name="files_write", operation="write", read_only=False)
SHELL = replace(WRITE, name="shell_run_command", tool="shell", operation="run_command")


@table(
    ("spec", "offered"),
    [(LOOK, True), (WRITE, False), (replace(LOOK, executes=True), False), (replace(LOOK, network=True), False)],
)
def test_a_run_that_may_only_read_runs_nothing_and_reaches_nobody(spec: OperationSpec, offered: bool) -> None:
    policy = Policy(read_only=True)
    assert policy.offers(spec) is offered
    assert bool(policy.refusal(spec, {})) is not offered
    assert Policy().offers(spec)


@table(
    ("policy", "offered"),
    [
        (Policy(allowed=frozenset({"files"})), True), (Policy(allowed=frozenset({"files_look"})), True),
        (Policy(allowed=frozenset({"files_write", "git"})), False), (Policy(denied=frozenset({"files"})), False),
        (Policy(allowed=frozenset({"files"}), denied=frozenset({"files_look"})), False),
    ],
)  # fmt: skip
def test_tools_and_operations_are_allowed_and_denied_by_name(policy: Policy, offered: bool) -> None:
    assert policy.offers(LOOK) is offered


def test_what_is_for_another_role_is_not_offered() -> None:
    spec = replace(LOOK, roles=frozenset({Role.DEVOPS}))
    assert not Policy().offers(spec)
    assert "is not for the role DEV" in Policy().refusal(spec, {})
    assert Policy(role=Role.DEVOPS).offers(spec)


@table(
    ("arguments", "allowed"),
    [
        ({"path": "src/a.py"}, True), ({"path": "docs/guide.md"}, True), ({"path": "docs/other.md"}, False),
        ({"path": "web/deep/a.js"}, True), ({"path": "web2/a.js"}, False),
        ({"path": "/workspace/src/a.py"}, True), ({"paths": ["src/a.py", "src/b/c.py"]}, True),
        ({"paths": ["src/a.py", "setup.py"]}, False), ({"source": "src/a.py", "destination": "src/../a.py"}, False),
        ({"path": None, "directory": "src"}, False), ({"path": None}, True), ({"content": "setup.py"}, True),
    ],
)  # fmt: skip
def test_every_path_of_a_call_that_writes_must_be_allowed(arguments: dict[str, object], allowed: bool) -> None:
    policy = Policy(allowed_paths=("src/*", "docs/guide.md", "web"))
    assert not policy.refusal(LOOK, arguments)
    refusal = policy.refusal(WRITE, arguments)
    assert bool(refusal) is not allowed
    assert allowed or "outside the paths allowed for this task: src/*, docs/guide.md, web" in refusal


@table(
    ("spec", "arguments", "told"),
    [
        (SHELL, {"command": "ls"}, ()), (SHELL, {"command": "rm -rf x"}, ("destructive",)),
        (SHELL, {"command": 5}, ("unknown",)), (SHELL, {}, ("unknown",)), (WRITE, {}, ()),
        (replace(WRITE, risk=Risk.HIGH), {}, ("files_write is declared",)),
        (replace(WRITE, network=True), {}, ("files_write changes",)), (replace(LOOK, network=True), {}, ()),
    ],
)  # fmt: skip
def test_a_call_is_risky_by_what_it_declares_and_by_its_command(
    spec: OperationSpec, arguments: Mapping[str, Any], told: tuple[str, ...]
) -> None:
    assert tuple(reason[: len(said)] for reason, said in zip(risks(spec, arguments), told, strict=True)) == told


# What an installation grants to tasks that ask

CEILING = NetworkGrant(hosts=("*.example.org", "tools.test"), private_hosts=("mirror.test:8080", "[::1]:9000"))
ACCESS = ToolAccess(network=NetworkRules(default=NetworkGrant(hosts=("tools.test",)), ceiling=CEILING), packs=())


def test_a_task_reaches_what_it_asks_for_or_what_everybody_does() -> None:
    assert ACCESS.hosts(Constraints()) == NetworkGrant(hosts=("tools.test",))
    assert ACCESS.hosts(Constraints(allowed_hosts=("a.example.org",))) == NetworkGrant(hosts=("a.example.org",))
    assert ACCESS.hosts(Constraints(allowed_hosts=())) is None
    with pytest.raises(InvalidRequest) as refused:
        ACCESS.hosts(Constraints(allowed_hosts=("tools.test", "elsewhere.test")))
    assert refused.value.field == "constraints.network.allowed_hosts[1]"


def test_without_the_extension_a_tasks_servers_are_refused() -> None:
    with pytest.raises(InvalidRequest) as refused:
        ACCESS.servers(Constraints(mcp_servers=(TaskMcpServer(name="maths", command=("serve",)),)))
    assert refused.value.field == "constraints.mcp_servers[0]"
