"""What a runner is made of, without a cluster: manifest, slots, credentials, tasks, the place of a container."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.adapters.git_workspace import Credential, mounted_credentials
from swe_ai_fleet.adapters.jetstream import Hopeless, Work
from swe_ai_fleet.codec import from_json, from_plain, to_json, to_plain
from swe_ai_fleet.domain.errand import ERRANDS, Assignment, CheckAssignment, ErrandKind
from swe_ai_fleet.domain.errors import AgentLost, InvalidRequest, PreconditionFailed
from swe_ai_fleet.domain.job import Job, JobOutcome, JobPriority, job_id, seconds_of
from swe_ai_fleet.domain.task import CheckSpec, Constraints, PinnedRepository, RepoRef, Task, TaskKind
from swe_ai_fleet.runtime.job_board import JobBoard, fault_of, outcome_of
from swe_ai_fleet.testing.memory_key_value import MemoryKeyValue
from swe_ai_fleet.testing.memory_log import MemoryLog
from workers.place import Place
from workers.workspace_runner.backend import Ending, EndReason, HeldJob, JobRef, JobSpec
from workers.workspace_runner.kubernetes.manifest import AGENT, CLONE, job_manifest, label
from workers.workspace_runner.runner import Runner
from workers.workspace_runner.settings import RunnerSettings
from workers.workspace_runner.slots import Slots
from workers.workspace_runner.tasks import failure, read_task

SETTINGS = RunnerSettings(
    image="registry.example/fleet-agent:1",
    namespace="fleet",
    git_secrets={"*": "git"},
    nats_secret="nats",
    agent_secrets=("model",),
    agent_config=("fleet",),
    files_secret="tls",
    pull_secrets=("pull",),
    runtime_class="gvisor",
    node_selector={"pool": "agents"},
)
SPEC = JobSpec(
    ref=JobRef(name="fleet-run-0", tenant="default"),
    job_id=job_id("a"),
    run_id=job_id("b"),
    generation=1,
    kind="run",
    task_id="t",
    execution_id="e",
    agent_id="agent-1",
    clones=True,
    deadline_seconds=90.4,
)
TASK = Task(task_id="t", kind=TaskKind.DELIBERATE, description="d", repo=RepoRef(location="https://git.example/a"))
REPOSITORY = PinnedRepository(tenant="default", location="https://git.example/a", commit="0" * 40)


def manifest(spec: JobSpec = SPEC, settings: RunnerSettings = SETTINGS) -> dict[str, Any]:
    return job_manifest(spec, settings, nats_url="nats://nats:4222", model_url="http://vllm:8000/v1")


def test_a_manifest_is_what_the_schema_says() -> None:
    kubernetes_validate.validate(manifest(), "1.33", strict=True)
    bare = manifest(replace(SPEC, clones=False), RunnerSettings(image="a", namespace="b"))
    kubernetes_validate.validate(bare, "1.33", strict=True)
    assert "initContainers" not in bare["spec"]["template"]["spec"]


def test_a_pod_keeps_the_restricted_standard() -> None:
    """The Pod Security Standard `restricted`, each of its rules."""
    pod = manifest()["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"} & pod.keys()
    assert all(volume.keys() - {"name"} in ({"emptyDir"}, {"secret"}) for volume in pod["volumes"])
    assert all("sizeLimit" in volume["emptyDir"] for volume in pod["volumes"] if "emptyDir" in volume)
    for container in (*pod["containers"], *pod["initContainers"]):
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"].keys() == {"cpu", "memory"}


def test_only_the_container_that_clones_has_the_git_credential_and_only_the_agent_the_model_key() -> None:
    pod = manifest()["spec"]["template"]["spec"]
    (agent,), (clone,) = pod["containers"], pod["initContainers"]
    mounted = {one["name"]: [m["name"] for m in one["volumeMounts"]] for one in (agent, clone)}
    assert "git" in mounted[CLONE]
    assert "git" not in mounted[AGENT]
    sources = {
        one["name"]: [s["secretRef"]["name"] for s in one["envFrom"] if "secretRef" in s] for one in (agent, clone)
    }
    assert sources == {AGENT: ["model", "nats"], CLONE: ["nats"]}
    assert agent["args"] == ["python", "-m", "workers.agent"]
    assert clone["args"] == ["python", "-m", "workers.cloning"]
    names = {one["name"] for one in agent["env"]}
    assert {"TASK_ID", "VLLM_URL", "NATS_URL", "FLEET_JOB_ID", "FLEET_JOB_TENANT"} <= names
    assert not any("PASSWORD" in one["name"] or "TOKEN" in one["name"] for one in (*agent["env"], *clone["env"]))


def test_a_job_is_one_try() -> None:
    spec = manifest()["spec"]
    assert (spec["backoffLimit"], spec["completions"], spec["parallelism"]) == (0, 1, 1)
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    assert spec["activeDeadlineSeconds"] == 90
    assert all(rule["action"] == "FailJob" for rule in spec["podFailurePolicy"]["rules"])


def test_tenants_have_their_own_namespace_and_secret() -> None:
    settings = SETTINGS.model_copy(update={"tenant_namespaces": {"blue": "b"}, "git_secrets": {"blue": "blue-git"}})
    blue = manifest(replace(SPEC, ref=JobRef(name="n", tenant="blue")), settings)
    assert blue["metadata"]["namespace"] == "b"
    assert {"name": "git", "secret": {"secretName": "blue-git", "defaultMode": 0o440}} in blue["spec"]["template"][
        "spec"
    ]["volumes"]
    assert all(volume["name"] != "git" for volume in manifest(settings=settings)["spec"]["template"]["spec"]["volumes"])


@given(st.text())
def test_any_text_becomes_a_label(text: str) -> None:
    made = label(text)
    assert 0 < len(made) <= 63
    assert made.isascii()
    assert label(text) == made


def test_jobs_go_over_the_wire_and_back() -> None:
    for errand in (
        Assignment(execution_id="e", agent_id="a", task=TASK, repository=REPOSITORY),
        CheckAssignment(execution_id="e", candidate_id="c", task=TASK, repository=REPOSITORY),
    ):
        kind = errand.kind
        job = Job(
            job_id="j",
            kind=kind,
            tenant="default",
            task_id="t",
            execution_id="e",
            agent_id="a",
            errand=to_plain(errand),
        )
        back = from_json(Job, to_json(job))
        assert from_plain(ERRANDS[back.kind], dict(back.errand)) == errand
    assert set(ERRANDS) == set(ErrandKind)


def test_a_check_has_time_for_all_of_its_commands_twice() -> None:
    checks = (CheckSpec(name="a", command="a", timeout_seconds=10), CheckSpec(name="b", command="b", timeout_seconds=5))
    task = replace(TASK, constraints=Constraints(checks=checks))
    check = CheckAssignment(execution_id="e", candidate_id="c", task=task, repository=REPOSITORY)
    assert seconds_of(check) == 30 + task.constraints.limits.timeout_seconds


@pytest.mark.parametrize(("priority", "rank"), [(0, "low"), (1, "normal"), (5, "normal"), (6, "high"), (9, "high")])
def test_the_class_of_a_priority(priority: int, rank: str) -> None:
    assert JobPriority.of(priority) == rank


def test_a_fault_survives_the_board() -> None:
    fault = PreconditionFailed("no", field="repo", hint="yes")
    back = fault_of(from_json(JobOutcome, to_json(outcome_of(fault))))
    assert (type(back), back.message, back.field, back.hint) == (PreconditionFailed, "no", "repo", "yes")
    assert type(fault_of(JobOutcome(fault="sys", message="m"))).__name__ == "InternalFault"


async def test_those_of_a_higher_rank_get_the_next_slot() -> None:
    slots, order = Slots(1, 3), list[int]()
    first, go = asyncio.Event(), asyncio.Event()

    async def job(rank: int) -> None:
        async with slots.slot(rank):
            order.append(rank)
            first.set()
            await go.wait()

    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        group.create_task(job(2))
        await first.wait()
        for rank in (2, 1, 0, 1):
            group.create_task(job(rank))
        while slots.waiting < 4:
            await asyncio.sleep(0)
        assert slots.taken == 1
        go.set()
    assert order == [2, 0, 1, 1, 2]
    async with asyncio.timeout(5):
        await slots.idle()
        assert await slots.room(2) == 1


async def test_a_cancelled_wait_leaves_its_place() -> None:
    slots = Slots(1, 2)
    async with asyncio.timeout(5), slots.slot(1):
        waiting = asyncio.create_task(slots.slot(0).__aenter__())
        while not slots.waiting:
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert slots.waiting == 0
    async with asyncio.timeout(5), slots.slot(1):
        assert slots.taken == 1


async def test_a_credential_is_shown_to_its_hosts_only(tmp_path: Path) -> None:
    for name, text in {
        "username": "robot\n", "password": "p\n", "hosts": "git.example, *.corp.example",
        "blue.password": "b", "blue.hosts": "blue.example",
        "loose.password": "l", "ssh-privatekey": "k\n",
    }.items():  # fmt: skip
        (tmp_path / name).write_text(text)

    def at(url: str, reference: str = "default", hosts: tuple[str, ...] = ()) -> Awaitable[Credential | None]:
        return mounted_credentials(tmp_path, hosts=hosts)("t", reference, url)

    found = await at("https://git.example/a")
    assert found is not None
    assert (found.username, found.password) == ("robot", "p")
    assert "password" not in repr(found)
    # Over ssh a key takes the place of the password, for the same hosts.
    assert await at("git@x.corp.example:a/b.git") == await at("ssh://git.example/a") == Credential(key="k")
    assert await at("ssh://git@blue.example/a", "blue") is None
    with pytest.raises(PreconditionFailed, match="may not be shown"):
        await at("git@evil.example:a/b.git")
    blue = await at("https://blue.example/a", "blue")
    assert blue is not None
    assert blue.username == "git"
    for url, reference in (
        ("https://evil.example/git.example", "default"),
        ("https://git.example@evil.example/a", "default"),
        ("https://git.example.evil.example/a", "default"),
        ("https://git.example/a", "blue"),
        ("https://git.example/a", "loose"),
    ):
        with pytest.raises(PreconditionFailed, match="may not be shown"):
            await at(url, reference, hosts=("*",))
    assert await at("https://git.example/a", "none") is None
    with pytest.raises(InvalidRequest):
        await at("https://git.example/a", "../../etc")
    # A repository that names none gets the default where its host may see it, and else none.
    assert await at("https://git.example/a", "") == found
    assert await at("https://evil.example/a", "") is None
    assert await at("https://git.example/a", "loose", hosts=("git.example",)) is not None


async def test_a_tenant_has_the_credentials_of_its_own_directory(tmp_path: Path) -> None:
    for name, text in {"one/password": "p", "one/hosts": "git.example", "password": "q", "hosts": "*"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    lookup = mounted_credentials(tmp_path, by_tenant=True)
    found = await lookup("one", "", "https://git.example/a")
    assert found is not None
    assert found.password == "p"
    assert await lookup("two", "", "https://git.example/a") is None
    for tenant in ("..", ".", "one/..", ""):
        with pytest.raises(InvalidRequest):
            await lookup(tenant, "", "https://git.example/a")


def test_a_container_without_a_job_says_what_is_missing() -> None:
    with pytest.raises(InvalidRequest) as missing:
        Place.of({"FLEET_JOB_TENANT": "default"})
    assert missing.value.field == "FLEET_JOB_ID"
    place = Place.of({"FLEET_JOB_ID": "j", "FLEET_JOB_TENANT": "t", "FLEET_CLONE_PROTOCOLS": "https"})
    assert (str(place.workspace), place.protocols, place.credentials) == ("/workspace", ("https",), None)


def _work(body: object, subject: str = "agent.cmd.execute") -> Work:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Work(subject=subject, data=data, headers={}, sequence=1, deliveries=1)


BODY = {"deliberate": {"taskId": "t", "taskDescription": "d", "numAgents": 3, "repo": {"url": "https://git.example/a"}}}


def test_a_task_for_the_runner_has_one_agent_and_the_priority_of_its_subject() -> None:
    task = read_task(_work(BODY, "agent.cmd.execute.default.high"))
    assert (task.num_agents, task.rounds, task.priority, task.tenant) == (1, 0, 8, "default")


@pytest.mark.parametrize(
    ("body", "subject", "field"),
    [
        (b"{", "agent.cmd.execute", "message"),
        (b"\xff", "agent.cmd.execute", "message"),
        ({}, "agent.cmd.execute", "task"),
        (BODY, "agent.cmd.execute.default.urgent", "subject"),
        (BODY, "agent.cmd.execute.a.1.b", "subject"),
        ({"deliberate": {**BODY["deliberate"], "approval": "APPROVAL_POLICY_PLAN"}}, "agent.cmd.execute", "approval"),
    ],
)
def test_what_is_no_task_names_the_field(body: object, subject: str, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_task(_work(body, subject))
    assert refused.value.field == field


@given(st.text(max_size=50), st.text(max_size=50))
def test_a_failure_is_a_result_in_the_shape_of_every_result(message: str, hint: str) -> None:
    schema = json.loads((Path(__file__).parents[2] / "docs/schemas/result.json").read_text())
    payload = json.loads(failure(TASK, JobOutcome(fault="AgentLost", message=message, hint=hint, reason="Evicted")))
    jsonschema.validate(payload, schema)
    assert payload["error"].startswith("Evicted: ")
    assert payload["execution_id"] == TASK.execution_id


class Scripted:
    """A backend whose jobs end as a test says, or are told of on the board."""

    def __init__(self, ending: Ending | None = None) -> None:
        self.ending = ending
        self.started: list[str] = []
        self.stopped: list[str] = []
        self.finished: list[tuple[str, bool]] = []
        self.there: list[HeldJob] = []

    async def start(self, spec: JobSpec) -> bool:
        fresh = spec.ref.name not in self.started
        self.started.append(spec.ref.name)
        return fresh

    async def ended(self, ref: JobRef) -> Ending:
        if self.ending is None:
            await asyncio.Event().wait()
        assert self.ending is not None
        return self.ending

    async def stop(self, ref: JobRef) -> None:
        self.stopped.append(ref.name)

    async def finish(self, ref: JobRef, *, failed: bool) -> None:
        self.finished.append((ref.name, failed))

    async def held(self) -> tuple[HeldJob, ...]:
        return tuple(self.there)


def _runner(backend: Scripted) -> Runner:
    board = JobBoard(MemoryKeyValue(), MemoryLog())
    return Runner(board=board, backend=backend, settings=SETTINGS, slots=Slots(2, 3))


def _job(generation: int = 1, **more: Any) -> Job:
    errand = Assignment(execution_id="e", agent_id="a", task=TASK, repository=REPOSITORY, generation=generation)
    plain = Job(
        job_id=f"j{generation}",
        kind=ErrandKind.RUN,
        tenant="default",
        task_id="t",
        execution_id="e",
        agent_id="a",
        generation=generation,
        errand=to_plain(errand),
    )
    return replace(plain, **more)


def _message(job: Job, subject: str = "agent.jobs.default.low", deliveries: int = 1) -> Work:
    return Work(subject=subject, data=to_json(job), headers={}, sequence=1, deliveries=deliveries)


async def test_a_container_that_ends_without_a_word_is_a_lost_agent_with_the_reason() -> None:
    backend = Scripted(Ending(reason=EndReason.EVICTED, message="drained"))
    runner = _runner(backend)
    async with runner.board.watching(), asyncio.timeout(10):
        await runner.handle(_message(_job()), 2)
        outcome = await runner.board.outcome("default", "j1")
        assert outcome is not None
        assert (outcome.fault, outcome.reason) == ("AgentLost", "Evicted")
        assert "drained" in outcome.message
        with pytest.raises(AgentLost):
            await runner.board.value(outcome)
        # Its message once more changes nothing.
        await runner.handle(_message(_job()), 2)
    assert len(backend.started) == 1
    assert runner.figures()["failed"] == {"Evicted": 1}


async def test_a_later_generation_ends_the_earlier_one() -> None:
    backend = Scripted(Ending(reason=EndReason.COMPLETED))
    runner, job = _runner(backend), _job(generation=2)
    old = HeldJob(ref=JobRef(name="old", tenant="default"), job_id="j1", run_id=job.run_id, generation=1, ended=False)
    newer = replace(old, ref=JobRef(name="newer", tenant="default"), generation=3)
    other = replace(old, ref=JobRef(name="other", tenant="default"), run_id="x")
    backend.there = [old, newer, other, replace(old, ref=JobRef(name="over", tenant="default"), ended=True)]
    async with runner.board.watching(), asyncio.timeout(10):
        await runner.handle(_message(job), 2)
    assert backend.stopped == ["old"]


async def test_a_job_that_is_called_off_is_stopped() -> None:
    backend = Scripted()
    runner = _runner(backend)
    async with runner.board.watching(), asyncio.timeout(10):
        handling = asyncio.create_task(runner.handle(_message(_job()), 2))
        while not backend.started:
            await asyncio.sleep(0)
        await runner.board.call_off("default", "j1")
        await handling
        outcome = await runner.board.outcome("default", "j1")
    assert backend.stopped == backend.started
    assert outcome is not None
    assert outcome.fault == "AgentLost"


@pytest.mark.parametrize(
    ("work", "reason"),
    [
        (_work(b"{}", "agent.jobs.default.low"), "no job"),
        (_work(b"[1", "agent.jobs.default.low"), "no job"),
        (_message(_job(job_id="../../x")), "job_id"),
        (_message(_job(), "agent.jobs.other.low"), "came in on"),
        (_message(_job(tenant="other")), "came in on"),
    ],
)
async def test_what_is_no_job_is_hopeless(work: Work, reason: str) -> None:
    with pytest.raises(Hopeless, match=reason):
        await _runner(Scripted()).handle(work, 2)


@pytest.mark.parametrize(
    ("errand", "fault"),
    [
        ({"what": 1}, "InternalFault"),
        ({**_job().errand, "execution_id": "another"}, "InvalidRequest"),
        ({**_job().errand, "task": to_plain(replace(TASK, tenant="other"))}, "InvalidRequest"),
    ],
)
async def test_a_job_whose_errand_is_not_its_own_is_told_so(errand: dict[str, object], fault: str) -> None:
    backend = Scripted()
    runner = _runner(backend)
    async with runner.board.watching(), asyncio.timeout(10):
        await runner.handle(_message(_job(errand=errand)), 2)
        outcome = await runner.board.outcome("default", "j1")
    assert outcome is not None
    assert outcome.fault == fault
    assert backend.started == []
