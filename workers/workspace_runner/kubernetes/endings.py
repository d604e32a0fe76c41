"""What the state of a Job and its Pod means: how it ended, or what keeps it from ever beginning."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from workers.place import FENCED
from workers.workspace_runner.backend import Ending, EndReason
from workers.workspace_runner.kubernetes.manifest import AGENT

Object = Mapping[str, Any]
"""What the API server tells of one thing, as JSON."""

_NO_IMAGE = ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "RegistryUnavailable")
_NO_CONTAINER = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
_NODE = ("DeletionByTaintManager", "DeletionByPodGC")
_RULE = re.compile(r"rule at index (\d+)")
"""Where the Job controller says which rule of the Pod failure policy it followed."""
_NODE_REASONS = ("NodeLost", "NodeShutdown", "Terminated")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """What a Pod cannot go on for, perhaps only for now."""

    reason: EndReason
    message: str = ""


def finished(job: Object) -> bool:
    """Whether a Job has ended for good, its Pod included."""
    return any(_true(condition) for condition in _conditions(job) if condition["type"] in ("Complete", "Failed"))


def ending(job: Object, pods: Iterable[Object]) -> Ending | None:
    """How a Job ended; None while that is not known. `pods` are those it had, the gone ones as they were last seen."""
    for condition in _conditions(job):
        if condition["type"] == "Complete" and _true(condition):
            return Ending(reason=EndReason.COMPLETED)
    failed = [one for one in _conditions(job) if one["type"] == "Failed" and _true(one)]
    if not failed:
        return None
    reason, message = str(failed[0].get("reason", "")), str(failed[0].get("message", ""))
    if reason == "DeadlineExceeded":
        return Ending(reason=EndReason.DEADLINE, message=message)
    last = max(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")), default=None)
    return pod_ending(last) if last is not None else None


def unexplained(job: Object) -> Trouble | None:
    """What is known of a failure whose Pod says nothing, or was gone before anybody saw it; None where it goes on."""
    for condition in _conditions(job):
        if condition["type"] == "Failed" and _true(condition):
            message = str(condition.get("message", ""))
            rule = _RULE.search(message) if condition.get("reason") == "PodFailurePolicy" else None
            reasons = {"0": EndReason.EVICTED, "1": EndReason.FENCED}
            return Trouble(
                reason=reasons.get(rule[1], EndReason.DELETED) if rule else EndReason.DELETED, message=message
            )
    return None


def pod_ending(pod: Object) -> Ending | None:
    """How a Pod ended that did not succeed; None where it does not say."""
    status = cast("Object", pod.get("status") or {})
    for condition in _conditions(pod):
        if condition["type"] == "DisruptionTarget" and _true(condition):
            why, message = str(condition.get("reason", "")), str(condition.get("message", ""))
            reason = EndReason.NODE_LOST if why in _NODE else EndReason.EVICTED
            return Ending(reason=reason, message=f"{why}: {message}".strip(": "))
    told = str(status.get("reason", ""))
    if told == "Evicted" or told.startswith("Preempt"):
        return Ending(reason=EndReason.EVICTED, message=str(status.get("message", "")))
    if told in _NODE_REASONS:
        return Ending(reason=EndReason.NODE_LOST, message=str(status.get("message", "")))
    for which, state in _states(pod):
        ended = cast("Object", state.get("terminated") or {})
        code = ended.get("exitCode", 0)
        if not code:
            continue
        if ended.get("reason") == "OOMKilled":
            return Ending(reason=EndReason.OUT_OF_MEMORY, message=f"container {which}")
        said = str(ended.get("message", ""))
        message = f"container {which}: exit code {code}"
        if which != AGENT:
            return Ending(reason=EndReason.CLONE, message=message, log=said)
        return Ending(reason=EndReason.FENCED if code == FENCED else EndReason.ERROR, message=message, log=said)
    return None


def trouble(pods: Iterable[Object]) -> Trouble | None:
    """What keeps the Pod of a Job that has not ended from going on; None where nothing does."""
    there = [pod for pod in pods if not pod.get("gone")]
    if not there:
        return Trouble(reason=EndReason.UNSCHEDULABLE, message="no Pod was made; is a quota full?")
    pod = max(there, key=lambda one: str(one["metadata"].get("creationTimestamp", "")))
    if pod["metadata"].get("deletionTimestamp"):
        return Trouble(reason=EndReason.NODE_LOST, message="its Pod is being removed and does not go")
    for which, state in _states(pod):
        waiting = cast("Object", state.get("waiting") or {})
        why = str(waiting.get("reason", ""))
        message = f"container {which}: {why}: {str(waiting.get('message', ''))[:300]}"
        if why in _NO_IMAGE:
            return Trouble(reason=EndReason.IMAGE, message=message)
        if why in _NO_CONTAINER:
            return Trouble(reason=EndReason.CONFIGURATION, message=message)
    for condition in _conditions(pod):
        if condition["type"] == "PodScheduled" and condition.get("status") == "False":
            return Trouble(reason=EndReason.UNSCHEDULABLE, message=str(condition.get("message", ""))[:300])
    return None


def _states(pod: Object) -> list[tuple[str, Object]]:
    """The states of a Pod's containers, by their names, those that begin first at the front."""
    status = cast("Object", pod.get("status") or {})
    return [
        (str(container.get("name", "")), cast("Object", container.get("state") or {}))
        for kind in ("initContainerStatuses", "containerStatuses")
        for container in cast("list[Object]", status.get(kind) or [])
    ]


def _conditions(thing: Object) -> list[Object]:
    return list(cast("Object", thing.get("status") or {}).get("conditions") or [])


def _true(condition: Object) -> bool:
    return condition.get("status") == "True"
