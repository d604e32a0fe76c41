"""The REST API over the whole fleet: real gateway, gRPC, Ray, NATS and git; only the model is scripted."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import random
import re
import socket
import subprocess
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import aiohttp
import jsonschema
import pytest
import structlog

from fleet.context.v1 import context_pb2 as context_pb
from fleet.context.v1 import context_pb2_grpc
from services.auth import caller_of
from services.gateway.app import Surroundings, gateway_app
from services.gateway.server import serve_http
from services.gateway.upstream import open_upstream
from services.grpc_server import Service, serve_grpc
from swe_ai_fleet.adapters.jetstream import Credentials, JetStream
from swe_ai_fleet.domain.task import DEFAULT_TENANT
from swe_ai_fleet.testing.memory_key_value import MemoryKeyValue
from swe_ai_fleet.testing.repositories import git, make_repository, write_files
from tests.conftest import FleetUnderTest
from tests.scripts import HELLO, HELLO_FILES, PROPOSING, SLEEP

PROBLEM = "application/problem+json"
NOWHERE = "00000000-0000-4000-8000-000000000000"
ENDED = ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "REJECTED", "NO_WINNER")
SECONDS = 120
SQUARE = """
name: square
inputs:
  n: integer
nodes:
  - {id: square, type: tool, tool: calculator, arguments: {expression: "${inputs.n} * ${inputs.n}"}}
outputs:
  answer: ${nodes.square.output.content}
"""


@dataclass(frozen=True, kw_only=True)
class Api:
    """A client of the gateway."""

    session: aiohttp.ClientSession
    directory: Path

    async def ask(self, verb: str, path: str, body: object = None, **more: Any) -> tuple[int, Any, Any]:
        """Status, JSON and headers of an answer."""
        async with self.session.request(verb, path, json=body, **more) as answer:
            return answer.status, await answer.json(content_type=None), answer.headers

    async def get(self, path: str, **query: Any) -> Any:
        status, told, _ = await self.ask("GET", path, params=query)
        assert status == 200, told
        return told

    async def post(self, path: str, body: object, status: int = 200) -> Any:
        answered, told, _ = await self.ask("POST", path, body)
        assert answered == status, told
        return told

    async def refused(self, verb: str, path: str, body: object = None, **more: Any) -> dict[str, Any]:
        """The problem document of a request that fails."""
        status, told, headers = await self.ask(verb, path, body, **more)
        assert headers["content-type"] == PROBLEM
        assert told["status"] == status
        assert {"type", "title", "status", "detail", "code", "instance"} <= told.keys()
        assert told["instance"] == path.partition("?")[0]
        return told

    def task(self, text: str = f"{HELLO}, please", **fields: Any) -> dict[str, Any]:
        """A deliberation on a repository of its own."""
        name = f"rest-{uuid.uuid4().hex[:8]}"
        where = make_repository(self.directory / name, HELLO_FILES)
        basic = {"task_id": name, "task_description": text, "repo": {"path": str(where)}, "num_agents": 1}
        return basic | {"enable_peer_review": False} | fields

    async def until(self, execution_id: str, *statuses: str) -> dict[str, Any]:
        """The execution, once it stands at one of these."""
        wanted = {f"DELIBERATION_STATUS_{one}" for one in statuses}
        async with asyncio.timeout(SECONDS):
            while True:
                execution = (await self.get(f"/api/executions/{execution_id}"))["execution"]
                if execution["status"] in wanted:
                    return execution
                await asyncio.sleep(0.05)


@pytest.fixture(scope="module")
async def api(fleet: FleetUnderTest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Api]:
    headers = {"authorization": f"Bearer {fleet.running.token}"}
    async with aiohttp.ClientSession(fleet.running.http, headers=headers) as session:
        yield Api(session=session, directory=tmp_path_factory.mktemp("rest"))


@pytest.fixture(scope="module")
async def ended(api: Api) -> dict[str, Any]:
    """A deliberation that has ended, waited for as HTTP clients do; what its wait answered is under `answer`."""
    task = api.task()
    answer = await api.post("/api/deliberations", task)
    execution = (await api.get(f"/api/executions/{answer['execution_id']}"))["execution"]
    return {"task": task, "answer": answer, "execution": execution}


async def test_a_deliberation_is_waited_for(api: Api, ended: dict[str, Any]) -> None:
    answer, execution = ended["answer"], ended["execution"]
    assert answer["status"] == "DELIBERATION_STATUS_COMPLETED"
    assert answer["winner_id"] == execution["winner_id"] != ""
    (result,) = answer["results"]
    assert result["rank"] == 1
    assert result["checks"]["all_passed"] is True
    assert "hello_world" in base64.b64decode(result["patch"]["text"]).decode()
    # Numbers of 64 bits are numbers, and defaults are printed.
    assert isinstance(execution["created_at_ms"], int)
    assert isinstance(execution["usage"]["prompt_tokens"], int)
    assert execution["error_message"] == ""
    assert execution["subtasks"] == []
    assert execution["kind"] == "EXECUTION_KIND_DELIBERATION"
    told = await api.get(f"/api/tasks/{ended['task']['task_id']}/result")
    assert told["winner_id"] == ended["answer"]["winner_id"]
    assert told["metadata"]["execution_id"] == ended["answer"]["execution_id"]


async def test_a_task_submitted_twice_is_one_execution(api: Api, ended: dict[str, Any]) -> None:
    status, told, headers = await api.ask("POST", "/api/executions", {"deliberate": ended["task"]})
    assert status == 202
    assert told["already_existed"] is True
    assert told["execution_id"] == ended["answer"]["execution_id"]
    assert headers["location"] == f"/api/executions/{told['execution_id']}"
    other = {"deliberate": ended["task"] | {"task_description": "Something else"}}
    problem = await api.refused("POST", "/api/executions", other)
    assert (problem["status"], problem["code"]) == (409, "ALREADY_EXISTS")


async def test_a_list_in_pages(api: Api, ended: dict[str, Any]) -> None:
    task = api.task("[pages] Something", attempt=1)
    first = await api.post("/api/executions", {"deliberate": task}, 202)
    await api.until(first["execution_id"], *ENDED)
    second = await api.post("/api/executions", {"deliberate": task | {"attempt": 2}}, 202)
    status, told, headers = await api.ask("GET", f"/api/executions?task_id={task['task_id']}&page_size=1")
    assert status == 200
    assert [one["execution_id"] for one in told["executions"]] == [second["execution_id"]]
    link, _, relation = headers["link"].partition("; ")
    assert relation == 'rel="next"'
    status, told, headers = await api.ask("GET", link.strip("<>"))
    assert [one["execution_id"] for one in told["executions"]] == [first["execution_id"]]
    assert told["next_page_token"] == ""
    assert "link" not in headers
    wanted = {"task_id": task["task_id"], "statuses": "DELIBERATION_STATUS_CANCELLED"}
    assert (await api.get("/api/executions", **wanted))["executions"] == []


async def test_whoever_does_not_want_to_wait_is_told_where(api: Api) -> None:
    task = api.task(f"{SLEEP} a while")
    status, told, headers = await api.ask("POST", "/api/deliberations?wait_seconds=0", task)
    assert status == 202
    assert headers["location"] == f"/api/executions/{told['execution_id']}"
    status, later, _ = await api.ask("POST", "/api/deliberations?wait_seconds=1", task)
    assert status == 202
    assert later["execution_id"] == told["execution_id"]
    cancelled = await api.post(f"{headers['location']}/cancel", {"reason": "seen enough"})
    assert cancelled["already_ended"] is False
    execution = await api.until(told["execution_id"], "CANCELLED")
    assert execution["winner_id"] == ""
    assert (await api.post(f"{headers['location']}/cancel", {}))["already_ended"] is True


async def test_an_orchestration_as_events(api: Api) -> None:
    task = api.task()
    del task["num_agents"], task["enable_peer_review"]
    task["options"] = {"num_agents": 1}
    events: list[tuple[dict[str, str], Any]] = []
    headers = {"accept": "text/event-stream"}
    async with api.session.post("/api/orchestrations", json=task, headers=headers) as answer:
        assert answer.status == 200
        assert answer.content_type == "text/event-stream"
        for block in (await answer.text()).split("\n\n"):
            lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
            if lines:
                events.append((lines, json.loads(lines["data"])))
    numbers = [int(lines["id"]) for lines, _ in events if "id" in lines]
    assert numbers == sorted(set(numbers))
    assert [lines["event"] for lines, _ in events[:-1]] == ["update"] * (len(events) - 1)
    lines, last = events[-1]
    assert lines["event"] == "final"
    assert last["final"]["status"] == "DELIBERATION_STATUS_COMPLETED"
    assert last["final"]["branch"]


async def test_whoever_leaves_a_stream_ends_nothing(api: Api) -> None:
    task = api.task(f"{SLEEP} for as long as it takes")
    headers = {"accept": "text/event-stream"}
    with structlog.testing.capture_logs() as lines:
        async with api.session.post("/api/deliberations", json=task, headers=headers) as answer:
            first = await answer.content.readuntil(b"\n\n")
        assert b"event: update" in first
        (listed,) = (await api.get("/api/executions", task_id=task["task_id"]))["executions"]
        await api.post(f"/api/executions/{listed['execution_id']}/cancel", {})
        await api.until(listed["execution_id"], "CANCELLED")
    assert [line for line in lines if line["log_level"] == "error"] == []


async def test_approving(api: Api) -> None:
    task = api.task(f"{PROPOSING} Add hello_world()", approval="APPROVAL_POLICY_PLAN")
    submitted = await api.post("/api/executions", {"deliberate": task}, 202)
    path = f"/api/executions/{submitted['execution_id']}"
    execution = await api.until(submitted["execution_id"], "AWAITING_APPROVAL")
    (pending,) = execution["pending_approvals"]
    problem = await api.refused("POST", f"{path}/approval", {"decision": "APPROVAL_DECISION_ADJUSTED"})
    assert problem["field"] == "adjustment"
    body = {"decision": "APPROVAL_DECISION_APPROVED", "approval_id": pending["approval_id"], "approver": "me"}
    assert (await api.post(f"{path}/approval", body))["pending_approvals"] == 0
    await api.until(submitted["execution_id"], "COMPLETED")
    problem = await api.refused("POST", f"{path}/approval", {"decision": "APPROVAL_DECISION_APPROVED"})
    assert (problem["status"], problem["code"]) == (409, "FAILED_PRECONDITION")


@pytest.fixture(scope="module")
async def artifact(fleet: FleetUnderTest, ended: dict[str, Any]) -> tuple[str, bytes]:
    """The path of an artifact of several pieces, and its content."""
    content = random.Random(7).randbytes(700_000)
    execution_id = ended["answer"]["execution_id"]
    credentials = Credentials(token=fleet.running.nats_token)
    async with JetStream.connect(fleet.running.nats_url, credentials=credentials) as log:
        stored = await log.put(DEFAULT_TENANT, execution_id, content, "application/octet-stream")
    return f"/api/executions/{execution_id}/artifacts/{stored.digest}", content


async def test_patches_are_judged_and_one_is_delivered(api: Api, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repository", HELLO_FILES)
    change = {"utils.py": f"{HELLO_FILES['utils.py']}\n\ndef hello_world():\n    return 'Hello, World!'\n"}
    write_files(repository, change)
    diff = git(repository, "diff").encode() + b"\n"
    git(repository, "checkout", "--quiet", ".")
    task_id = f"judged-{uuid.uuid4().hex[:8]}"
    body = {
        "task_id": task_id,
        "repo": {"path": str(repository)},
        "patches": [{"name": "hello", "diff": base64.b64encode(diff).decode()}],
    }
    told = await api.post("/api/judgements", body)
    assert (told["status"], told["winner_id"]) == ("DELIBERATION_STATUS_COMPLETED", "hello")
    (best,) = told["results"]
    assert best["verdict"] == "EVIDENCE_VERDICT_VERIFIED"
    assert "test_utils.py::test_hello" in best["verdict_reasons"][0]
    assert told["baseline"]["summary"] == "1 pass, 1 fail: test_utils.py::test_hello"
    place = f"/api/executions/{told['execution_id']}"
    delivered = await api.post(
        f"{place}/deliveries", {"candidate_id": "hello", "approver": "ana", "reason": "It fits."}
    )
    assert git(repository, "rev-parse", delivered["branch"]) == delivered["commit_sha"]
    execution = (await api.get(place))["execution"]
    assert [(one["by"], one["branch"]) for one in execution["hand_deliveries"]] == [("ana", delivered["branch"])]
    problem = await api.refused("POST", f"{place}/deliveries", {"candidate_id": "nobody"})
    assert problem["status"] == 404
    problem = await api.refused("POST", "/api/judgements", {**body, "patches": []})
    assert problem["status"] == 400
    # Whoever looks on is told of it behind the end.
    messages: list[Any] = []
    page: dict[str, Any] = {"next_from": 0, "ended": False}
    while not page["ended"]:
        page = await api.get(f"{place}/events", **{"from": page["next_from"]})
        messages += page["events"]
    assert (messages[-2]["type"], messages[-2]["result"]["verdict"]) == ("completion", "verified")
    assert messages[-1]["data"]["message"].startswith("hello: delivered by ana as ")


async def test_an_artifact(api: Api, artifact: tuple[str, bytes]) -> None:
    path, content = artifact
    digest = hashlib.sha256(content).hexdigest()
    async with api.session.get(path) as answer:
        assert answer.status == 200
        assert await answer.read() == content
        assert answer.headers["content-length"] == str(len(content))
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["content-disposition"] == f'attachment; filename="{digest}"'
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["etag"] == f'"{digest}"'
    async with api.session.head(path) as answer:
        assert (answer.status, answer.headers["content-length"]) == (200, str(len(content)))
    async with api.session.get(path, headers={"if-none-match": f'"{digest}"'}) as answer:
        assert (answer.status, await answer.read()) == (304, b"")

    for asked, start, end in (
        ("bytes=0-9", 0, 10),
        ("bytes=300000-599999", 300_000, 600_000),
        ("bytes=650000-", 650_000, 700_000),
        ("bytes=-5", 699_995, 700_000),
        ("bytes=-9999999", 0, 700_000),
        ("bytes=699999-9999999", 699_999, 700_000),
    ):
        async with api.session.get(path, headers={"range": asked}) as answer:
            assert answer.status == 206
            assert answer.headers["content-range"] == f"bytes {start}-{end - 1}/{len(content)}"
            assert await answer.read() == content[start:end]
    for asked in ("bytes=700000-", "bytes=99999999999-99999999999", "bytes=-0"):
        problem = await api.refused("GET", path, headers={"range": asked})
        assert (problem["status"], problem["field"]) == (416, "range")
    # Ranges that make no sense, several ones and those of another version are answered with the whole.
    for headers in (
        {"range": "bytes=5-3"},
        {"range": "lines=1-2"},
        {"range": "bytes=0-1,3-4"},
        {"range": "bytes=0-1", "if-range": '"another"'},
    ):
        async with api.session.get(path, headers=headers) as answer:
            assert (answer.status, len(await answer.read())) == (200, len(content))
    assert (await api.refused("GET", f"{path[:-64]}{'0' * 64}"))["status"] == 404
    assert (await api.refused("GET", f"{path[:-64]}x"))["field"] == "digest"
    assert (await api.refused("GET", f"{path}?offset_bytes=3"))["field"] == "offset_bytes"


async def test_a_repository_is_sent(api: Api, tmp_path: Path) -> None:
    where, bundle = make_repository(tmp_path / "sent", HELLO_FILES), tmp_path / "sent.bundle"
    argv = ["git", "-C", str(where), "bundle", "create", str(bundle), "main"]
    subprocess.run(argv, check=True, capture_output=True)
    data = bundle.read_bytes()
    headers = {"content-type": "application/x-git-bundle"}
    query = {"ref": "main", "digest": hashlib.sha256(data).hexdigest()}
    async with api.session.post("/api/repositories", data=data, params=query, headers=headers) as answer:
        repo = await answer.json()
    assert answer.status == 201, repo
    assert repo["upload_id"]
    told = await api.post("/api/executions", {"deliberate": api.task(f"{SLEEP} on it", repo=repo)}, 202)
    await api.post(f"/api/executions/{told['execution_id']}/cancel", {})
    query["digest"] = "0" * 64
    problem = await api.refused("POST", "/api/repositories", data=data, params=query, headers=headers)
    assert (problem["status"], problem["field"]) == (400, "digest")


async def test_councils(api: Api) -> None:
    made = await api.post("/api/councils", {"role": "DATA", "num_agents": 1}, 201)
    try:
        assert made["agents_created"] == 1
        joined = await api.post("/api/councils/DATA/agents", {"agent_id": "agent-data-rest"}, 201)
        assert joined["success"] is True
        listed = await api.get("/api/councils", role_filter="DATA", include_agents="true")
        (council,) = listed["councils"]
        assert "agent-data-rest" in [agent["agent_id"] for agent in council["agents"]]
        status, left, _ = await api.ask("DELETE", "/api/councils/DATA/agents/agent-data-rest")
        assert (status, left["success"]) == (200, True)
        body = {"agent_id": "a", "role": "QA"}
        assert (await api.refused("POST", "/api/councils/DATA/agents", body))["field"] == "role"
    finally:
        status, gone, _ = await api.ask("DELETE", "/api/councils/DATA")
    assert (status, gone["success"]) == (200, True)


async def test_workflows(api: Api) -> None:
    names = [one["name"] for one in (await api.get("/api/workflows"))["workflows"]]
    assert "fix-issue" in names
    found = await api.get("/api/workflows/fix-issue")
    assert found["mermaid"].startswith("flowchart")
    assert (await api.post("/api/workflows/validate", {"definition": found["definition"]}))["faults"] == []
    assert (await api.post("/api/workflows/validate", {"definition": "name: x"}))["faults"] != []
    assert (await api.refused("GET", "/api/workflows/nothing"))["status"] == 404

    body = {"task_id": f"rest-{uuid.uuid4().hex[:8]}", "definition": SQUARE, "inputs": {"n": 7}}
    status, told, headers = await api.ask("POST", "/api/workflow-runs", body)
    assert status == 202, told
    assert headers["location"] == f"/api/workflow-runs/{told['execution_id']}"
    await api.until(told["execution_id"], "COMPLETED")
    run = (await api.get(headers["location"]))["run"]
    assert {node["node_id"]: node["status"] for node in run["nodes"]} == {"square": "NODE_STATUS_COMPLETED"}
    assert "49" in json.loads(run["outputs_json"])["answer"]
    problem = await api.refused("POST", f"{headers['location']}/steer", {"action": "STEER_ACTION_PAUSE"})
    assert problem["status"] == 409
    both = body | {"name": "fix-issue"}
    assert (await api.refused("POST", "/api/workflow-runs", both))["field"] in ("name", "definition")


async def test_a_chat(api: Api) -> None:
    session = f"rest-{uuid.uuid4().hex[:8]}"
    headers = {"accept": "text/event-stream"}
    body = {"session_id": session, "text": "Hello?", "channel": "CHANNEL_MARKDOWN"}
    async with api.session.post("/api/chat", json=body, headers=headers) as streamed:
        blocks = (await streamed.text()).strip().split("\n\n")
    names = [block.splitlines()[0] for block in blocks]
    assert names[0] == "event: tool_called"
    assert names[-1] == "event: answer"
    answer = json.loads(blocks[-1].splitlines()[1].removeprefix("data: "))["answer"]
    assert (answer["turn"], answer["text"]) == (1, "Nothing to do.")
    assert (await api.post("/api/chat", {"session_id": session, "text": "And now?"}))["turn"] == 2

    conversation = (await api.get(f"/api/conversations/{session}"))["conversation"]
    assert [turn["text"] for turn in conversation["turns"]] == ["Hello?", "And now?"]
    listed = await api.get("/api/conversations", page_size="1")
    assert [one["session_id"] for one in listed["conversations"]] == [session]
    status, told, _ = await api.ask("DELETE", f"/api/conversations/{session}")
    assert (status, told["existed"]) == (200, True)
    assert (await api.refused("GET", f"/api/conversations/{session}"))["status"] == 404


async def test_context_memory_and_ratings(api: Api, ended: dict[str, Any]) -> None:
    story = f"rest-{uuid.uuid4().hex[:8]}"
    await api.post("/api/stories", {"story": {"story_id": story, "title": "Greet everybody"}}, 201)
    made = await api.post(f"/api/stories/{story}/tasks", {"task": {"task_id": f"{story}-1", "title": "Greet"}}, 201)
    assert made["task"]["story_id"] == story
    moved = await api.post(f"/api/stories/{story}/phase", {"phase": "PHASE_DESIGN"})
    assert (moved["previous"], moved["story"]["phase"]) == ("PHASE_PLAN", "PHASE_DESIGN")
    changed = await api.post(
        "/api/context/changes", {"story_id": story, "acceptance_criteria": {"values": ["It greets"]}}
    )
    assert changed["story"]["acceptance_criteria"] == ["It greets"]
    stale = {"story_id": story, "title": "Late", "expected_version": 1}
    assert (await api.refused("POST", "/api/context/changes", stale))["field"] == "expected_version"
    decision = {"decision_id": f"{story}-d", "story_id": story, "title": "In English"}
    await api.post("/api/decisions", {"decision": decision}, 201)
    graph = await api.get("/api/graph", node=f"story:{story}", depth="2")
    assert {"source": f"story:{story}", "kind": "RELATION_KIND_CONTAINS", "target": f"task:{story}-1"} in graph[
        "relations"
    ]
    context = await api.post("/api/context", {"story_id": story, "role": "ROLE_DEV"})
    assert "Greet everybody" in context["context_text"]
    for name in ("rehydrate", "validate-scope"):
        body = {"rehydrate": {"story_id": story}, "validate-scope": {"role": "ROLE_DEV", "phase": "PHASE_BUILD"}}[name]
        assert await api.post(f"/api/context/{name}", body)

    where = f"agent:{story}"
    await api.post("/api/memories/facts", {"namespace": where, "text": "Greetings live in utils.py."}, 201)
    await api.post("/api/memories/interactions", {"namespace": where, "user": "Hi", "assistant": "Hello"}, 201)
    recalled = await api.post("/api/memories/recall", {"query": "greetings", "namespaces": [where]})
    assert recalled["recollections"][0]["memory"]["text"] == "Greetings live in utils.py."
    assert (await api.post("/api/memories/clear", {"namespaces": [where]}))["removed"] == 2

    subject = ended["answer"]["execution_id"]
    async with asyncio.timeout(SECONDS):
        # The fleet records the outcome of its executions by itself, a moment after their end.
        while (answer := await api.ask("POST", "/api/outcomes", {"rating": {"subject_id": subject, "rating": 5}}))[
            0
        ] == 404:
            await asyncio.sleep(0.1)
    assert (answer[0], answer[1]["outcome"]["rating"]) == (200, 5)
    assert (await api.refused("POST", "/api/outcomes", {"rating": {"subject_id": subject, "rating": 9}}))[
        "status"
    ] == 400
    assert (await api.post("/api/recommendations", {"goal": "Add a function"}))["goal_type"]


async def test_the_fleet_itself(api: Api) -> None:
    status = await api.get("/api/status", include_stats="true")
    assert status["stats"]["total_deliberations"] >= 0
    assert "nats" in [component["name"] for component in status["components"]]
    context = await api.post("/api/task-context", {"role": "DEV"})
    assert context["token_count"] > 0


async def test_the_query_says_nothing_else_than_the_path(api: Api, ended: dict[str, Any]) -> None:
    execution_id = ended["execution"]["execution_id"]
    problem = await api.refused("GET", f"/api/executions/{NOWHERE}?execution_id={execution_id}")
    assert (problem["status"], problem["field"]) == (400, "execution_id")
    digest = hashlib.sha256(b"").hexdigest()
    problem = await api.refused("GET", f"/api/executions/{execution_id}/artifacts/{digest}?digest={digest}")
    assert (problem["status"], problem["field"]) == (400, "digest")
    # A value that is called like a parameter is no parameter.
    told = await api.refused("GET", "/api/executions/execution_id")
    assert told["field"] == "execution_id"


async def test_a_length_that_no_bundle_has(fleet: FleetUnderTest) -> None:
    authority = fleet.running.http.removeprefix("http://")
    head = f"POST /api/repositories HTTP/1.1\r\nHost: {authority}\r\nAuthorization: Bearer {fleet.running.token}\r\n"
    for length in (2**63, 2**64 - 1, 10**20):
        reader, writer = await asyncio.open_connection(*authority.split(":"))
        writer.write(f"{head}Content-Type: application/octet-stream\r\nContent-Length: {length}\r\n\r\n".encode())
        async with asyncio.timeout(SECONDS):
            answer = await reader.readline()
        assert b" 413 " in answer or b" 400 " in answer
        writer.close()


async def test_every_kind_of_refusal_is_a_problem(api: Api, fleet: FleetUnderTest) -> None:
    assert (await api.refused("GET", "/api/nothing"))["status"] == 404
    assert (await api.refused("GET", f"/api/executions/{NOWHERE}"))["code"] == "NOT_FOUND"
    status, told, headers = await api.ask("PUT", "/api/councils", {})
    assert (status, told["code"]) == (405, "UNIMPLEMENTED")
    assert sorted(headers["allow"].split(", ")) == ["GET", "HEAD", "POST"]
    problem = await api.refused("POST", "/api/deliberations?wait_seconds=soon", {})
    assert problem["field"] == "wait_seconds"
    assert (await api.refused("POST", "/api/deliberations?rounds=1", {}))["field"] == "rounds"
    body = {"task_id": "x", "task_description": "y", "repo": {"path": "relative"}}
    assert (await api.refused("POST", "/api/deliberations?wait_seconds=0", body))["field"] == "repo.path"
    streaming = {"headers": {"accept": "text/event-stream"}}
    assert (await api.refused("POST", "/api/deliberations", body, **streaming))["field"] == "repo.path"
    bundle = {"data": b"no bundle", "headers": {"content-type": "text/plain"}}
    assert (await api.refused("POST", "/api/repositories", **bundle))["status"] == 415
    bundle["headers"] = {"content-type": "application/octet-stream"}
    assert (await api.refused("POST", "/api/repositories?size_bytes=1", **bundle))["field"] == "size_bytes"
    async with aiohttp.ClientSession(fleet.running.http) as stranger, stranger.get("/api/status") as answer:
        assert (answer.status, answer.content_type) == (401, PROBLEM)
        assert answer.headers["www-authenticate"].startswith("Bearer")


async def test_what_does_not_answer_is_said_without_inner_words(fleet: FleetUnderTest, free_port: int) -> None:
    address = f"127.0.0.1:{free_port}"

    async def ready() -> bool:
        return True

    settings = fleet.settings.model_copy(update={"http_listen": "127.0.0.1:0"})
    async with open_upstream(address, address) as upstream:
        around = Surroundings(settings=settings, upstream=upstream, token=None, ready=ready, keys=MemoryKeyValue())
        async with (
            serve_http(gateway_app(around), "127.0.0.1:0") as url,
            aiohttp.ClientSession(url) as session,
            session.get("/api/status") as answer,
        ):
            told = await answer.json(content_type=PROBLEM)
    assert (answer.status, told["code"], told["retry_after_seconds"]) == (503, "UNAVAILABLE", 1)
    assert answer.headers["retry-after"] == "1"
    assert str(free_port) not in json.dumps(told)


class Outcomes(context_pb2_grpc.ContextServiceServicer):
    """A context service that knows of nothing but who asked."""

    async def RecommendApproach(
        self, request: context_pb.RecommendApproachRequest, context: Any
    ) -> context_pb.RecommendApproachResponse:
        return context_pb.RecommendApproachResponse(goal_type=f"as {caller_of(context)} asked")


async def test_a_context_service_elsewhere_is_shown_its_own_token(fleet: FleetUnderTest) -> None:
    async def ready() -> bool:
        return True

    own = f"token-{uuid.uuid4().hex}"
    add = cast("Any", context_pb2_grpc).add_ContextServiceServicer_to_server
    service = Service(name="fleet.context.v1.ContextService", add=add, servicer=Outcomes())
    async with (
        serve_grpc([service], "127.0.0.1:0", own, ready) as context,
        open_upstream(fleet.running.address, context, context_token=own) as upstream,
    ):
        around = Surroundings(
            settings=fleet.settings, upstream=upstream, token=fleet.running.token, ready=ready, keys=MemoryKeyValue()
        )
        admitted = {"authorization": f"Bearer {fleet.running.token}", "fleet-caller": "ada"}
        async with serve_http(gateway_app(around), "127.0.0.1:0") as url, aiohttp.ClientSession(url) as session:
            told = await session.post("/api/recommendations", json={"goal": "g"}, headers=admitted)
            assert (told.status, (await told.json())["goal_type"]) == (200, "as ada asked")
            # Only there: the orchestrator is still asked in the caller's name.
            assert (await session.get("/api/status", headers=admitted)).status == 200
            for shown in (own, ""):
                stranger = await session.post(
                    "/api/recommendations", json={}, headers={"authorization": f"Bearer {shown}"}
                )
                assert stranger.status == 401
    assert own not in repr(upstream)


@pytest.fixture
def free_port() -> int:
    """A port where nobody answers."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


async def test_the_document_is_served(api: Api) -> None:
    document = await api.get("/api/openapi.json")
    assert document["openapi"].startswith("3.1")
    submit = document["paths"]["/api/executions"]["post"]
    assert submit["operationId"] == "SubmitTask" and submit["description"].startswith("Validates and stores a task")
    schemas = document["components"]["schemas"]
    execution = schemas["orchestrator.Execution"]
    assert execution["properties"]["finished_at_ms"]["description"] == "0: has not ended."
    assert "execution_id" in execution["required"]
    assert schemas["orchestrator.DeliberateRequest"]["additionalProperties"] is False
    cancel = document["paths"]["/api/executions/{execution_id}/cancel"]["post"]
    assert cancel["requestBody"]["content"]["application/json"]["schema"]["properties"].keys() == {"reason"}
    for kind in ("schemas", "responses"):
        wanted = set(re.findall(rf'"#/components/{kind}/([^"]+)"', json.dumps(document)))
        assert len(wanted) > 5 and wanted <= document["components"][kind].keys()
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)
