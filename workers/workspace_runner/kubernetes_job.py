"""The Kubernetes Job of a job: one Pod, one attempt, with a cloning container and an agent container; its state.

The state says how a Job ended, or why it cannot begin.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from swe_ai_fleet.domain.job import job_id
from swe_ai_fleet.extensions.kubernetes_jobs.settings import RunnerSettings
from swe_ai_fleet.sandbox import images
from swe_ai_fleet.settings import without_login
from workers.jobs import (
    CLONE_FROM,
    CLONE_HOSTS,
    DEFAULT_WORKSPACE,
    FENCED,
    GIT_CREDENTIALS,
    IMAGE_PARTS,
    IMAGE_SOCKET,
    JOB_ID,
    LOGIN,
    TENANT,
    WORKSPACE,
    ContainerEnding,
    EndReason,
    JobSpec,
)

MANAGER = "fleet-workspace-runner"
MANAGED_BY = "app.kubernetes.io/managed-by"
SELECTOR = f"{MANAGED_BY}={MANAGER}"
PREFIX = "fleet.dev/"
CLONE, AGENT, IMAGE = "clone", "agent", "image"
GIT_MOUNT, FILES_MOUNT, HOME = "/var/run/fleet/git", "/etc/fleet", "/home/fleet"
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_DISRUPTED = {"type": "DisruptionTarget", "status": "True"}

_SOCKET, _HELPER = f"{images.INSIDE}/socket", f"{images.INSIDE}/swe_ai_fleet/sandbox/container_helper.py"

Json = dict[str, object]


def job_manifest(spec: JobSpec, settings: RunnerSettings, *, nats_url: str, model_url: str) -> Json:
    """The manifest of a Job. The same specification always gives the same name.

    The task's image is a further container beside the agent's.

    Kubernetes never retries a Job: the orchestrator decides about another container from the log.
    """
    labels = {
        MANAGED_BY: MANAGER,
        "app.kubernetes.io/name": "fleet-agent",
        "app.kubernetes.io/component": spec.kind,
        f"{PREFIX}tenant": label(spec.ref.tenant),
        f"{PREFIX}execution": label(spec.execution_id),
        f"{PREFIX}agent": label(spec.agent_id),
        f"{PREFIX}job": spec.job_id,
        f"{PREFIX}run": spec.run_id,
        f"{PREFIX}generation": str(spec.generation),
    }
    annotations = {
        f"{PREFIX}tenant": spec.ref.tenant,
        f"{PREFIX}task": spec.task_id,
        f"{PREFIX}agent": spec.agent_id,
        # A Pod that the cluster autoscaler evicts would be a lost run.
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": spec.ref.name,
            "namespace": settings.namespace_of(spec.ref.tenant),
            "labels": labels,
            "annotations": annotations,
        },
        "spec": {
            "parallelism": 1,
            "completions": 1,
            "backoffLimit": 0,
            "activeDeadlineSeconds": max(1, round(spec.deadline_seconds)),
            "ttlSecondsAfterFinished": settings.keep_seconds,
            # A second Pod of the same generation would be fenced by its log anyway.
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {
                "rules": [
                    {"action": "FailJob", "onPodConditions": [_DISRUPTED]},
                    {
                        "action": "FailJob",
                        "onExitCodes": {"containerName": AGENT, "operator": "In", "values": [FENCED]},
                    },
                ]
            },
            "template": {
                "metadata": {"labels": labels, "annotations": annotations},
                "spec": _pod(spec, settings, nats_url=nats_url, model_url=model_url),
            },
        },
    }


def label(text: str) -> str:
    """A text as the value of a label: itself if it is valid, else its digest."""
    return text if _LABEL.fullmatch(text) else job_id(text)


def _pod(spec: JobSpec, settings: RunnerSettings, *, nats_url: str, model_url: str) -> Json:
    git_secret = settings.git_secret_of(spec.ref.tenant)
    common = {
        "TASK_ID": spec.task_id,
        "NATS_URL": without_login(nats_url),
        JOB_ID: spec.job_id,
        TENANT: spec.ref.tenant,
        WORKSPACE: DEFAULT_WORKSPACE,
        LOGIN: spec.login,
        "FLEET_HOME": f"{HOME}/state",
        "HOME": HOME,
        "TMPDIR": "/tmp",  # noqa: S108 - of the container
    }
    cloning = common | {CLONE_FROM: settings.protocols, CLONE_HOSTS: settings.hosts}
    if git_secret:
        cloning[GIT_CREDENTIALS] = GIT_MOUNT
    working = common | {"VLLM_URL": model_url, **settings.agent_env}
    mounts: list[Json] = [
        {"name": "workspace", "mountPath": DEFAULT_WORKSPACE},
        {"name": "home", "mountPath": HOME},
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - of the container
    ]
    volumes: list[Json] = [
        {"name": "workspace", "emptyDir": {"sizeLimit": settings.workspace_size}},
        {"name": "home", "emptyDir": {"sizeLimit": settings.scratch_size}},
        {"name": "tmp", "emptyDir": {"sizeLimit": settings.scratch_size}},
    ]
    parts: list[Json] = []
    if spec.image:
        parts = [{"name": "fleet", "mountPath": images.INSIDE}]
        volumes.append({"name": "fleet", "emptyDir": {"sizeLimit": "1Gi"}})
        cloning[IMAGE_PARTS], working[IMAGE_SOCKET] = images.INSIDE, _SOCKET
    if settings.files_secret:
        volumes.append({"name": "files", "secret": {"secretName": settings.files_secret, "defaultMode": 0o440}})
        mounts.append({"name": "files", "mountPath": FILES_MOUNT, "readOnly": True})
    git_mounts: list[Json] = []
    if git_secret and spec.clones:
        volumes.append({"name": "git", "secret": {"secretName": git_secret, "defaultMode": 0o440}})
        git_mounts.append({"name": "git", "mountPath": GIT_MOUNT, "readOnly": True})
    agent = _container(
        settings,
        name=AGENT,
        image=settings.image,
        module="workers.agent",
        variables=working,
        secrets=(*settings.agent_secrets, "" if spec.login else settings.nats_secret),
        mounts=[*mounts, *parts],
    )
    clone = _container(
        settings,
        name=CLONE,
        image=settings.clone_image or settings.image,
        module="workers.cloning",
        variables=cloning,
        secrets=("" if spec.login else settings.nats_secret,),
        mounts=[*mounts, *git_mounts, *parts],
    )
    pod: Json = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": settings.grace_seconds,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": settings.run_as,
            "runAsGroup": settings.run_as,
            "fsGroup": settings.run_as,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [agent],
        "volumes": volumes,
        "tolerations": [
            # Sooner than the default of five minutes.
            *(
                {
                    "key": f"node.kubernetes.io/{taint}",
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": settings.lost_node_seconds,
                }
                for taint in ("not-ready", "unreachable")
            ),
            *settings.tolerations,
        ],
    }
    if spec.clones:
        pod["initContainers"] = [clone]
    if settings.user_namespaces:
        pod["hostUsers"] = False
    pulling = list(settings.pull_secrets)
    if spec.image:
        pod |= {"initContainers": [clone, _image(spec, settings, mounts)], "shareProcessNamespace": True}
        pulling += filter(None, [settings.image_secret_of(spec.ref.tenant)])
    for name, value in (
        ("serviceAccountName", settings.service_account),
        ("runtimeClassName", settings.tenant_runtime_classes.get(spec.ref.tenant, settings.runtime_class)),
        ("priorityClassName", settings.priority_class),
        ("nodeSelector", dict(settings.node_selector)),
        ("imagePullSecrets", [{"name": name} for name in pulling]),
    ):
        if value:
            pod[name] = value
    return pod


def _image(spec: JobSpec, settings: RunnerSettings, mounts: list[Json]) -> Json:
    """The container of the task's image: it runs the fleet's helper, without variables, secrets or rights of the fleet.

    It starts before the agent's container and stops after it. The registry checks the tenant's access each time.
    """
    return {
        "name": IMAGE,
        "image": spec.image,
        "imagePullPolicy": "Always",
        "restartPolicy": "Always",
        "command": [*images.PYTHON, "-I", "-S", _HELPER, _SOCKET],
        # The image's own values of these would load its code into our helper.
        "env": [{"name": name, "value": ""} for name in ("LD_PRELOAD", "LD_AUDIT", "GLIBC_TUNABLES")],
        "resources": _resources(settings),
        "securityContext": _confined(settings),
        "volumeMounts": [*mounts, {"name": "fleet", "mountPath": images.INSIDE, "readOnly": True}],
    }


def _resources(settings: RunnerSettings) -> Json:
    return {
        "requests": {"cpu": settings.cpu, "memory": settings.memory},
        "limits": {"cpu": settings.cpu_limit, "memory": settings.memory_limit},
    }


def _container(
    settings: RunnerSettings,
    *,
    name: str,
    image: str,
    module: str,
    variables: Mapping[str, str],
    secrets: tuple[str, ...],
    mounts: list[Json],
) -> Json:
    sources: list[Json] = []
    sources.extend({"configMapRef": {"name": config}} for config in settings.agent_config)
    sources.extend({"secretRef": {"name": secret}} for secret in secrets if secret)
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": settings.pull_policy,
        # Run by the image's own entry point, which reaps orphaned processes.
        "args": ["python", "-m", module],
        "workingDir": HOME,
        "env": [{"name": key, "value": value} for key, value in variables.items() if value],
        "envFrom": sources,
        "resources": _resources(settings),
        "securityContext": _confined(settings),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }


def _confined(settings: RunnerSettings) -> Json:
    context: Json = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    if settings.user_namespaces:
        context["procMount"] = "Unmasked"
    for kind, name in (("seccompProfile", settings.seccomp_profile), ("appArmorProfile", settings.apparmor_profile)):
        if name:
            context[kind] = {"type": "Localhost", "localhostProfile": name}
    return context


Object = Mapping[str, Any]
"""A resource as JSON from the API server."""

_NO_IMAGE = ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "RegistryUnavailable")
_NO_CONTAINER = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
_NODE = ("DeletionByTaintManager", "DeletionByPodGC")
_RULE = re.compile(r"rule at index (\d+)")
"""Finds the rule of the Pod failure policy in the Job controller's message."""
_NODE_REASONS = ("NodeLost", "NodeShutdown", "Terminated")


def finished(job: Object) -> bool:
    """Whether a Job and its Pod have ended."""
    return bool(_conditions(job, "Complete", "Failed"))


def ending(job: Object, pods: Iterable[Object]) -> ContainerEnding | None:
    """How a Job ended; None while it is unknown. `pods` are its Pods, deleted ones in their last state."""
    if _conditions(job, "Complete"):
        return ContainerEnding(reason=EndReason.COMPLETED)
    if not (failed := _conditions(job, "Failed")):
        return None
    reason, message = str(failed[0].get("reason", "")), str(failed[0].get("message", ""))
    if reason == "DeadlineExceeded":
        return ContainerEnding(reason=EndReason.DEADLINE, message=message)
    last = max(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")), default=None)
    return pod_ending(last) if last is not None else None


def unexplained(job: Object) -> ContainerEnding | None:
    """The ending of a failed Job whose Pod gives no reason, or was deleted unseen; None for a running Job."""
    for condition in _conditions(job, "Failed"):
        message = str(condition.get("message", ""))
        rule = _RULE.search(message) if condition.get("reason") == "PodFailurePolicy" else None
        reasons = {"0": EndReason.EVICTED, "1": EndReason.FENCED}
        reason = reasons.get(rule[1] if rule else "", EndReason.DELETED)
        return ContainerEnding(reason=reason, message=message)
    return None


def pod_ending(pod: Object) -> ContainerEnding | None:
    """How a failed Pod ended; None where its status does not say."""
    status: Object = pod.get("status") or {}
    for condition in _conditions(pod, "DisruptionTarget"):
        why, message = str(condition.get("reason", "")), str(condition.get("message", ""))
        reason = EndReason.NODE_LOST if why in _NODE else EndReason.EVICTED
        return ContainerEnding(reason=reason, message=f"{why}: {message}".strip(": "))
    reason = str(status.get("reason", ""))
    if reason == "Evicted" or reason.startswith("Preempt"):
        return ContainerEnding(reason=EndReason.EVICTED, message=str(status.get("message", "")))
    if reason in _NODE_REASONS:
        return ContainerEnding(reason=EndReason.NODE_LOST, message=str(status.get("message", "")))
    for which, state in _states(pod):
        ended: Object = state.get("terminated") or {}
        code = ended.get("exitCode", 0)
        # The exit of the image's container does not end the job; it is restarted.
        if not code or which == IMAGE:
            continue
        if ended.get("reason") == "OOMKilled":
            return ContainerEnding(reason=EndReason.OUT_OF_MEMORY, message=f"container {which}")
        message_of_end = str(ended.get("message", ""))
        message = f"container {which}: exit code {code}"
        if which != AGENT:
            return ContainerEnding(reason=EndReason.CLONE, message=message, log=message_of_end)
        return ContainerEnding(
            reason=EndReason.FENCED if code == FENCED else EndReason.ERROR, message=message, log=message_of_end
        )
    return None


def trouble(pods: Iterable[Object]) -> ContainerEnding | None:
    """The ending of a Job if its Pod stays blocked, perhaps only for now; None if nothing blocks it."""
    existing = [pod for pod in pods if not pod.get("gone")]
    if not existing:
        return ContainerEnding(reason=EndReason.UNSCHEDULABLE, message="no Pod was created; is a quota full?")
    pod = max(existing, key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")))
    if pod["metadata"].get("deletionTimestamp"):
        return ContainerEnding(reason=EndReason.NODE_LOST, message="its Pod is being deleted and does not stop")
    for which, state in _states(pod):
        waiting: Object = state.get("waiting") or {}
        why = str(waiting.get("reason", ""))
        message = f"container {which}: {why}: {str(waiting.get('message', ''))[:300]}"
        if why in _NO_IMAGE:
            return ContainerEnding(reason=EndReason.IMAGE, message=message)
        if why in _NO_CONTAINER:
            return ContainerEnding(reason=EndReason.CONFIGURATION, message=message)
    for condition in _conditions(pod, "PodScheduled", status="False"):
        return ContainerEnding(reason=EndReason.UNSCHEDULABLE, message=str(condition.get("message", ""))[:300])
    return None


def _states(pod: Object) -> list[tuple[str, Object]]:
    """The states of a Pod's containers with their names, in the order of their starts."""
    status: Object = pod.get("status") or {}
    containers: list[Object] = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return [(str(container.get("name", "")), container.get("state") or {}) for container in containers]


def _conditions(thing: Object, *kinds: str, status: str = "True") -> list[Object]:
    state: Object = thing.get("status") or {}
    listed: list[Object] = state.get("conditions") or []
    return [condition for condition in listed if condition["type"] in kinds and condition.get("status") == status]
