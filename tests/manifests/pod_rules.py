"""Rules for what Pods are and may do; the others are in `rules.py`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from decimal import Decimal

from tests.manifests.objects import Object, PodView, found, name_of, of_kind, pods

_UNITS = {"": 1, "m": Decimal("0.001"), "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
_VERSIONED = re.compile(r"[^@:]+(:\d+)?/[^@:]+(:v?\d[\w.-]*|@sha256:[0-9a-f]{64})")
TOKEN_HOLDERS = {"fleet-runner"}
"""Accounts whose Pods may talk to Kubernetes, beside the Ray head's, which is its operator's."""
ALLOWED_VERBS = {
    ("batch", "jobs"): {"create", "get", "list", "watch", "delete"},
    ("", "pods"): {"list", "watch"},
    ("", "pods/log"): {"get"},
}


NODES, PROFILES, PROFILE = "fleet-nodes", "/var/lib/kubelet/seccomp/fleet", "fleet/agent.json"
"""The namespace of what puts profiles onto nodes, where it does, and the profile as Pods name it."""


def quantity(text: str | int | float) -> Decimal:
    """A Kubernetes quantity as a number. Raises KeyError for a unit that is none."""
    number, unit = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", str(text)).groups()
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


def contexts(pod: PodView) -> list[tuple[str, Object]]:
    """The security contexts of its containers, by their names."""
    told = [(one["name"], one.get("securityContext", {})) for one in pod.containers]
    if pod.role == "head":
        told.append(("autoscaler", pod.owner["spec"]["autoscalerOptions"].get("securityContext", {})))
    return told


def beyond(pod: PodView, standard: str) -> Iterator[str]:
    """What of it a Pod security standard of Kubernetes, `baseline` or `restricted`, does not allow (1.35 or later)."""
    whole, own = pod.spec.get("securityContext", {}), pod.spec.get("hostUsers") is False
    if any(pod.spec.get(host) for host in ("hostNetwork", "hostPID", "hostIPC")):
        yield "shares a namespace of its host"
    if any("hostPath" in volume for volume in pod.spec.get("volumes", ())):
        yield "mounts a path of its host"
    for name, context in contexts(pod):
        inherited = whole | context
        profiles = [inherited.get(kind, {}).get("type", "") for kind in ("seccompProfile", "appArmorProfile")]
        if context.get("privileged") or "Unconfined" in profiles or "add" in context.get("capabilities", {}):
            yield f"{name} is confined too little"
        if context.get("procMount", "Default") != "Default" and (not own or standard == "restricted"):
            yield f"{name} sees the whole of /proc"
        if standard == "restricted":
            if inherited.get("runAsNonRoot") is not True or inherited.get("runAsUser") == 0:
                yield f"{name} may run as root"
            if profiles[0] not in ("RuntimeDefault", "Localhost"):
                yield f"{name} has no seccomp profile"
            if context.get("allowPrivilegeEscalation") is not False:
                yield f"{name} may gain privileges"
            if context.get("capabilities") != {"drop": ["ALL"]}:
                yield f"{name} keeps capabilities"


def containers_are_confined(objects: Sequence[Object]) -> Iterator[str]:
    """As `restricted` says and more; /proc may be whole in a user namespace, and NODES may write to the host."""
    for pod in pods(objects):
        own, nodes = pod.spec.get("hostUsers") is False, pod.namespace == NODES
        faults = {*beyond(pod, "restricted")}
        if own:
            faults -= {f"{name} sees the whole of /proc" for name, _ in contexts(pod)}
        elif nodes:
            faults -= {"mounts a path of its host", *(f"{name} may run as root" for name, _ in contexts(pod))}
        for fault in sorted(faults):
            yield f"{pod}: {fault}"
        if not nodes and not pod.spec.get("securityContext", {}).get("runAsUser"):
            yield f"{pod}: may run as root"
        for volume in pod.spec.get("volumes", ()):
            if "hostPath" in volume and volume["hostPath"].get("path") != PROFILES:
                yield f"{pod}: mounts another path of its host than {PROFILES}"
            if "emptyDir" in volume and "sizeLimit" not in volume["emptyDir"]:
                yield f"{pod}: volume {volume['name']} has no limit"
        for name, context in contexts(pod):
            if context.get("readOnlyRootFilesystem") is not True:
                yield f"{pod}: {name} may write its root"
            if context.get("seccompProfile", {"type": "RuntimeDefault"}) != {"type": "RuntimeDefault"} and (
                not own or context["seccompProfile"] != {"type": "Localhost", "localhostProfile": PROFILE}
            ):
                yield f"{pod}: {name} has a seccomp profile of its own"


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
    """Each to the strictest standard that all of its Pods keep to."""
    ours = {one["metadata"]["name"]: one["metadata"].get("labels", {}) for one in of_kind(objects, "Namespace")}
    runner = found(objects, "ConfigMap", "fleet-runner")["data"]
    for name, labels in ours.items():
        here = [pod for pod in pods(objects) if pod.namespace == name]
        loose = {
            "baseline": any([*beyond(pod, "restricted")] for pod in here)
            or (name.startswith("fleet-agents") and runner.get("FLEET_RUNNER_USER_NAMESPACES") == "true"),
            "privileged": any([*beyond(pod, "baseline")] for pod in here) and name == NODES,
        }
        standard = next((one for one in ("privileged", "baseline") if loose[one]), "restricted")
        if labels.get("pod-security.kubernetes.io/enforce") != standard:
            yield f"namespace {name} is not held to {standard}"
    unscoped = {"Namespace", "PriorityClass"}
    for one in objects:
        if one["kind"] not in unscoped and one["metadata"].get("namespace") not in ours:
            yield f"{name_of(one)}: in no namespace of ours"


def priorities_are_there(objects: Sequence[Object]) -> Iterator[str]:
    classes = {one["metadata"]["name"] for one in of_kind(objects, "PriorityClass")}
    for pod in pods(objects):
        if pod.spec.get("priorityClassName") not in classes:
            yield f"{pod}: no priority class of ours"
