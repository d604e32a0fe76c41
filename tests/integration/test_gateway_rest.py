"""The REST API over the whole fleet: real gateway, gRPC, Ray, NATS and git; only the model is scripted."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import random
import re
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import jsonschema
import pytest

from swe_ai_fleet.adapters.jetstream import JetStream, NatsCredentials
from swe_ai_fleet.domain.task import DEFAULT_TENANT
from swe_ai_fleet.testing.repositories import make_repository
from tests.conftest import FleetUnderTest
from tests.scripts import HELLO, HELLO_FILES, SLEEP

PROBLEM = "application/problem+json"
NOWHERE = "00000000-0000-4000-8000-000000000000"
SECONDS = 120


@dataclass(frozen=True, kw_only=True)
class Api:
    """A client of the gateway."""

    session: aiohttp.ClientSession
    directory: Path
    document: dict[str, Any]

    async def ask(self, verb: str, path: str, body: object = None, **more: Any) -> tuple[int, Any, Any]:
        """Status, JSON and headers of an answer, which is as the API's document says."""
        async with self.session.request(verb, path, json=body, **more) as answer:
            status, told = answer.status, await answer.json(content_type=None)
        self._promised(verb.lower(), path.partition("?")[0], status, answer.content_type, told)
        return status, told, answer.headers

    def _promised(self, verb: str, path: str, status: int, kind: str, told: Any) -> None:
        for place, verbs in self.document["paths"].items():
            if verb not in verbs or not re.fullmatch(re.sub(r"\{[a-z_]+\}", "[^/]+", place), path):
                continue
            responses, way = verbs[verb]["responses"], ["paths", place, verb, "responses", str(status)]
            assert str(status) in responses, (path, status, told)
            if "$ref" in responses[str(status)]:
                way = responses[str(status)]["$ref"].removeprefix("#/").split("/")
            pointer = "/".join(step.replace("~", "~0").replace("/", "~1") for step in (*way, "content", kind, "schema"))
            schema = {**self.document, "$ref": f"#/{pointer}"}
            jsonschema.Draft202012Validator(schema).validate(told)

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
        async with session.get("/api/openapi.json") as answer:
            document = await answer.json()
        yield Api(session=session, directory=tmp_path_factory.mktemp("rest"), document=document)


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
    assert (result["rank"], result["checks"]["all_passed"]) == (1, True)
    assert "hello_world" in base64.b64decode(result["patch"]["text"]).decode()
    # Numbers of 64 bits are numbers, and defaults are printed.
    assert isinstance(execution["created_at_ms"], int)
    assert (execution["error_message"], execution["subtasks"]) == ("", [])
    told = await api.get(f"/api/tasks/{ended['task']['task_id']}/result")
    assert (told["winner_id"], told["metadata"]["execution_id"]) == (answer["winner_id"], answer["execution_id"])
    # The same again is the same execution.
    status, told, headers = await api.ask("POST", "/api/executions", {"deliberate": ended["task"]})
    assert (status, told["already_existed"], told["execution_id"]) == (202, True, answer["execution_id"])
    assert headers["location"] == f"/api/executions/{told['execution_id']}"
    other = {"deliberate": ended["task"] | {"task_description": "Something else"}}
    problem = await api.refused("POST", "/api/executions", other)
    assert (problem["status"], problem["code"]) == (409, "ALREADY_EXISTS")


async def test_whoever_does_not_want_to_wait_is_told_where(api: Api) -> None:
    task = api.task(f"{SLEEP} a while")
    status, told, headers = await api.ask("POST", "/api/deliberations?wait_seconds=0", task)
    assert status == 202
    assert headers["location"] == f"/api/executions/{told['execution_id']}"
    cancelled = await api.post(f"{headers['location']}/cancel", {"reason": "seen enough"})
    assert cancelled["already_ended"] is False
    execution = await api.until(told["execution_id"], "CANCELLED")
    assert execution["winner_id"] == ""
    assert (await api.post(f"{headers['location']}/cancel", {}))["already_ended"] is True


async def test_an_artifact(api: Api, fleet: FleetUnderTest, ended: dict[str, Any]) -> None:
    content = random.Random(7).randbytes(700_000)
    execution_id = ended["answer"]["execution_id"]
    login = NatsCredentials(token=fleet.running.nats_token)
    async with JetStream.connect(fleet.running.nats_url, credentials=login) as log:
        digest = (await log.put(DEFAULT_TENANT, execution_id, content, "application/octet-stream")).digest
    path = f"/api/executions/{execution_id}/artifacts/{digest}"
    whole = {
        "content-length": str(len(content)),
        "content-type": "application/octet-stream",
        "content-disposition": f'attachment; filename="{digest}"',
        "x-content-type-options": "nosniff",
        "etag": f'"{digest}"',
    }
    async with api.session.get(path) as answer:
        assert (answer.status, await answer.read()) == (200, content)
        assert {name: answer.headers[name] for name in whole} == whole
    for asked, start, end in (("bytes=650000-", 650_000, 700_000), ("bytes=-5", 699_995, 700_000)):
        async with api.session.get(path, headers={"range": asked}) as answer:
            assert (answer.status, await answer.read()) == (206, content[start:end])
            assert answer.headers["content-range"] == f"bytes {start}-{end - 1}/{len(content)}"
    problem = await api.refused("GET", path, headers={"range": "bytes=700000-"})
    assert (problem["status"], problem["field"]) == (416, "range")
    assert (await api.refused("GET", f"{path[:-64]}{'0' * 64}"))["status"] == 404
    assert (await api.refused("GET", f"{path}?offset_bytes=3"))["field"] == "offset_bytes"


async def test_what_a_path_names_stands_in_the_message(api: Api) -> None:
    story = f"rest-{uuid.uuid4().hex[:8]}"
    await api.post("/api/stories", {"story": {"story_id": story, "title": "Greet everybody"}}, 201)
    made = await api.post(f"/api/stories/{story}/tasks", {"task": {"task_id": f"{story}-1", "title": "Greet"}}, 201)
    assert made["task"]["story_id"] == story
    moved = await api.post(f"/api/stories/{story}/phase", {"phase": "PHASE_DESIGN"})
    assert (moved["previous"], moved["story"]["phase"]) == ("PHASE_PLAN", "PHASE_DESIGN")
    stale = {"story_id": story, "title": "Late", "expected_version": 1}
    assert (await api.refused("POST", "/api/context/changes", stale))["field"] == "expected_version"
    graph = await api.get("/api/graph", node=f"story:{story}", depth="2")
    contains = {"source": f"story:{story}", "kind": "RELATION_KIND_CONTAINS", "target": f"task:{story}-1"}
    assert contains in graph["relations"]


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


async def test_every_kind_of_refusal_is_a_problem(api: Api, fleet: FleetUnderTest) -> None:
    assert (await api.refused("GET", "/api/nothing"))["status"] == 404
    assert (await api.refused("GET", f"/api/executions/{NOWHERE}"))["code"] == "NOT_FOUND"
    status, told, headers = await api.ask("PUT", "/api/councils", {})
    assert (status, told["code"]) == (405, "UNIMPLEMENTED")
    assert sorted(headers["allow"].split(", ")) == ["GET", "HEAD", "POST"]
    problem = await api.refused("POST", "/api/deliberations?wait_seconds=soon", {})
    assert problem["field"] == "wait_seconds"
    body = {"task_id": "x", "task_description": "y", "repo": {"path": "relative"}}
    assert (await api.refused("POST", "/api/deliberations?wait_seconds=0", body))["field"] == "repo.path"
    bundle = {"data": b"no bundle", "headers": {"content-type": "text/plain"}}
    assert (await api.refused("POST", "/api/repositories", **bundle))["status"] == 415
    async with aiohttp.ClientSession(fleet.running.http) as stranger, stranger.get("/api/status") as answer:
        assert (answer.status, answer.content_type) == (401, PROBLEM)
        assert answer.headers["www-authenticate"].startswith("Bearer")


async def test_the_document_is_served(api: Api) -> None:
    document = await api.get("/api/openapi.json")
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
