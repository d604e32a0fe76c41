"""A Kubernetes API server for tests: Jobs and Pods over HTTP, with a controller and a node behind it.

It answers as the API does: resource versions, bookmarks, chunked streams, 409, 410, 422, 429 with Retry-After. The
controller makes one Pod for a Job and ends the Job as the Pod ends. The
node runs the containers' commands as processes of this machine, or does with a Pod what a test says. Its behaviour was
compared with documentation only, not with a cluster.
"""

from __future__ import annotations

import asyncio
import copy
import json
import re
import secrets
import shutil
import signal
import sys
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema
from aiohttp import web

from tests.manifests.strict import VERSIONS, validate
from tests.tool_doubles import served

TOKEN = "service-account-token"
_KINDS = {"jobs": "Job", "pods": "Pod"}
Json = dict[str, Any]
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_PATH = re.compile(r"/apis?(?:/batch)?/v1/namespaces/([^/]+)/(jobs|pods)(?:/([^/]+))?(/log)?")


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Refusal(Exception):
    """A call that the server turns down."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message

    @property
    def status(self) -> Json:
        return {
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        }  # fmt: skip


@dataclass(kw_only=True)
class KubernetesApiServer:
    """The server. `node` says what a new Pod meets: `run` (its commands are run), `idle` (it runs until a test ends
    it), `image` (no image), `unschedulable`, `config` (a secret is missing)."""

    root: Path
    node: str = "run"
    url: str = ""
    secrets: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    overloaded: int = 0
    forbidden: bool = False
    variables: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict[tuple[str, str], dict[str, str]])
    requests: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    bookmark_seconds: float = 0.2
    _version: int = 1_000
    _oldest: int = 1_000
    _things: dict[tuple[str, str, str], Json] = field(default_factory=dict[tuple[str, str, str], Json])
    _history: list[tuple[int, str, str, str, Json]] = field(default_factory=list[tuple[int, str, str, str, Json]])
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _cut: int = 0
    _tasks: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])
    _processes: dict[str, asyncio.subprocess.Process] = field(default_factory=dict[str, asyncio.subprocess.Process])

    # What tests look at, and do.

    def all(self, kind: str) -> list[Json]:
        return [copy.deepcopy(thing) for (one, _, _), thing in self._things.items() if one == kind]

    def pod_of(self, job: str) -> Json:
        return next(pod for pod in self.all("pods") if pod["metadata"]["labels"]["job-name"] == job)

    async def until(self, condition: Callable[[], object], seconds: float = 30.0) -> None:
        async with asyncio.timeout(seconds), self._changed:
            await self._changed.wait_for(lambda: bool(condition()))

    def forget_history(self) -> None:
        """Compact: watches from before now are told 410."""
        self._version = self._oldest = self._version + 1
        self._history.clear()

    async def cut_watches(self) -> None:
        """Break every watch off."""
        async with self._changed:
            self._cut += 1
            self._changed.notify_all()

    async def end(self, pod: str, *, code: int = 0, reason: str = "", container: str = "agent") -> None:
        """A container of a Pod ends."""
        thing = self._pod(pod)
        reason = reason or ("Error" if code else "Completed")
        _state(thing, container, {"terminated": {"exitCode": code, "reason": reason, "finishedAt": _now()}})
        if code or container == "agent":
            thing["status"]["phase"] = "Failed" if code else "Succeeded"
        await self._store("MODIFIED", "pods", thing)
        if code or container == "agent":
            await self._controller(thing)

    async def oom_kill(self, pod: str) -> None:
        """The kernel ends the container for its memory."""
        self._kill(pod)
        await self.end(pod, code=137, reason="OOMKilled")

    async def evict(self, pod: str) -> None:
        """A Pod has to go (drain, pre-emption): it fails, and is removed."""
        self._kill(pod)
        thing = self._pod(pod)
        thing["status"]["conditions"].append(_true("DisruptionTarget", "EvictionByEvictionAPI", "evicting"))
        thing["status"]["phase"] = "Failed"
        thing["metadata"]["deletionTimestamp"] = _now()
        await self._store("MODIFIED", "pods", thing)
        await self._store("DELETED", "pods", thing)
        await self._controller(thing)

    async def lose_node(self, pod: str) -> None:
        """Nobody hears of the Pod's node again: the Pod is to go, and nobody is there to end it."""
        thing = self._pod(pod)
        thing["metadata"]["deletionTimestamp"] = _now()
        thing["status"]["conditions"].append({"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"})
        await self._store("MODIFIED", "pods", thing)

    async def remove_job(self, name: str) -> None:
        """Somebody removes a Job with its Pods."""
        for key, thing in list(self._things.items()):
            if key[0] == "jobs" and key[2] == name:
                await self._delete_job(thing)

    # The controller.

    async def _made(self, job: Json) -> None:
        name = job["metadata"]["name"]
        template = job["spec"]["template"]
        pod: Json = {
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": f"{name}-{secrets.token_hex(3)[:5]}", "namespace": job["metadata"]["namespace"],
                "uid": str(uuid.uuid4()), "creationTimestamp": _now(),
                "annotations": template["metadata"].get("annotations", {}),
                "labels": {
                    **template["metadata"].get("labels", {}), "job-name": name, "batch.kubernetes.io/job-name": name,
                },
            },
            "spec": template["spec"],
            "status": {"phase": "Pending", "conditions": []},
        }  # fmt: skip
        for kind in ("initContainer", "container"):
            waiting = [_waiting(one["name"]) for one in template["spec"].get(f"{kind}s", [])]
            pod["status"][f"{kind}Statuses"] = waiting
        await self._store("ADDED", "pods", pod)
        job["status"] = {"startTime": _now(), "active": 1}
        await self._store("MODIFIED", "jobs", job)
        self._start(self._deadline(job["metadata"]["namespace"], name, job["spec"]["activeDeadlineSeconds"]))
        self._start(self._on_node(pod["metadata"]["name"]))

    async def _controller(self, pod: Json) -> None:
        """Pod failures are a Job's: `backoffLimit` is 0, or its policy names them."""
        job = self._find("jobs", pod["metadata"]["namespace"], pod["metadata"]["labels"]["job-name"])
        if job is None or job["status"].get("conditions"):
            return None
        if pod["status"]["phase"] == "Succeeded":
            return await self._over(job, "SuccessCriteriaMet", "Complete", "CompletionsReached", "")
        reason, message = "BackoffLimitExceeded", "Job has reached the specified backoff limit"
        for index, rule in enumerate(job["spec"].get("podFailurePolicy", {}).get("rules", [])):
            if _matches(rule, pod):
                reason = "PodFailurePolicy"
                message = f"Pod {pod['metadata']['name']} has failed, matching FailJob rule at index {index}"
                break
        return await self._over(job, "FailureTarget", "Failed", reason, message)

    async def _deadline(self, namespace: str, name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        job = self._find("jobs", namespace, name)
        if job is not None and not job["status"].get("conditions"):
            pod = self.pod_of(name)
            self._kill(pod["metadata"]["name"])
            await self._store("DELETED", "pods", pod)
            message = "Job was active longer than specified deadline"
            await self._over(job, "FailureTarget", "Failed", "DeadlineExceeded", message)

    async def _over(self, job: Json, soon: str, over: str, reason: str, message: str) -> None:
        for kind in (soon, over):
            told = {**_true(kind, reason, message), "lastTransitionTime": _now()}
            job["status"].setdefault("conditions", []).append(told)
            job["status"].pop("active", None)
            await self._store("MODIFIED", "jobs", job)

    # The node.

    async def _on_node(self, name: str) -> None:
        pod = self._pod(name)
        containers = [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
        if self.node == "unschedulable":
            message = "0/3 nodes are available: 3 Insufficient memory."
            pod["status"]["conditions"] = [{**_true("PodScheduled", "Unschedulable", message), "status": "False"}]
            return await self._store("MODIFIED", "pods", pod)
        pod["status"]["conditions"] = [_true("PodScheduled", "", "")]
        if self.node in ("image", "config"):
            reasons = ("ErrImagePull", "ImagePullBackOff") if self.node == "image" else ("CreateContainerConfigError",)
            for reason in reasons:
                waiting = {"reason": reason, "message": "Back-off pulling image"}
                _state(pod, containers[0]["name"], {"waiting": waiting})
                await self._store("MODIFIED", "pods", pod)
            return None
        pod["status"]["phase"] = "Running"
        if self.node == "idle":
            for one in containers:
                _state(pod, one["name"], {"terminated": {"exitCode": 0, "reason": "Completed"}})
            _state(pod, "agent", {"running": {"startedAt": _now()}})
            return await self._store("MODIFIED", "pods", pod)
        for one in containers:
            code = await self._container(pod, one)
            if self._find("pods", pod["metadata"]["namespace"], name) is None or pod["status"]["phase"] == "Failed":
                return None
            # As an exit by a signal is told.
            await self.end(name, code=128 - code if code < 0 else code, container=one["name"])
            if code:
                return None
        return None

    async def _container(self, pod: Json, container: Json) -> int:
        """Run a container's command; its mounts are directories of the Pod, its secrets files in them."""
        name = pod["metadata"]["name"]
        places = {mount["mountPath"]: self._volume(pod, mount["name"]) for mount in container["volumeMounts"]}

        def place(text: str) -> str:
            for path, directory in sorted(places.items(), key=lambda item: -len(item[0])):
                if text == path or text.startswith(f"{path}/"):
                    return str(directory) + text[len(path) :]
            return text

        variables = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOSTNAME": name, "PYTHONPATH": ":".join(sys.path)}
        for source in container.get("envFrom", []):
            variables |= self.secrets[source["secretRef"]["name"]]
        variables |= {one["name"]: place(one["value"]) for one in container["env"]}
        log = self.root / f"{name}.{container['name']}.log"
        command = [
            sys.executable if part == "python" else part
            for part in (*container.get("command", ()), *container.get("args", ()))
        ]
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *command, env=variables, cwd=place(container["workingDir"]), stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        self._processes[name] = process
        self.variables[name, container["name"]] = variables
        _state(pod, container["name"], {"running": {"startedAt": _now()}})
        await self._store("MODIFIED", "pods", pod)
        try:
            return await process.wait()
        finally:
            if process.returncode is None:
                process.kill()

    def _volume(self, pod: Json, name: str) -> Path:
        volume = next(one for one in pod["spec"]["volumes"] if one["name"] == name)
        directory = self.root / pod["metadata"]["name"] / name
        directory.mkdir(parents=True, exist_ok=True)
        if "secret" in volume:
            for key, value in self.secrets[volume["secret"]["secretName"]].items():
                (directory / key).write_text(value)
        return directory

    def _kill(self, pod: str, number: int = signal.SIGKILL) -> None:
        if (process := self._processes.get(pod)) is not None:
            with suppress(ProcessLookupError):
                process.send_signal(number)

    # The store.

    async def _store(self, event: str, kind: str, thing: Json) -> None:
        self._version += 1
        thing["metadata"]["resourceVersion"] = str(self._version)
        key = (kind, thing["metadata"]["namespace"], thing["metadata"]["name"])
        if event == "DELETED":
            self._things.pop(key, None)
        else:
            self._things[key] = thing
        self._history.append((self._version, kind, key[1], event, copy.deepcopy(thing)))
        async with self._changed:
            self._changed.notify_all()

    def _find(self, kind: str, namespace: str, name: str) -> Json | None:
        return self._things.get((kind, namespace, name))

    def _pod(self, name: str) -> Json:
        return next(thing for (kind, _, one), thing in self._things.items() if kind == "pods" and one == name)

    def _start(self, work: Any) -> None:
        self._tasks.append(asyncio.create_task(work))

    # HTTP.

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, request.path_qs))
        try:
            if request.headers.get("Authorization") != f"Bearer {TOKEN}":
                raise Refusal(401, "Unauthorized", "Unauthorized")
            if self.forbidden:
                raise Refusal(403, "Forbidden", "jobs.batch is forbidden: User cannot create resource")
            if self.overloaded:
                self.overloaded -= 1
                refusal = Refusal(429, "TooManyRequests", "the server has received too many requests")
                return web.json_response(refusal.status, status=429, headers={"Retry-After": "0"})
            if (path := _PATH.fullmatch(request.path)) is None:
                raise Refusal(404, "NotFound", "the server could not find the requested resource")
            namespace, kind, name, of_log = path.groups()
            if of_log:
                return await self._log(request, name)
            if request.method == "POST":
                return await self._create(request, namespace)
            if name is None:
                return await self._listed(request, kind, namespace)
            job = self._find("jobs", namespace, name)
            if job is None:
                raise Refusal(404, "NotFound", f'jobs.batch "{name}" not found')
            if request.method == "GET":
                return web.json_response(job)
            assert request.query.get("propagationPolicy") == "Background", "the Pods of a Job would be left behind"
            await self._delete_job(job)
            return web.json_response({"kind": "Status", "apiVersion": "v1", "status": "Success"})
        except Refusal as refusal:
            return web.json_response(refusal.status, status=refusal.code)

    async def _create(self, request: web.Request, namespace: str) -> web.StreamResponse:
        job = await request.json()
        _check(job)
        if self._find("jobs", namespace, job["metadata"]["name"]) is not None:
            raise Refusal(409, "AlreadyExists", f'jobs.batch "{job["metadata"]["name"]}" already exists')
        job["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": _now(), "namespace": namespace}
        job["status"] = {}
        await self._store("ADDED", "jobs", job)
        answer = copy.deepcopy(job)
        self._start(self._made(job))
        return web.json_response(answer, status=201)

    async def _delete_job(self, job: Json) -> None:
        await self._store("DELETED", "jobs", job)
        for pod in [p for p in self.all("pods") if p["metadata"]["labels"]["job-name"] == job["metadata"]["name"]]:
            self._kill(pod["metadata"]["name"], signal.SIGTERM)
            await self._store("DELETED", "pods", pod)

    async def _listed(self, request: web.Request, kind: str, namespace: str) -> web.StreamResponse:
        selector = dict(part.split("=", 1) for part in request.query.get("labelSelector", "").split(",") if part)

        def wanted(thing: Json) -> bool:
            labels = thing["metadata"].get("labels", {})
            return all(labels.get(name) == value for name, value in selector.items())

        if request.query.get("watch") in ("true", "True", "1"):
            return await self._watch(request, kind, namespace, wanted)
        items = [t for (one, place, _), t in self._things.items() if one == kind and place == namespace and wanted(t)]
        whole = {"kind": f"{_KINDS[kind]}List", "items": items, "metadata": {"resourceVersion": str(self._version)}}
        return web.json_response(whole)

    async def _watch(self, request: web.Request, kind: str, namespace: str, wanted: Any) -> web.StreamResponse:
        # Of the watch from its first moment: what is cut while it begins, is cut.
        cut = self._cut
        seen = int(request.query["resourceVersion"])
        if seen < self._oldest:
            raise Refusal(410, "Expired", f"too old resource version: {seen} ({self._oldest})")
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        until = asyncio.get_running_loop().time() + float(request.query.get("timeoutSeconds", "300"))
        bookmarks = request.query.get("allowWatchBookmarks") in ("true", "True")

        async def send(event: str, thing: Json) -> None:
            line = json.dumps({"type": event, "object": thing}).encode() + b"\n"
            for piece in (line[:50], line[50:]):
                await response.write(piece)

        with suppress(ConnectionError):
            while asyncio.get_running_loop().time() < until:
                if self._cut != cut:
                    assert request.transport is not None
                    request.transport.abort()
                    break
                for version, one, place, event, thing in list(self._history):
                    if version > seen and one == kind and place == namespace and wanted(thing):
                        await send(event, thing)
                    seen = max(seen, version)
                try:
                    async with asyncio.timeout(self.bookmark_seconds), self._changed:
                        await self._changed.wait_for(lambda seen=seen: self._version > seen or self._cut != cut)
                except TimeoutError:
                    if bookmarks:
                        await send("BOOKMARK", {"kind": _KINDS[kind], "metadata": {"resourceVersion": str(seen)}})
        return response

    async def _log(self, request: web.Request, pod: str) -> web.StreamResponse:
        file = self.root / f"{pod}.{request.query.get('container', 'agent')}.log"
        if not file.exists():
            raise Refusal(400, "BadRequest", "container is waiting to start")
        lines = file.read_text().splitlines()[-int(request.query.get("tailLines", "1000")) :]
        return web.Response(text="\n".join(lines))

    async def close(self) -> None:
        for name in self._processes:
            self._kill(name)
        for task in self._tasks:
            task.cancel()
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        shutil.rmtree(self.root, ignore_errors=True)
        if faults := [fault for fault in ended if isinstance(fault, Exception)]:
            raise ExceptionGroup("the cluster itself failed", faults)

    def kubeconfig(self) -> Json:
        """How a client finds the server."""
        return {
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "clusters": [{"name": "test", "cluster": {"server": self.url}}],
            "users": [{"name": "test", "user": {"token": TOKEN}}],
        }  # fmt: skip


@asynccontextmanager
async def kubernetes_api(root: Path, *, node: str = "run") -> AsyncGenerator[KubernetesApiServer]:
    """An API server on a free port of loopback, with an empty cluster."""
    root.mkdir(parents=True, exist_ok=True)
    server = KubernetesApiServer(root=root, node=node)
    async with served(server.handle) as port:
        server.url = f"http://127.0.0.1:{port}"
        try:
            yield server
        finally:
            await server.close()


def _check(job: Json) -> None:
    """What the server's validation says. Raises Refusal 422."""

    def invalid(message: str) -> Refusal:
        return Refusal(422, "Invalid", f'Job.batch "{job.get("metadata", {}).get("name")}" is invalid: {message}')

    try:
        validate(job, VERSIONS[0])
    except jsonschema.ValidationError as fault:
        raise invalid(f"{fault.json_path}: {fault.message[:500]}") from fault
    if not _NAME.fullmatch(job["metadata"]["name"]):
        raise invalid("metadata.name: not a lowercase RFC 1123 label")


def _matches(rule: Json, pod: Json) -> bool:
    if "onPodConditions" in rule:
        return any(
            condition["type"] == pattern["type"] and condition["status"] == pattern.get("status", "True")
            for pattern in rule["onPodConditions"]
            for condition in pod["status"]["conditions"]
        )
    wanted = rule["onExitCodes"]
    return any(
        status["state"].get("terminated", {}).get("exitCode") in wanted["values"]
        for status in pod["status"]["containerStatuses"]
        if status["name"] == wanted.get("containerName", status["name"])
    )


def _true(kind: str, reason: str, message: str) -> Json:
    return {"type": kind, "status": "True", "reason": reason, "message": message}


def _waiting(name: str) -> Json:
    return {"name": name, "state": {"waiting": {"reason": "PodInitializing"}}, "restartCount": 0, "ready": False}


def _state(pod: Json, container: str, state: Json) -> None:
    for kind in ("initContainerStatuses", "containerStatuses"):
        for status in pod["status"][kind]:
            if status["name"] == container:
                status["state"] = state
