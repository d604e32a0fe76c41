"""Agents that others run: real gRPC, real git, the real log; what they hand in counts, what they do wrong does not."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
import grpc.aio
import pytest

from fleet.agent.v1 import agent_pb2 as pb
from fleet.agent.v1.agent_pb2_grpc import AgentServiceServicer
from swe_ai_fleet.adapters.agent_service import AgentServiceClient
from swe_ai_fleet.adapters.jetstream import JetStream
from swe_ai_fleet.domain.assignment import CodingAssignment
from swe_ai_fleet.domain.budget import Limits
from swe_ai_fleet.domain.candidate import Candidate, Perspective
from swe_ai_fleet.domain.command import CheckSpec
from swe_ai_fleet.domain.council import Council, CouncilMember, EndpointRules
from swe_ai_fleet.domain.event import EventBody, ExecutionStatus, ModelReplied, RunFinished
from swe_ai_fleet.domain.task import COUNCIL_ROUNDS, Constraints, RepoRef, Role, Task, TaskKind
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.orchestrator.council_store import CouncilStore
from swe_ai_fleet.orchestrator.councils import CouncilRules
from swe_ai_fleet.orchestrator.executions import Executions
from swe_ai_fleet.runtime.agent_worker import AgentWorker, open_worker
from swe_ai_fleet.runtime.factories import connect_log, workspace_provider
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing import ScriptedModelServer
from swe_ai_fleet.testing.memory_stores import MemoryKeyValue
from swe_ai_fleet.testing.repositories import commit_files, make_repository
from tests.environments import home_at
from tests.outside_agent import SmallHarness, serving
from tests.scripted_fleet import execution_deps
from tests.scripts import FAILING, HELLO_FILES

SECONDS = 40
SECRET = "sk-live-4f9a8b7c6d5e4f3a2b1c"
GOOD = "\n\ndef hello_world():\n    return 'Hello, World!'\n"
Answer = Callable[[list[pb.SolveRequest], grpc.aio.ServicerContext], AsyncIterator[pb.SolveResponse]]


class Switchable(AgentServiceServicer):
    """An agent that can be changed for another one behind the same address."""

    def __init__(self) -> None:
        self.agent: AgentServiceServicer = Scripted(never)

    async def Describe(self, request: pb.DescribeRequest, context: grpc.aio.ServicerContext) -> pb.DescribeResponse:
        return await self.agent.Describe(request, context)

    async def Solve(
        self, requests: AsyncIterator[pb.SolveRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.SolveResponse]:
        async for response in self.agent.Solve(requests, context):
            yield response


@dataclass(kw_only=True)
class Place:
    """A worker of this process, and an address that it may call."""

    worker: AgentWorker
    log: JetStream
    switch: Switchable
    address: str
    settings: Settings

    def at(self, agent: AgentServiceServicer) -> str:
        """The address at which an agent answers from now on."""
        self.switch.agent = agent
        return self.address

    async def run(self, agent: AgentServiceServicer, task: Task) -> Candidate:
        return await self.worker.run(await an_assignment(self.worker, task, self.at(agent)))

    async def bodies(self, task: Task, agent_id: str = "outsider") -> list[EventBody]:
        events = self.log.read("default", task.execution_id, agent_id=agent_id)
        return [one.event.body async for one in events]


@pytest.fixture(scope="module")
async def place(
    nats_server: EmbeddedNats, model_server: ScriptedModelServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Place]:
    switch = Switchable()
    async with serving(switch) as address:
        settings = Settings(
            home=home_at(tmp_path_factory.mktemp("home")),
            model_url=model_server.url,
            model="scripted",
            model_api_key=SECRET,
            agent_endpoints=address,
            agent_service_token="a-token-for-agents",
            nats_url=nats_server.address.url,
            nats_token=nats_server.address.token,
        )
        async with connect_log(settings, name="reader") as log:
            await log.ensure_streams()
            async with open_worker(settings, host="test") as worker:
                yield Place(worker=worker, log=log, switch=switch, address=address, settings=settings)


@pytest.fixture(autouse=True)
async def bounded() -> AsyncIterator[None]:
    async with asyncio.timeout(SECONDS):
        yield


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = make_repository(tmp_path_factory.mktemp("repository"), HELLO_FILES)
    commit_files(path, {"notes.txt": "more\n"}, message="Second commit")
    return path


def a_task(repository: Path, **changes: object) -> Task:
    constraints = Constraints(
        limits=Limits(timeout_seconds=30),
        requirements=("It greets the world.",),
        allowed_paths=("*.py",),
        checks=(CheckSpec(name="says hello", command="python3 -c 'import utils; utils.hello_world()'"),),
    )
    told: dict[str, object] = {
        "task_id": f"outside-{uuid.uuid4().hex[:8]}",
        "kind": TaskKind.DELIBERATE,
        "description": f"Greet the world {FAILING}",
        "repo": RepoRef(location=str(repository)),
        "num_agents": 0,
        "rounds": 0,
        "constraints": constraints,
    }
    return Task(**(told | changes))


async def an_assignment(worker: AgentWorker, task: Task, address: str, **changes: object) -> CodingAssignment:
    return CodingAssignment(
        execution_id=task.execution_id,
        agent_id="outsider",
        task=task,
        repository=await worker.workspaces.pin("default", task.repo),
        perspective=Perspective(temperature=0.4, seed=2, instructions="Be brief.", endpoint=address),
        **changes,
    )


async def hand_in_good(clone: Path, assignment: pb.Assignment) -> str:
    with (clone / "utils.py").open("a") as file:
        file.write(GOOD)
    (clone / "picture.bin").write_bytes(bytes(range(256)))
    return f"Added hello_world. My key is {SECRET}."


class Scripted(AgentServiceServicer):
    """Answers as it is told."""

    def __init__(self, answer: Answer, *, version: int = 1) -> None:
        self._answer = answer
        self._version = version
        self.asked = 0
        self.cancelled = asyncio.Event()

    async def Describe(self, request: pb.DescribeRequest, context: grpc.aio.ServicerContext) -> pb.DescribeResponse:
        return pb.DescribeResponse(name="scripted", protocol_version=self._version)

    async def Solve(
        self, requests: AsyncIterator[pb.SolveRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.SolveResponse]:
        self.asked += 1
        try:
            async for response in self._answer([request async for request in requests], context):
                yield response
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


def nothing_left(candidate: Candidate, stop: StopReason = StopReason.MODEL_ERROR) -> bool:
    left = candidate.artifacts
    return candidate.stop_reason is stop and not left.files_changed and left.patch is not None and not left.patch.size


async def never(requests: list[pb.SolveRequest], context: grpc.aio.ServicerContext) -> AsyncIterator[pb.SolveResponse]:
    yield pb.SolveResponse(progress=pb.Progress(text="thinking"))
    await asyncio.Event().wait()


async def test_a_cancellation_reaches_the_agent(place: Place, repository: Path) -> None:
    begun = asyncio.Event()

    async def wait(
        requests: list[pb.SolveRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.SolveResponse]:
        async for response in never(requests, context):
            yield response
            # From here on the answer waits in its own code: a cancellation is met there, not between two messages.
            begun.set()

    hanging, task = Scripted(wait), a_task(repository)
    running = asyncio.create_task(place.run(hanging, task))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await hanging.cancelled.wait()
    end = (await place.bodies(task))[-1]
    assert isinstance(end, RunFinished) and end.stop_reason is StopReason.CANCELLED


def says(*responses: pb.SolveResponse) -> Answer:
    async def answer(
        requests: list[pb.SolveRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.SolveResponse]:
        for response in responses:
            yield response

    return answer


def hands_in(patch: bytes, **fields: object) -> Answer:
    return says(pb.SolveResponse(result=pb.Result(patch=patch, **fields)))


def ends_with(code: grpc.StatusCode, words: str) -> Answer:
    async def answer(
        requests: list[pb.SolveRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.SolveResponse]:
        yield pb.SolveResponse(progress=pb.Progress(text="hm"))
        await context.abort(code, words)

    return answer


def new_file(name: str, mode: str = "100644") -> bytes:
    return (
        f"diff --git a/{name} b/{name}\nnew file mode {mode}\n--- /dev/null\n+++ b/{name}\n@@ -0,0 +1 @@\n+boo\n"
    ).encode()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (hands_in(new_file("../outside.py")), "does not apply"),
        (hands_in(new_file(".git/hooks/post-checkout", "100755")), "does not apply"),
        (hands_in(b"x" * (16 * 1024**2 + 1)), "more than"),
        (says(), "without a result"),
        (ends_with(grpc.StatusCode.FAILED_PRECONDITION, f"not mine {SECRET}"), "FAILED_PRECONDITION: not mine"),
        (ends_with(grpc.StatusCode.UNAVAILABLE, "gone"), "cannot be reached"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_garbage_is_a_candidate_that_says_so(place: Place, repository: Path, answer: Answer, error: str) -> None:
    candidate = await place.run(Scripted(answer), a_task(repository))
    assert nothing_left(candidate)
    assert error in candidate.error
    assert SECRET not in candidate.error


async def test_what_an_agent_says_of_itself_is_bounded(place: Place, repository: Path) -> None:
    usage = pb.Usage(prompt_tokens=-5, completion_tokens=2**62, cost=float("inf"), tool_calls=3)
    progress = [pb.SolveResponse(progress=pb.Progress(text="p" * 50_000))] * 300
    done = pb.SolveResponse(
        result=pb.Result(patch=new_file("new.py"), summary=f"{'s' * 15_990}{SECRET}{'t' * 100_000}", usage=usage)
    )
    task = a_task(repository)
    candidate = await place.run(Scripted(says(*progress, done)), task)
    assert candidate.error == "" and candidate.artifacts.files_changed == ("new.py",)
    assert (candidate.usage.prompt_tokens, candidate.usage.completion_tokens, candidate.usage.cost) == (0, 10**12, 0.0)
    assert len(candidate.summary) < 16_200 and SECRET[:8] not in candidate.summary
    bodies = await place.bodies(task)
    said = [body.reply.message.content for body in bodies if isinstance(body, ModelReplied)]
    assert len(said) < 300
    assert max(len(text) for text in said[:-1]) < 4_200


def allowing(place: Place, *patterns: str) -> AgentWorker:
    """The worker, with other agents allowed."""
    client = AgentServiceClient(EndpointRules(patterns=patterns), mask=lambda text: text)
    return replace(place.worker, external=replace(place.worker.external, outside=client))


async def test_an_endpoint_that_is_not_allowed_any_more_is_not_called(place: Place, repository: Path) -> None:
    harness, worker = SmallHarness(hand_in_good), allowing(place, "127.0.0.1:1")
    refused = await worker.run(await an_assignment(worker, a_task(repository), place.at(harness)))
    assert nothing_left(refused) and "not allowed here" in refused.error
    assert harness.assignments == []
    other = await place.run(Scripted(never, version=7), a_task(repository))
    assert nothing_left(other) and "speaks version 7" in other.error


async def test_tls_and_the_token_for_agents(place: Place, repository: Path, tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = await asyncio.create_subprocess_exec(
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "2"),
        *("-keyout", str(key), "-out", str(certificate)),
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert await made.wait() == 0
    roots = certificate.read_bytes()
    harness = SmallHarness(hand_in_good)
    async with serving(harness, grpc.ssl_server_credentials([(key.read_bytes(), roots)])) as address:
        port = address.rpartition(":")[2]
        rules = EndpointRules(patterns=(f"localhost:{port}", f"127.0.0.1:{port}"))

        async def ask(endpoint: str, trusted: bytes | None) -> Candidate:
            client = AgentServiceClient(rules, mask=lambda text: text, token="for-agents", roots=trusted)
            worker = replace(place.worker, external=replace(place.worker.external, outside=client))
            return await worker.run(await an_assignment(worker, a_task(repository), endpoint))

        told = await ask(f"https://localhost:{port}", roots)
        strangers = [
            await ask(f"https://localhost:{port}", None),
            await ask(f"https://127.0.0.1:{port}", roots),
            await ask(f"localhost:{port}", roots),
        ]
    assert told.error == "" and harness.metadata[0]["authorization"] == "Bearer for-agents"
    assert all(nothing_left(each) and "cannot be reached" in each.error for each in strangers)
    assert len(harness.assignments) == 1


async def test_an_outside_agent_wins_against_our_own(place: Place, repository: Path) -> None:
    async def only_code(clone: Path, assignment: pb.Assignment) -> str:
        with (clone / "utils.py").open("a") as file:
            file.write(GOOD)
        return "Added hello_world."

    harness = SmallHarness(only_code)
    endpoint = place.at(harness)
    members = (CouncilMember(agent_id="ours"), CouncilMember(agent_id="theirs", endpoint=endpoint))
    council = Council(council_id="council-dev", role=Role.DEV, members=members, peer_review=False)
    rules = CouncilRules(endpoints=EndpointRules(patterns=(place.address,)))
    councils = CouncilStore(MemoryKeyValue(), defaults=(council,), rules=rules)
    around = execution_deps(place.log, fleet=place.worker, workspaces=workspace_provider(place.settings))
    async with Executions(around, councils=councils) as executions:
        check = CheckSpec(
            name="greets", command="python3 -c \"import utils; utils.hello_world() == 'Hello, World!' or 1/0\""
        )
        limits = Limits(timeout_seconds=60)
        task = a_task(repository, rounds=COUNCIL_ROUNDS, constraints=Constraints(limits=limits, checks=(check,)))
        submitted = await executions.submit(task)
        state = await executions.wait(task.tenant, submitted.execution_id)
    assert state.council == council and (state.task.num_agents, state.task.rounds) == (2, 0)
    assert state.status is ExecutionStatus.COMPLETED
    assert state.winner_id == "theirs"
    assert {name: one.model.partition(":")[0] for name, one in state.candidates.items()} == {
        "ours": "scripted",
        "theirs": "external",
    }
    assert [one.accepted for one in state.ranking] == [True, False]
    assert state.agents["theirs"].status == "finished"
    [told] = harness.assignments
    assert (told.task_description, told.role, told.constraints.timeout_seconds) == (task.description, "DEV", 60)
    assert [check.name for check in told.constraints.checks] == ["greets"]
    assert (told.repository.base_commit, told.repository.without_history) == (state.repository.commit, False)
    # Nothing of ours is shown over plain text, the token for agents neither.
    assert "authorization" not in harness.metadata[0]
