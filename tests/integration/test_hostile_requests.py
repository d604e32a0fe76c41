"""Bad input to every RPC: which value a field must not hold, the code of the refusal, and the field that it names."""

from __future__ import annotations

import base64
import copy
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import aiohttp
import grpc
import grpc.aio
import pytest
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2, status_pb2

from fleet.options.v1 import options_pb2
from services.gateway.upstream import FILES
from tests.conftest import FleetUnderTest
from tests.served import SERVED

METHODS: Mapping[str, MethodDescriptor] = {method.name: method for method in SERVED}
NOWHERE = "00000000-0000-4000-8000-000000000000"
ZEROS = "0" * 64
NAMES = ("", "a b", "../x", "x" * 129, "x.lock", "ä")
LONG = "x" * 70_000
CHECK = {"command": "make test"}
TASK = {"task_id": "hostile", "task_description": "x", "repo": {"path": "/nowhere/at/all"}}


def diff(text: bytes = b"d") -> str:
    return base64.b64encode(text).decode()


def patches(*names: str) -> list[dict[str, str]]:
    return [{"name": name, "diff": diff()} for name in names]


# A row: the field that the error names, then what it must not hold: a value of the field, or, in braces, the fields
# of the request that the fault takes. The base is a request that passes every check of its fields.
Rows = Mapping[str, tuple[Any, ...]]

TASKS: Rows = {
    "task_id": ("", "x.lock"),
    "task_description": ("  ", LONG),
    "repo": ({"repo": {}}, {"repo": {"path": ""}}),
    "repo.path": ("relative/path",),
    "repo.url": ({"repo": {"url": "/srv/app"}},),
    "repo.upload_id": ({"repo": {"upload_id": "u1"}},),
    "repo.credential_ref": (
        "deploy-key",
        {"repo": {"url": "https://example.org/app.git", "credential_ref": "../other/bot"}},
        {"repo": {"upload_id": "a" * 64, "credential_ref": "deploy-key"}},
    ),
    "attempt": (10_001,),
    "constraints.max_iterations": (10_001,),
    "constraints.network.allowed_hosts[1]": tuple(
        {"constraints": {"network": {"allowed_hosts": ["example.org", host]}}}
        for host in ("not a host", "example.org:22", "")
    ),
    "constraints.checks[1].command": ({"constraints": {"checks": [CHECK, {"name": "x"}]}},),
    "constraints.checks[1].name": ({"constraints": {"checks": [CHECK, CHECK]}},),
    "constraints.checks[0].timeout_seconds": tuple(
        {"constraints": {"checks": [CHECK | {"timeout_seconds": seconds}]}} for seconds in (-1, 86_401)
    ),
    "environment.variables[A=B]": ({"environment": {"variables": {"A=B": "c"}}},),
}
AGENTS: Rows = TASKS | {
    "role": ("PLUMBER",),
    "context": ("x" * 1_100_000,),
    "tools[1]": ({"tools": ["files", "files_reed_file"]},),
    "constraints.allowed_tools[0]": ({"constraints": {"allowed_tools": ["read_file"]}},),
    "memory.read": ({"memory": {"namespaces": ["fleet"]}}, {"memory": {"entities": ["Invoice"]}}),
    "model_profile": ("huge",),
}
PAGES: Rows = {"page_token": ("nonsense", "WzEsMiwzXQ")}

REQUESTS: Mapping[str, tuple[Mapping[str, Any], Rows]] = {
    "Deliberate": (TASK, AGENTS | {"num_agents": (301,), "rounds": (17,), "architect_top_k": (99,)}),
    "Orchestrate": (
        TASK,
        AGENTS
        | {
            "options.num_agents": (301,),
            "options.custom_params[model_profile]": (
                {"options": {"custom_params": {"model_profile": "huge"}}},
                {"options": {"custom_params": {"model_profile": "large"}}, "model_profile": "small"},
            ),
            "delivery.branch": ("refs/../x", "-f", "a b"),
            "delivery.push": ({"repo": {"upload_id": "a" * 64}, "delivery": {"push": True}},),
        },
    ),
    "JudgePatches": (
        TASK | {"patches": patches("a")},
        TASKS
        | {
            "task_description": (LONG,),
            "patches": (
                {"patches": []},
                {"patches": patches(*map(str, range(65)))},
                {"patches": [{"name": "a", "diff": diff(b"x" * (3 * 1024 * 1024 + 1))}]},
            ),
            "patches[1].name": ({"patches": patches("a", "a")},),
            "patches[0].diff": ({"patches": [{"name": "a", "diff": diff(b" \n")}]},),
        },
    ),
    "SubmitTask": ({}, {"task": ({},)}),
    "GetDeliberationResult": ({}, {"task_id": ("", "x.lock")}),
    "GetArtifact": ({"execution_id": NOWHERE, "digest": ZEROS}, {"digest": ("",)}),
    "ResolveApproval": (
        {"execution_id": NOWHERE, "decision": "APPROVAL_DECISION_REJECTED"},
        {
            "decision": (0,),
            "adjustment": ("otherwise", {"decision": "APPROVAL_DECISION_ADJUSTED"}),
            "comment": ({"decision": "APPROVAL_DECISION_ADJUSTED", "adjustment": "x", "comment": "y"},),
        },
    ),
    "DeliverCandidate": ({"execution_id": NOWHERE, "candidate_id": "a"}, {"candidate_id": ("",)}),
    "ListExecutions": (
        {},
        PAGES | {"statuses[1]": ({"statuses": ["DELIBERATION_STATUS_COMPLETED", 0]},)},
    ),
    "CreateCouncil": (
        {"role": "DATA"},
        {
            "role": ("", "CLERK"),
            "num_agents": (301,),
            "config.model_profile": ("huge", "small, huge"),
            "config.agent_type": ("robot",),
        },
    ),
    "Drain": ({"target": "DRAIN_TARGET_HOST", "name": "agent-host-1"}, {"target": (0,)}),
    "Erase": (
        {"execution_id": "0" * 8 + "-0000" * 3 + "-" + "0" * 12, "reason": "a leak", "dry_run": True},
        {"tenant": ({"execution_id": None, "tenant": "other"},)},
    ),
    "RegisterAgent": (
        {"role": "DATA", "agent_id": "a"},
        {
            "role": ("", "CLERK"),
            "agent_id": ("", "a b", "x" * 49, "planner", "a-r1", "a-seat2", "a-judges", "a-reviews-b"),
            "endpoint": (
                *("127.0.0.1", "127.0.0.1:7001", "http://127.0.0.1:7000", "169.254.169.254:80", "10.0.0.1:7000"),
                *("*.example.org:443", "127.0.0.1:7000/../x"),
            ),
            "metadata": ({"metadata": {"k": "v" * 4_001}},),
            "capabilities.model_profile": ("huge",),
        },
    ),
    "UnregisterAgent": ({"role": "DATA", "agent_id": "a"}, {"role": ("", "CLERK"), "agent_id": ("",)}),
    "ListCouncils": ({}, {"role_filter": ("CLERK",)}),
    "DeleteCouncil": ({}, {"role": ("", "CLERK")}),
    "ProcessPlanningEvent": (
        {"event_id": "hostile", "event_type": "plan.approved", "task_description": "x"},
        {
            "event_id": NAMES,
            "event_type": ("",),
            "roles[0]": ({"roles": ["CLERK"]}, {"roles": [""]}),
            "payload": ({"payload": {"x": "y" * 1_000_000}},),
        },
    ),
    "DeriveSubtasks": (
        {"plan_id": "hostile", "task_description": "x"},
        {"roles[0]": ({"roles": ["CLERK"]},), "repo.path": ("relative",)},
    ),
    "GetTaskContext": ({"role": "DEV"}, {"role": ("CLERK",), "phase": ("never",)}),
    "GetMetrics": (
        {},
        {"start_time_ms": (4_000_000_000_000,), "end_time_ms": ({"start_time_ms": 2_000, "end_time_ms": 1_000},)},
    ),
    "RunWorkflow": (
        {"task_id": "hostile", "name": "fix-issue", "inputs": {"issue": "x"}, "repo": {"path": "/nowhere/at/all"}},
        {
            "task_id": NAMES,
            "workflow": ({"name": None},),
            "inputs_json": ({"inputs": None, "inputs_json": "{"}, {"inputs": None, "inputs_json": "[1]"}),
            "inputs": ({"inputs": {"issue": "x" * 1_100_000}},),
            "repo.path": ("relative",),
        },
    ),
    "SteerWorkflow": ({"execution_id": NOWHERE, "action": "STEER_ACTION_PAUSE"}, {"action": (0,)}),
    "Send": (
        {"session_id": "hostile", "text": "x"},
        {"session_id": ("",), "text": ("",), "memory_namespaces[0]": ({"memory_namespaces": ["a b"]},)},
    ),
    "GetConversation": ({}, {"session_id": ("",)}),
    "ListConversations": ({}, PAGES),
    "EndConversation": ({}, {"session_id": ("",)}),
    "ExecutePlan": ({"goal": "x", "session_id": "hostile"}, {"goal": ("",), "session_id": ("a b", "../x")}),
    "ApproveApproach": (
        {"session_id": "hostile", "decision": "rejected"},
        {"session_id": NAMES, "decision": ("", "perhaps")},
    ),
    "ContinuePlan": ({}, {"session_id": NAMES}),
    "GetPlanSession": ({}, {"session_id": NAMES}),
    "ListPlanSessions": ({}, PAGES),
    "CreateWebhook": (
        {"url": "https://example.org/hook"},
        {
            "url": ("ftp://example.org", "http://127.0.0.1/x", "http://169.254.169.254/", "https://u:p@example.org/"),
            "events[0]": ({"events": ["nothing.ever"]},),
            "filter.roles[0]": ({"filter": {"roles": [""]}}, {"filter": {"roles": ["CLERK"]}}),
            "webhook_id": ("a b", "../x"),
            "secret": ("short",),
        },
    ),
    "DeleteWebhook": ({}, {"webhook_id": ("a b",)}),
    "TestWebhook": ({}, {"webhook_id": ("a b",)}),
    "ListDeliveries": ({"webhook_id": "a"}, {"webhook_id": ("a b",)}),
    "GetContext": (
        {"story_id": "hostile", "role": "ROLE_DEV"},
        {"entities": ({"entities": ["x"] * 100},), "namespaces[0]": ({"namespaces": ["a b"]},)},
    ),
    "UpdateContext": ({"story_id": "hostile"}, {"update": ({},), "title": ("",)}),
    "RehydrateSession": ({"story_id": "hostile"}, {}),
    "ValidateScope": ({"role": "ROLE_DEV", "phase": "PHASE_BUILD"}, {"role": (0,), "phase": (0,)}),
    "CreateStory": (
        {"story": {"story_id": "hostile", "title": "x"}},
        {"story.story_id": NAMES, "story.title": ("",)},
    ),
    "CreateTask": (
        {"task": {"task_id": "hostile", "story_id": "hostile", "title": "x"}},
        {"task.task_id": NAMES, "task.title": ("",)},
    ),
    "AddProjectDecision": (
        {"decision": {"decision_id": "hostile", "story_id": "hostile", "title": "x"}},
        {"decision.decision_id": NAMES, "decision.title": ("",)},
    ),
    "TransitionPhase": ({"story_id": "hostile"}, {"phase": (0,)}),
    "ListStories": ({}, PAGES),
    "GetGraphRelationships": (
        {"node": "story:hostile"},
        {"node": ("", "nothing")},
    ),
    "RecordOperations": ({"record": {"execution_id": "x", "story_id": "hostile"}}, {"record.execution_id": ("",)}),
    "AddInteraction": ({"namespace": "agent:x", "user": "u"}, {"user": ({"user": None},), "namespace": ("a b",)}),
    "AddFact": (
        {"namespace": "agent:x", "text": "f"},
        {"namespace": ("a b", ""), "text": ("", LONG), "source": ("me",)},
    ),
    "Recall": ({"query": "x"}, {"namespaces[0]": ({"namespaces": ["a b"]},)}),
    "ClearMemory": ({"namespaces": ["agent:x"]}, {"namespaces": ({"namespaces": None},), "everywhere": (True,)}),
    "RecordOutcome": ({"rating": {"subject_id": "hostile", "rating": 3}}, {"outcome": ({"rating": None},)}),
    "GetOutcome": ({}, {"subject_id": ("",)}),
    "RecommendApproach": ({"goal": "x"}, {}),
}
ALSO = {"Deliberate": ("StreamDeliberation", "deliberate"), "Orchestrate": ("StreamOrchestration", "orchestrate")} | {
    "JudgePatches": ("", "judge")
}
"""RPCs with the same request: one that streams, and SubmitTask, which has it in a field."""
WITHOUT_ROWS = {"GetStatus", "GetWorkflow", "ListWorkflows", "ListWebhooks", "ValidateWorkflow", "UploadRepository"} | {
    *("GetExecution", "StreamExecution", "CancelExecution", "GetRun"),
}
"""RPCs whose requests have nothing wrong that the contract does not say, or (the upload) are tried in test_uploads."""
JUDGED_FIRST = ("patches", "judge.patches")
"""What JudgePatches looks at before anything else of a request."""


@dataclass(frozen=True, kw_only=True)
class Clients:
    """The fleet's gRPC servers, and its gateway."""

    orchestrator: grpc.aio.Channel
    context: grpc.aio.Channel
    token: str
    http: aiohttp.ClientSession

    async def refusal(self, name: str, request: Message | bytes) -> tuple[str, str]:
        """The code of an RPC's refusal and the field that it names; what it begins to tell where it is none."""
        method = METHODS[name]
        service = method.containing_service.full_name
        channel = self.context if service.startswith("fleet.context.") else self.orchestrator
        data = request if isinstance(request, bytes) else request.SerializeToString()
        # Every kind of call is a stream on the wire.
        call: Any = channel.unary_stream(f"/{service}/{name}")(
            data, metadata=(("authorization", f"Bearer {self.token}"),), timeout=30
        )
        told = b""
        try:
            async for reply in call:
                told += reply
        except grpc.aio.AioRpcError as error:
            return error.code().name, _field(error)
        return "OK", repr(told[:40]) if told else ""


def _field(error: grpc.aio.AioRpcError) -> str:
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for detail in status_pb2.Status.FromString(value).details:
                bad = error_details_pb2.BadRequest()
                if detail.Unpack(bad):
                    [violation] = bad.field_violations
                    assert violation.description
                    return violation.field
    return ""


@pytest.fixture(scope="module")
async def clients(fleet: FleetUnderTest) -> AsyncIterator[Clients]:
    running = fleet.running
    async with (
        grpc.aio.insecure_channel(running.address) as orchestrator,
        grpc.aio.insecure_channel(running.context) as context,
        aiohttp.ClientSession(running.http, headers={"authorization": f"Bearer {running.token}"}) as http,
    ):
        yield Clients(orchestrator=orchestrator, context=context, token=running.token, http=http)


def bodies(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each bad request of an RPC as JSON, and the field that its refusal has to name."""
    base, rows = REQUESTS[name]
    for named, values in rows.items():
        for value in values:
            body = copy.deepcopy(dict(base))
            if isinstance(value, dict):
                body |= value
            else:
                *way, last = named.split(".")
                place = body
                for step in way:
                    place = place.setdefault(step, {})
                place[last] = value
            yield named, {key: one for key, one in body.items() if one is not None}


def message(name: str, body: Mapping[str, Any]) -> Message:
    return json_format.ParseDict(dict(body), GetMessageClass(METHODS[name].input_type)())


def test_every_rpc_has_rows() -> None:
    every = {method.name for file in FILES for one in file.services_by_name.values() for method in one.methods}
    assert REQUESTS.keys() | WITHOUT_ROWS | {stream for stream, _ in ALSO.values() if stream} == every


@pytest.mark.parametrize("name", [name for name in REQUESTS if name in METHODS])
async def test_a_bad_value_is_refused_and_its_field_named(clients: Clients, name: str) -> None:
    wrong: list[tuple[object, ...]] = []
    stream, inside = ALSO.get(name, ("", ""))
    for named, body in bodies(name):
        asked = [(name, body, named)]
        if stream:
            asked.append((stream, body, named))
        if inside:
            asked.append(("SubmitTask", {inside: body}, f"{inside}.{named}"))
        for rpc, told, field in asked:
            answer = await clients.refusal(rpc, message(rpc, told))
            if answer != ("INVALID_ARGUMENT", field):
                wrong.append((rpc, field, str(told)[:200], answer))
    assert not wrong, "\n".join(map(str, wrong))
    # Nothing of it was kept.
    assert await clients.refusal("ListExecutions", message("ListExecutions", {"task_id": "hostile"})) == ("OK", "")


def _spoilt(kind: Descriptor, depth: int = 2) -> Iterator[tuple[str, dict[str, Any]]]:
    """For each field of a message what no field of its type, or with its bounds, may hold, as JSON."""
    for field in kind.fields:
        mapped = field.message_type is not None and field.message_type.GetOptions().map_entry
        if mapped or (field.message_type is not None and field.message_type.full_name.startswith("google.")):
            continue
        many, bounds = field.is_repeated, cast("Any", field.GetOptions()).Extensions[options_pb2.bounds]
        named = f"{field.name}[0]" if many else field.name
        if many and bounds.HasField("max_items"):
            entry: object = {} if field.message_type is not None else "x" if field.type == field.TYPE_STRING else 0
            yield field.name, {field.name: [entry] * (bounds.max_items + 1)}
        if field.message_type is not None:
            for inner, body in _spoilt(field.message_type, depth - 1) if depth else ():
                yield f"{named}.{inner}", {field.name: [body] if many else body}
            continue
        for bad in _beyond(field, bounds):
            yield named, {field.name: [bad] if many else bad}


def _beyond(field: FieldDescriptor, bounds: Any) -> Iterator[object]:
    if field.type == FieldDescriptor.TYPE_STRING:
        yield "a\0b"
        if bounds.HasField("max_chars"):
            yield "x" * (bounds.max_chars + 1)
        if bounds.HasField("pattern"):
            yield from [text for text in ("a b", "../x", "*", "ä") if not re.fullmatch(bounds.pattern, text)][:2]
    elif field.enum_type is not None:
        yield 99
    elif field.cpp_type in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64):
        yield from (-1, *([int(bounds.max) + 1] if bounds.HasField("max") else []))
    elif field.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE and bounds.HasField("max"):
        yield from ("NaN", bounds.max * 2 + 1)


@pytest.mark.parametrize("name", sorted(METHODS.keys() - {"UploadRepository"}))
async def test_no_field_takes_what_the_contract_says_that_it_may_not_hold(clients: Clients, name: str) -> None:
    wrong: list[tuple[object, ...]] = []
    for named, body in _spoilt(METHODS[name].input_type):
        code, field = await clients.refusal(name, message(name, body))
        judged = name == "JudgePatches" or named.startswith("judge.")
        if code != "INVALID_ARGUMENT" or (field != named and not (judged and field.startswith(JUDGED_FIRST))):
            wrong.append((named, code, field))
    # A length that promises more than there is: no message at all.
    if (answer := await clients.refusal(name, b"\x0a\xff\xff\xff\x7f")) != ("INVALID_ARGUMENT", ""):
        wrong.append(("bytes", answer))
    assert not wrong, "\n".join(map(str, wrong))


PLAIN = "application/json"
BODIES: tuple[tuple[bytes, str, int, str], ...] = (
    (b'{"deliberate": {"task_id": "x",}}', PLAIN, 400, "body"),
    (b"[1]", PLAIN, 400, "body"),
    (b"\xff\xfe", PLAIN, 400, "body"),
    (b'{"a":' * 100_000, PLAIN, 400, "body"),
    (b'{"deliberate": {"task_id": NaN}}', PLAIN, 400, "body"),
    (b'{"deliberate": {}, "deliberate": {}}', PLAIN, 400, "deliberate"),
    (b'{"deliberate": {}, "orchestrate": {}}', PLAIN, 400, "orchestrate"),
    *(
        (b'{"deliberate": {"%b": %b}}' % (field, value), PLAIN, 400, f"deliberate.{field.decode()}")
        for field, value in (
            (b"rounds", b"1e400"),
            (b"rounds", b"true"),
            (b"task_id", b'"\\ud800"'),
            (b"nothing", b"1"),
            (b"approval", b'"YES"'),
        )
    ),
    (b'{"deliberate": {"constraints": {"checks": [{}, 3]}}}', PLAIN, 400, "deliberate.constraints.checks[1]"),
    (b"{}", "text/plain", 415, "content-type"),
    (b"{" + b" " * (4 * 1024 * 1024) + b"}", PLAIN, 413, ""),
)
"""Bodies of POST /api/executions that are no SubmitTaskRequest in JSON."""
QUERIES = (
    *(("page_size", text) for text in ("1&page_size=2", "", "1.5", "99999999999999999999", "501")),
    *(
        ("statuses", "COMPLETED"),
        ("nothing", "1"),
        ("created_after_ms", "-1"),
        ("page_token", "%00%ff"),
        ("task.id", "1"),
    ),
)


async def test_what_is_no_request_in_json_or_in_a_query_is_refused(clients: Clients) -> None:
    found: list[tuple[object, ...]] = []
    for data, kind, _, _ in BODIES:
        async with clients.http.post("/api/executions", data=data, headers={"content-type": kind}) as answer:
            found.append((data[:60], answer.status, (await answer.json(content_type=None)).get("field", "")))
    assert found == [(data[:60], status, field) for data, _, status, field in BODIES]
    for name, text in QUERIES:
        async with clients.http.get(f"/api/executions?{name}={text}") as answer:
            told = await answer.json(content_type="application/problem+json")
        assert (told["status"], told["code"], told["field"]) == (400, "INVALID_ARGUMENT", name), text
    assert (told["title"], told["instance"]) == ("Bad Request", "/api/executions")
    async with clients.http.get("/api/executions?page_size=501") as answer:
        told = await answer.json(content_type=None)
    assert (told["detail"], told["hint"][:11]) == ("page_size is 501", "at most 500")
    headers = {"content-type": PLAIN}
    async with clients.http.post("/api/executions", data=b'{\n  "deliberate": {,}\n}', headers=headers) as answer:
        assert "line 2, column 18" in (await answer.json(content_type=None))["detail"]
