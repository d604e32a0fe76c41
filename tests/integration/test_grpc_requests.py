"""What requests of the orchestrator bring to the task, field by field."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.codec import to_plain
from tests.orchestrator_service import (
    Service,
    deliberation,
    orchestration,
)


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    async with Service().running() as running:
        yield running


async def test_every_field_reaches_the_task(service: Service):
    request = orchestration(
        role="developer",
        context="Some context",
        repo=pb.RepoRef(
            url="https://example.org/app.git",
            ref="v1",
            commit="c" * 40,
            subdirectory="api",
            credential_ref="deploy-key",
            uncommitted=pb.UNCOMMITTED_CHANGES_IGNORE,
        ),
        constraints=pb.TaskConstraints(
            rubric="Short",
            requirements=["one", "two"],
            metadata={"k": "v"},
            max_iterations=7,
            timeout_seconds=90,
            max_tool_calls=8,
            max_tokens=9_000,
            max_cost=2.5,
            allowed_tools=["files"],
            denied_tools=["files_delete"],
            network=pb.NetworkPolicy(allowed_hosts=["example.org"]),
            mcp_servers=[
                pb.McpServer(
                    name="maths", command=["python3", "x.py"], variables={"A": "b"}, allowed_hosts=["example.org"]
                ),
                pb.McpServer(name="far", url="https://example.org/mcp", tools=["get_*"]),
            ],
            allowed_paths=["src/**"],
            checks=[
                pb.CheckSpec(command="make", required=False, expected_exit_code=2),
                pb.CheckSpec(name="t", command="x", timeout_seconds=5),
            ],
            abort_on_error=True,
            require_verified=True,
            total_max_tokens=1000,
            total_max_tool_calls=100,
            total_max_cost=2.5,
        ),
        options=pb.OrchestratorOptions(
            enable_peer_review=True,
            deliberation_rounds=4,
            num_agents=2,
            max_agents=5,
            probes=True,
            derive_subtasks=True,
            enable_architect_selection=True,
        ),
        priority=7,
        environment=pb.EnvironmentSpec(
            setup_commands=["make deps"],
            variables={"A": "b"},
            path_directories=["bin"],
            disable_detection=True,
            test_command="make check",
        ),
        delivery=pb.Delivery(message="Say hello"),
        approval=pb.APPROVAL_POLICY_RISKY,
        planning_mode=pb.PLANNING_MODE_HYBRID,
        enable_tools=False,
        tools=["files"],
        attempt=2,
        case_id="case",
        story_id="story",
        plan_id="plan",
        context_options=pb.ContextOptions(phase="Build", token_budget=900, include_history=False),
    )
    caller = (("fleet-caller", "ada"),)
    await service.stub.SubmitTask(pb.SubmitTaskRequest(orchestrate=request), metadata=caller)
    task = service.log.events[0].body.task
    assert to_plain(task) == {
        "task_id": "task-1",
        "kind": "orchestrate",
        "description": "Add a greeting",
        "repo": {
            "location": "https://example.org/app.git",
            "ref": "v1",
            "commit": "c" * 40,
            "subdirectory": "api",
            "credential": "deploy-key",
            "uncommitted": "ignore",
        },
        "tenant": "default",
        "approval": "risky",
        "planning_mode": "hybrid",
        "role": "DEV",
        "context": "Some context",
        "constraints": {
            "rubric": "Short",
            "requirements": ["one", "two"],
            "metadata": {"k": "v"},
            "totals": {"max_tokens": 1000, "max_tool_calls": 100, "max_cost": 2.5},
            "limits": to_plain(task.constraints.limits)
            | {"max_iterations": 7, "max_tool_calls": 8, "max_tokens": 9_000, "timeout_seconds": 90.0}
            | {"max_cost": 2.5},
            "allowed_tools": ["files"],
            "denied_tools": ["files_delete"],
            "allowed_paths": ["src/**"],
            "allowed_hosts": ["example.org"],
            "checks": [
                {
                    "name": "make",
                    "command": "make",
                    "timeout_seconds": 600.0,
                    "required": False,
                    "expected_exit_code": 2,
                },
                {"name": "t", "command": "x", "timeout_seconds": 5.0, "required": True, "expected_exit_code": 0},
            ],
            "mcp_servers": [
                {
                    "name": "maths",
                    "command": ["python3", "x.py"],
                    "url": "",
                    "variables": {"A": "b"},
                    "tools": ["*"],
                    "allowed_hosts": ["example.org"],
                },
                {
                    "name": "far",
                    "command": [],
                    "url": "https://example.org/mcp",
                    "variables": {},
                    "tools": ["get_*"],
                    "allowed_hosts": [],
                },
            ],
            "abort_on_error": True,
            "require_verified": True,
        },
        "environment": {
            "setup": ["make deps"],
            "variables": {"A": "b"},
            "path": ["bin"],
            "image": "",
            "detect": False,
            "test_command": "make check",
        },
        "delivery": {
            "branch": "",
            "push": False,
            "author_name": "SWE AI Fleet",
            "author_email": "fleet@localhost",
            "message": "Say hello",
        },
        "num_agents": 2,
        "max_agents": 5,
        "probes": True,
        "rounds": 4,
        "enable_tools": False,
        "tools": ["files"],
        "model_profile": "",
        "attempt": 2,
        "case_id": "case",
        "story_id": "story",
        "plan_id": "plan",
        "priority": 7,
        "caller": "ada",
        "architect_top_k": 3,
        "derive_subtasks": True,
        "parent_execution_id": "",
        "memory": {"read": False, "write": False, "namespaces": [], "entities": []},
        "context_options": {
            "phase": "build",
            "token_budget": 900,
            "include_decisions": True,
            "include_history": False,
        },
        "workflow": None,
        "patches": [],
        "traceparent": "",
    }


async def test_what_is_not_given_has_its_default_and_an_architect_chooses_only_where_asked(service: Service):
    top_k = pb.OrchestratorOptions(architect_top_k=2)
    asked = pb.OrchestratorOptions(enable_architect_selection=True, architect_top_k=2)
    for request in (
        pb.SubmitTaskRequest(deliberate=deliberation("plain")),
        pb.SubmitTaskRequest(orchestrate=orchestration("unasked", options=top_k)),
        pb.SubmitTaskRequest(orchestrate=orchestration("asked", options=asked)),
        pb.SubmitTaskRequest(deliberate=deliberation("deliberated", architect_top_k=4)),
    ):
        await service.stub.SubmitTask(request)
    tasks = {event.body.task.task_id: event.body.task for event in service.log.events if hasattr(event.body, "task")}
    chosen = {name: task.architect_top_k for name, task in tasks.items()}
    assert chosen == {"plain": 0, "unasked": 0, "asked": 2, "deliberated": 4}
    task = tasks["plain"]
    assert (task.role, task.num_agents, task.rounds, task.attempt, task.enable_tools) == ("DEV", 3, 1, 1, True)
    assert task.constraints == type(task.constraints)()
    assert task.environment == type(task.environment)()
