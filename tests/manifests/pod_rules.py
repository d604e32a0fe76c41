"""Rules for what Pods are and may do; the others are in `rules.py`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from decimal import Decimal

from tests.manifests.objects import Object, name_of, of_kind, pods

_UNITS = {"": 1, "m": Decimal("0.001"), "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
_VERSIONED = re.compile(r"[^@:]+(:\d+)?/[^@:]+(:v?\d[\w.-]*|@sha256:[0-9a-f]{64})")
TOKEN_HOLDERS = {"fleet-runner"}
"""Accounts whose Pods may talk to Kubernetes, beside the Ray head's, which is its operator's."""
ALLOWED_VERBS = {
    ("batch", "jobs"): {"create", "get", "list", "watch", "delete"},
    ("", "pods"): {"list", "watch"},
    ("", "pods/log"): {"get"},
}


def quantity(text: str | int | float) -> Decimal:
    """A Kubernetes quantity as a number. Raises KeyError for a unit that is none."""
    number, unit = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", str(text)).groups()  # pyright: ignore[reportOptionalMemberAccess]
    return Decimal(number) * _UNITS[unit]


def images_have_versions(objects: Sequence[Object]) -> Iterator[str]:
    told = [(str(pod), container["image"]) for pod in pods(objects) for container in pod.containers]
    told += [
        (name_of(one), value)
        for one in of_kind(objects, "ConfigMap")
        for key, value in one["data"].items()
        if key.endswith("_IMAGE")
    ]
    for where, image in told:
        if image.endswith(":latest") or not _VERSIONED.fullmatch(image):
            yield f"{where}: image {image} names no registry and version"


def containers_are_confined(objects: Sequence[Object]) -> Iterator[str]:
    for pod in pods(objects):
        whole = pod.spec.get("securityContext", {})
        if whole.get("runAsNonRoot") is not True or not whole.get("runAsUser"):
            yield f"{pod}: may run as root"
        if whole.get("seccompProfile", {}).get("type") != "RuntimeDefault":
            yield f"{pod}: no seccomp profile"
        if any(pod.spec.get(host) for host in ("hostNetwork", "hostPID", "hostIPC")):
            yield f"{pod}: shares a namespace of its host"
        for volume in pod.spec.get("volumes", ()):
            if "hostPath" in volume:
                yield f"{pod}: mounts a path of its host"
            if "emptyDir" in volume and "sizeLimit" not in volume["emptyDir"]:
                yield f"{pod}: volume {volume['name']} has no limit"
        contexts = [(one["name"], one.get("securityContext", {})) for one in pod.containers]
        if pod.role == "head":
            contexts.append(("autoscaler", pod.owner["spec"]["autoscalerOptions"].get("securityContext", {})))
        for name, context in contexts:
            if context.get("allowPrivilegeEscalation") is not False or context.get("privileged"):
                yield f"{pod}: {name} may gain privileges"
            if context.get("readOnlyRootFilesystem") is not True:
                yield f"{pod}: {name} may write its root"
            if context.get("capabilities") != {"drop": ["ALL"]}:
                yield f"{pod}: {name} keeps capabilities"
            if context.get("runAsUser") == 0 or context.get("runAsNonRoot") is False:
                yield f"{pod}: {name} runs as root"


def resources_are_bounded(objects: Sequence[Object]) -> Iterator[str]:
    for pod in pods(objects):
        told = [(one["name"], one.get("resources", {})) for one in pod.containers]
        if pod.role == "head":
            told.append(("autoscaler", pod.owner["spec"]["autoscalerOptions"].get("resources", {})))
        for name, resources in told:
            requests, limits = resources.get("requests", {}), resources.get("limits", {})
            for kind in ("cpu", "memory"):
                if kind not in requests or kind not in limits:
                    yield f"{pod}: {name} has no {kind} request or limit"
            for kind, asked in requests.items():
                if kind in limits and quantity(asked) > quantity(limits[kind]):
                    yield f"{pod}: {name} asks for more {kind} than its limit"


def accounts_are_its_own(objects: Sequence[Object]) -> Iterator[str]:
    accounts = {(one["metadata"]["namespace"], one["metadata"]["name"]) for one in of_kind(objects, "ServiceAccount")}
    used = {(pod.namespace, pod.spec.get("serviceAccountName", "")) for pod in pods(objects)}
    for pod in pods(objects):
        account = pod.spec.get("serviceAccountName", "")
        if pod.role == "head":
            if account:
                yield f"{pod}: its operator gives it an account"
            continue
        if (pod.namespace, account) not in accounts:
            yield f"{pod}: its account {account or 'default'} is not ours"
        if pod.spec.get("automountServiceAccountToken") is not (account in TOKEN_HOLDERS):
            yield f"{pod}: its account's token is mounted, or missing"
    named = {
        (one["metadata"]["namespace"], one["data"]["FLEET_RUNNER_SERVICE_ACCOUNT"])
        for one in of_kind(objects, "ConfigMap")
        if "FLEET_RUNNER_SERVICE_ACCOUNT" in one["data"]
    }
    spaces = [
        one["metadata"]["name"] for one in of_kind(objects, "Namespace") if "fleet/agents" in one["metadata"]["labels"]
    ]
    jobs = {(space, name) for _, name in named for space in spaces}
    for one in sorted(accounts - used - jobs):
        yield f"account {one} belongs to nobody"
    for one in sorted(jobs - accounts):
        yield f"Jobs have the account {one}, which nobody made"


def rights_are_few(objects: Sequence[Object]) -> Iterator[str]:
    for one in of_kind(objects, "ClusterRole", "ClusterRoleBinding"):
        yield f"{name_of(one)}: rights in the whole cluster"
    for role in of_kind(objects, "Role"):
        for rule in role["rules"]:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    extra = set(rule["verbs"]) - ALLOWED_VERBS.get((group, resource), set())
                    if extra:
                        yield f"{name_of(role)}: may {sorted(extra)} {group}/{resource}"
    roles = {(one["metadata"]["namespace"], one["metadata"]["name"]) for one in of_kind(objects, "Role")}
    for binding in of_kind(objects, "RoleBinding"):
        if (binding["metadata"]["namespace"], binding["roleRef"]["name"]) not in roles:
            yield f"{name_of(binding)}: binds no role of ours"
        for subject in binding["subjects"]:
            if subject["kind"] != "ServiceAccount" or subject["name"] not in TOKEN_HOLDERS:
                yield f"{name_of(binding)}: gives rights to {subject['name']}"


def namespaces_are_restricted(objects: Sequence[Object]) -> Iterator[str]:
    ours = {one["metadata"]["name"]: one["metadata"].get("labels", {}) for one in of_kind(objects, "Namespace")}
    for name, labels in ours.items():
        if labels.get("pod-security.kubernetes.io/enforce") != "restricted":
            yield f"namespace {name} takes any Pod"
    unscoped = {"Namespace", "PriorityClass"}
    for one in objects:
        if one["kind"] not in unscoped and one["metadata"].get("namespace") not in ours:
            yield f"{name_of(one)}: in no namespace of ours"


def priorities_are_there(objects: Sequence[Object]) -> Iterator[str]:
    classes = {one["metadata"]["name"] for one in of_kind(objects, "PriorityClass")}
    for pod in pods(objects):
        if pod.spec.get("priorityClassName") not in classes:
            yield f"{pod}: no priority class of ours"
