"""Runs jobs as Kubernetes Jobs: creates, watches and removes them.

The runner's Jobs and Pods of one namespace are listed once, then followed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import structlog

from swe_ai_fleet.adapters.git_workspace.image_sources import FIELD, ImageReference
from swe_ai_fleet.domain.errors import FleetError, InvalidRequest
from swe_ai_fleet.extensions.kubernetes_jobs.settings import RunnerSettings
from swe_ai_fleet.following import in_background, waits
from swe_ai_fleet.runtime.factories import image_rules
from swe_ai_fleet.settings import Settings
from workers.jobs import ContainerEnding, EndReason, HeldJob, JobRef, JobSpec
from workers.workspace_runner.kubernetes_api import JobExists, KubernetesApi, WatchExpired, connected, own_namespace
from workers.workspace_runner.kubernetes_job import (
    AGENT,
    CLONE,
    PREFIX,
    Object,
    ending,
    finished,
    job_manifest,
    trouble,
    unexplained,
)

_AGAIN_SECONDS = (0.2, 1.0, 5.0, 15.0)
_MAX_GONE = 2_000
_log = structlog.get_logger(__name__)
_JOB_NAME = "job-name"
"""The label that every Pod of a Job has with its name."""
_LOOK_SECONDS = 5.0
_POD_SECONDS = 2.0
"""How long after the end of a Job the end of its Pod may be reported."""


class ChangeCounter:
    """Counts changes, and wakes the waiters for the next one."""

    def __init__(self) -> None:
        self._condition = asyncio.Condition()
        self.count = 0

    async def notify(self) -> None:
        """Count a change."""
        self.count += 1
        async with self._condition:
            self._condition.notify_all()

    async def since(self, count: int, seconds: float) -> None:
        """Wait until the count differs from `count`, for `seconds` at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._condition:
                await self._condition.wait_for(lambda: self.count != count)


class Watched:
    """The Jobs or Pods of a namespace, kept up to date by a list and a watch.

    Args:
        api: The Kubernetes API.
        kind: `jobs` or `pods`.
        namespace: Their namespace.
        changes: Notified of each change; shared by all kinds.
    """

    def __init__(self, api: KubernetesApi, kind: str, namespace: str, changes: ChangeCounter) -> None:
        self._api = api
        self._kind = kind
        self._namespace = namespace
        self._changes = changes
        self._things: dict[str, Object] = {}
        self._gone: dict[str, Object] = {}
        self.synced = asyncio.Event()

    def get(self, name: str) -> Object | None:
        """The resource of that name, if it exists."""
        return self._things.get(name)

    def all(self) -> tuple[Object, ...]:
        """The existing resources."""
        return tuple(self._things.values())

    def with_label(self, label: str, value: str) -> tuple[Object, ...]:
        """The resources with a label; deleted ones in their last state, marked `gone`."""
        deleted = tuple({**thing, "gone": True} for thing in self._gone.values())
        return tuple(
            resource for resource in (*self._things.values(), *deleted) if _labels(resource).get(label) == value
        )

    async def put(self, thing: Object) -> None:
        """Add a resource that the server just returned; the watch reports it again."""
        self._things.setdefault(_name(thing), thing)
        await self._changes.notify()

    def forget(self, label: str, value: str) -> None:
        """Forget deleted resources with a label."""
        for name in [name for name, thing in self._gone.items() if _labels(thing).get(label) == value]:
            del self._gone[name]

    async def follow(self) -> None:
        """List, then watch; list again after an expired watch. Runs until it is cancelled."""
        pauses, version = waits(_AGAIN_SECONDS), ""
        while True:
            try:
                if not version:
                    version = await self._list()
                watch = self._api.watch(self._kind, self._namespace, version)
                async with aclosing(watch) as events:
                    async for event, thing in events:
                        pauses, version = waits(_AGAIN_SECONDS), str(thing["metadata"]["resourceVersion"])
                        await self._take(event, thing)
            except WatchExpired:
                version = ""
            except FleetError as fault:
                _log.warning("kubernetes.unwatched", kind=self._kind, namespace=self._namespace, reason=str(fault))
                await asyncio.sleep(next(pauses))

    async def _list(self) -> str:
        things, version = await self._api.list(self._kind, self._namespace)
        by_name = {_name(thing): thing for thing in things}
        for name in self._things.keys() - by_name.keys():
            self._remove(name, self._things[name])
        self._things = by_name
        self.synced.set()
        await self._changes.notify()
        return version

    async def _take(self, event: str, thing: Object) -> None:
        if event == "BOOKMARK":
            return
        if event == "DELETED":
            self._remove(_name(thing), thing)
            self._things.pop(_name(thing), None)
        else:
            self._things[_name(thing)] = thing
        await self._changes.notify()

    def _remove(self, name: str, thing: Object) -> None:
        self._gone[name] = thing
        while len(self._gone) > _MAX_GONE:
            del self._gone[next(iter(self._gone))]


def _name(thing: Object) -> str:
    return str(thing["metadata"]["name"])


def _labels(thing: Object) -> dict[str, str]:
    return dict(thing["metadata"].get("labels") or {})


class KubernetesBackend:
    """Runs each job as a Kubernetes Job. Created by `open_kubernetes`.

    Jobs continue when this process ends; they have the names of the fleet's jobs, so that another runner finds them
    again.
    """

    def __init__(self, api: KubernetesApi, settings: RunnerSettings, fleet: Settings) -> None:
        self._api = api
        self._settings = settings
        self._fleet = fleet
        # With bubblewrap the agent unpacks images itself.
        self._registries = image_rules(fleet).registries if fleet.sandbox == "landlock" else None
        self._changes = ChangeCounter()
        namespaces = {settings.namespace, *settings.tenant_namespaces.values()}
        self._jobs = {name: Watched(api, "jobs", name, self._changes) for name in namespaces}
        self._pods = {name: Watched(api, "pods", name, self._changes) for name in namespaces}

    @property
    def watches(self) -> tuple[Watched, ...]:
        """The listed and followed resources."""
        return (*self._jobs.values(), *self._pods.values())

    async def start(self, spec: JobSpec) -> bool:
        """Create a Job; False if one of its name already exists.

        Raises InvalidRequest, PreconditionFailed, Unavailable.
        """
        spec = replace(spec, image=self._pulled(spec.image))
        manifest = job_manifest(spec, self._settings, nats_url=self._fleet.nats_url, model_url=self._fleet.model_url)
        namespace = self._namespace(spec.ref)
        try:
            created = await self._api.create(namespace, manifest)
        except JobExists:
            return False
        await self._jobs[namespace].put(created)
        return True

    async def ended(self, ref: JobRef) -> ContainerEnding:
        """Wait until a Job has ended, is gone, or has not begun within its time limit."""
        namespace = self._namespace(ref)
        jobs, pods = self._jobs[namespace], self._pods[namespace]
        await jobs.synced.wait()
        await pods.synced.wait()
        since: tuple[EndReason, float] | None = None
        now = asyncio.get_running_loop().time
        while True:
            count = self._changes.count
            job = jobs.get(ref.name)
            if job is None and (job := await self._api.job(namespace, ref.name)) is None:
                return ContainerEnding(reason=EndReason.DELETED, message="the Job was deleted from outside")
            job_pods = pods.with_label(_JOB_NAME, ref.name)
            over = ending(job, job_pods)
            if over is not None:
                return await self._with_log(namespace, over, job_pods)
            # The failure of a Job may be reported before that of its Pod.
            lost = unexplained(job)
            problem = lost or trouble(job_pods)
            grace = _POD_SECONDS if lost else self._grace(problem) if problem else _LOOK_SECONDS
            if problem is None:
                since = None
            elif since is None or since[0] is not problem.reason:
                since = problem.reason, now()
            elif now() - since[1] >= grace:
                return problem
            # The watch reports most changes; deadlines, and a watch that misses one, need regular looks.
            await self._changes.since(count, min(_LOOK_SECONDS, grace))

    async def stop(self, ref: JobRef) -> None:
        """Delete a Job; its Pods are stopped."""
        namespace = self._namespace(ref)
        await self._api.delete(namespace, ref.name)
        self._pods[namespace].forget(_JOB_NAME, ref.name)

    async def finish(self, ref: JobRef, *, failed: bool) -> None:
        """Delete a finished Job; a failed one that has ended is kept for its time to live."""
        namespace = self._namespace(ref)
        job = self._jobs[namespace].get(ref.name)
        if failed and self._settings.keep_seconds and job is not None and finished(job):
            self._pods[namespace].forget(_JOB_NAME, ref.name)
            return
        await self.stop(ref)

    async def held(self) -> tuple[HeldJob, ...]:
        """The runner's Jobs in all its namespaces."""
        for jobs in self._jobs.values():
            await jobs.synced.wait()
        return tuple(_held_job(job) for jobs in self._jobs.values() for job in jobs.all())

    def _pulled(self, image: str) -> str:
        """The name by which nodes pull an image; empty without an image, or if agents unpack it themselves."""
        if not image or self._registries is None:
            return ""
        reference = ImageReference.parse(image)
        if reference.transport != "docker" or not reference.digest:
            raise InvalidRequest(
                f"{image[:200]!r} is not an image of a registry with its digest",
                field=FIELD,
                hint="docker://registry.example.org/image@sha256:…",
            )
        self._registries.check(reference)
        return str(reference).removeprefix("docker://")

    def _namespace(self, ref: JobRef) -> str:
        return self._settings.namespace_of(ref.tenant)

    def _grace(self, problem: ContainerEnding) -> float:
        match problem.reason:
            case EndReason.UNSCHEDULABLE:
                return self._settings.schedule_deadline_seconds
            case EndReason.NODE_LOST:
                return 2.0 * self._settings.grace_seconds
            case _:
                return self._settings.pull_deadline_seconds

    async def _with_log(self, namespace: str, over: ContainerEnding, pods: tuple[Object, ...]) -> ContainerEnding:
        """The ending with the last output of its container, if it can be read."""
        existing = [pod for pod in pods if not pod.get("gone")]
        if over.log or over.reason is EndReason.COMPLETED or not existing:
            return over
        container = CLONE if over.reason is EndReason.CLONE else AGENT
        return replace(over, log=await self._api.log(namespace, str(existing[-1]["metadata"]["name"]), container))


@asynccontextmanager
async def open_kubernetes(settings: Settings, chosen: RunnerSettings) -> AsyncGenerator[KubernetesBackend]:
    """Connect to the cluster and follow the runner's Jobs and Pods until the context ends; Jobs continue to run.

    Raises InvalidRequest, PreconditionFailed, Unavailable.
    """
    if not chosen.image:
        raise InvalidRequest("no image is set", field="image", hint="set FLEET_RUNNER_IMAGE")
    chosen = chosen.model_copy(update={"namespace": own_namespace(chosen)})
    async with connected(chosen) as api:
        backend = KubernetesBackend(api, chosen, settings)
        # A fault of the first list, such as a missing permission, is raised at once.
        for namespace in {chosen.namespace, *chosen.tenant_namespaces.values()}:
            await api.list("jobs", namespace)
            await api.list("pods", namespace)
        async with in_background(*(watched.follow() for watched in backend.watches), name="kubernetes watch"):
            yield backend


def _held_job(job: Object) -> HeldJob:
    metadata: dict[str, Any] = job["metadata"]
    labels: dict[str, str] = metadata["labels"]
    tenant: str = metadata["annotations"][f"{PREFIX}tenant"]
    return HeldJob(
        ref=JobRef(name=str(metadata["name"]), tenant=tenant),
        job_id=str(labels[f"{PREFIX}job"]),
        run_id=str(labels[f"{PREFIX}run"]),
        generation=int(labels[f"{PREFIX}generation"]),
        ended=finished(job),
    )
