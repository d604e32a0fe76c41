"""The tests that run inside a cluster: `make test-cluster KUBECONFIG=…` (docs/kubernetes.md).

Makes an installation of its own in a temporary directory, applies its secrets and `deploy/k8s/tests`, waits for the
Jobs, prints their logs, and deletes the namespaces it made. It refuses a cluster that has a fleet already.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
MANIFESTS = ROOT / "deploy" / "k8s"
NAMESPACES = ("fleet", "fleet-agents", "fleet-tests")
JOBS = ("fleet-tool-tests", "fleet-whole-way")
NEEDED = {"rayclusters.ray.io": "the KubeRay operator, 1.5 or later"}
SKIPPED = 0


class Stopped(Exception):
    """Something in the cluster that keeps the tests from being run, or passed."""


class Cluster:
    """kubectl on one cluster.

    Args:
        kubectl: The program.
        kubeconfig: Says which cluster.
    """

    def __init__(self, kubectl: str, kubeconfig: str) -> None:
        self._start = (kubectl, f"--kubeconfig={kubeconfig}")

    def run(self, *arguments: str, given: str = "", check: bool = True, seconds: float = 120) -> str:
        """What kubectl prints. Raises Stopped with what it says where it fails."""
        try:
            told = subprocess.run(
                [*self._start, *arguments], input=given, capture_output=True, text=True, timeout=seconds, check=False
            )
        except subprocess.TimeoutExpired as late:
            if check:
                raise Stopped(f"kubectl {' '.join(arguments)}: not done after {seconds:g} seconds") from late
            return ""
        if check and told.returncode != 0:
            raise Stopped(f"kubectl {' '.join(arguments)}: {told.stderr.strip()}")
        return told.stdout


def prepare(cluster: Cluster) -> None:
    """Raises Stopped where the cluster lacks what the tests need, or has a fleet of its own."""
    cluster.run("version", "--request-timeout=10s")
    for resource, what in NEEDED.items():
        if not cluster.run("get", "crd", resource, "--ignore-not-found", "-o", "name"):
            raise Stopped(f"the cluster has no {resource}: install {what}")
    there = [name for name in NAMESPACES if cluster.run("get", "namespace", name, "--ignore-not-found", "-o", "name")]
    if there:
        raise Stopped(f"the cluster has {', '.join(there)} already; these tests delete what they find there")


def secrets(directory: Path) -> str:
    """The manifests of a new installation's secrets, and that of a client's. Blocks."""
    from swe_ai_fleet.runtime.installation.installing import install

    installed = install(directory, kubernetes=True)
    token = next(iter(installed.tokens.values()))
    authority = json.loads((directory / "kubernetes" / "fleet-tls.json").read_text())["data"]["ca.crt"]
    client = {"token": base64.b64encode(token.encode()).decode(), "ca.crt": authority}
    manifests = [json.loads(path.read_text()) for path in sorted((directory / "kubernetes").glob("*.json"))]
    manifests.append(_secret("fleet-tests", "fleet-client", client))
    manifests.append(_secret("fleet-agents", "fleet-git", {"username": "", "password": ""}))
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests})


def _secret(namespace: str, name: str, data: dict[str, str]) -> dict[str, object]:
    metadata = {"namespace": namespace, "name": name}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": data}


def settled(cluster: Cluster, job: str) -> str:
    """`Complete` or `Failed`; empty while it runs."""
    found = json.loads(cluster.run("get", "job", job, "-n", "fleet-tests", "-o", "json"))
    conditions = found.get("status", {}).get("conditions") or ()
    ended = [one["type"] for one in conditions if one["status"] == "True" and one["type"] in ("Complete", "Failed")]
    return ended[0] if ended else ""


def wait(cluster: Cluster, jobs: Sequence[str], seconds: float) -> dict[str, str]:
    """How each job ended; empty for one that did not in time."""
    until = time.monotonic() + seconds
    ends = dict.fromkeys(jobs, "")
    while time.monotonic() < until and not all(ends.values()):
        for job in jobs:
            ends[job] = ends[job] or settled(cluster, job)
        time.sleep(5)
    return ends


def logs(cluster: Cluster) -> None:
    """Print what the jobs said and, of everything else, how it stands."""
    for job in JOBS:
        print(f"---- {job}")
        print(cluster.run("logs", "-n", "fleet-tests", f"job/{job}", "--all-containers", "--tail=-1", check=False))
    print("---- Pods")
    print(cluster.run("get", "pods", "-A", "-l", "app.kubernetes.io/name", "-o", "wide", check=False))


def faults(cluster: Cluster) -> None:
    """Print what services said and what happened to their Pods, for a run that failed."""
    for name in ("fleet-orchestrator", "fleet-context", "fleet-nats", "fleet-ray-head", "fleet-ray-worker"):
        print(f"---- {name}")
        chosen = ("-n", "fleet", "-l", f"app.kubernetes.io/name={name}")
        print(cluster.run("logs", *chosen, "--all-containers", "--prefix", "--tail=200", check=False))
    for namespace in NAMESPACES:
        print(cluster.run("get", "events", "-n", namespace, "--sort-by=.lastTimestamp", check=False))


def carry_out(cluster: Cluster, seconds: float, *, keep: bool) -> bool:
    """Whether every job passed. Raises Stopped."""
    prepare(cluster)
    try:
        with tempfile.TemporaryDirectory() as directory:
            for name in NAMESPACES:
                cluster.run("create", "namespace", name)
            cluster.run("apply", "-f", "-", given=secrets(Path(directory) / "installation"))
        cluster.run("apply", "-k", str(MANIFESTS / "tests"))
        ends = wait(cluster, JOBS, seconds)
        logs(cluster)
        passed = all(end == "Complete" for end in ends.values())
        if not passed:
            faults(cluster)
        for job, end in ends.items():
            print(f"{job}: {end or f'not ended after {seconds:g} seconds'}")
        return passed
    finally:
        if not keep:
            cluster.run("delete", "-k", str(MANIFESTS / "tests"), "--ignore-not-found", check=False, seconds=600)
            cluster.run("delete", "namespace", *NAMESPACES, "--ignore-not-found", check=False, seconds=600)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kubeconfig", default=os.environ.get("KUBECONFIG", ""))
    parser.add_argument("--kubectl", default="")
    parser.add_argument("--seconds", type=float, default=1500)
    parser.add_argument("--keep", action="store_true", help="leave everything there to be looked at")
    chosen = parser.parse_args(arguments)
    if not chosen.kubeconfig:
        print("skipped: no KUBECONFIG names a cluster (make test-cluster KUBECONFIG=…)")
        return SKIPPED
    if not Path(chosen.kubeconfig).is_file():
        print(f"there is no {chosen.kubeconfig}", file=sys.stderr)
        return 2
    sys.path.insert(0, str(ROOT))
    kubectl = chosen.kubectl or shutil.which("kubectl")
    if not kubectl:
        from tests.manifests.kubectl import binary

        kubectl = str(binary("kubectl"))
    try:
        return 0 if carry_out(Cluster(kubectl, chosen.kubeconfig), chosen.seconds, keep=chosen.keep) else 1
    except Stopped as fault:
        print(fault, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
