"""Ordinary repositories in containers as Pods have them: under Landlock, and with bubblewrap in a user namespace."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swe_ai_fleet.sandbox.landlock import Landlock
from tests.confinement import SYSTEM_PYTHON
from tests.pod import POD

PROFILE = Path(__file__).parents[2] / "deploy" / "k8s" / "components" / "userns" / "agent.json"
# As runtimes have it by default: threads and processes, no namespaces.
WITHOUT_NAMESPACES = {
    "names": ["clone"], "action": "SCMP_ACT_ALLOW",
    "args": [{"index": 0, "value": 0x7E02_0000, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}],
}  # fmt: skip
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root starts containers"),
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed"),
    pytest.mark.skipif(Landlock.find() is None, reason="the kernel offers no Landlock"),
]


def in_pod(place: Path, *argv: str, user_namespace: bool, **variables: str) -> Any:
    """What a Python program says as JSON at the end, in a container of which `place` is the volume."""
    profile = json.loads(PROFILE.read_text())
    *common, opened = profile["syscalls"]
    assert {"unshare", "mount", "pivot_root"} <= {*opened["names"]}
    profile["syscalls"] = [*common, opened if user_namespace else WITHOUT_NAMESPACES]
    (place / "profile.json").write_text(json.dumps(profile))
    source, home = Path(__file__).parents[2], place / "home"
    home.mkdir()
    plan = {
        "seccomp": str(place / "profile.json"), "user_namespace": user_namespace,
        "masked": not user_namespace,
        "readable": sorted({str(source), sys.prefix, sys.base_prefix}), "writable": [str(home)],
        "variables": {"PATH": f"{sys.prefix}/bin:/usr/bin:/bin", "PYTHONPATH": f"{source}:{source}/src",
                      "HOME": str(home), "FLEET_HOME": str(home / "fleet"), **variables},
    }  # fmt: skip
    command = [sys.executable, "-B", str(POD), json.dumps(plan), sys.executable, "-B", *argv]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.stdout, run.stderr
    return json.loads(run.stdout)


def examined(place: Path, **options: Any) -> tuple[bool, dict[str, dict[str, str]]]:
    """What `fleet doctor --in-cluster` finds, by part."""
    document = in_pod(place, "-m", "swe_ai_fleet.cli.main", "doctor", "--in-cluster", "--json", **options)
    return document["ok"], {one["part"]: one for one in document["findings"]}


def open_to(finding: dict[str, str]) -> set[str]:
    return {one for one in finding["cause"].partition("leaves open: ")[2].partition("; closes: ")[0].split("; ") if one}


def test_a_node_check_says_what_a_pod_gives(tmp_path: Path) -> None:
    well, found = examined(tmp_path, user_namespace=True, FLEET_SANDBOX="none")
    assert not well and found["agents"]["mend"] == "set FLEET_SANDBOX=bubblewrap"
    assert found["bubblewrap"]["state"] == found["landlock"]["state"] == "ok"
    assert "user 10001 of its own namespace; no capabilities; new privileges refused;" in found["pod"]["cause"]
    # The container's own limit is the limit of memory.
    assert open_to(found["bubblewrap"]) <= {"using up the memory"}
    assert "changing modes and times of files outside" in open_to(found["landlock"])


@pytest.fixture
def crowd() -> Iterator[None]:
    """What another Pod of the node runs as the same user. The kernel counts it; nobody in a Pod sees it."""
    program = (
        "import threading; wait = threading.Event().wait\n"
        "[threading.Thread(target=wait, daemon=True).start() for _ in range(200)]; print(flush=True); input()"
    )
    outside, pipe = [SYSTEM_PYTHON, "-c", program], subprocess.PIPE
    with subprocess.Popen(outside, user=10001, stdin=pipe, stdout=pipe) as neighbour:
        assert neighbour.stdout is not None
        neighbour.stdout.readline()
        yield


@pytest.mark.slow  # quick: what a pod gives
@pytest.mark.usefixtures("crowd")
def test_a_node_check_says_what_is_in_the_way(tmp_path: Path) -> None:
    well, found = examined(tmp_path, FLEET_SANDBOX="bubblewrap", user_namespace=False)
    assert not well and found["agents"]["mend"] == "set FLEET_SANDBOX=landlock"
    assert "a seccomp profile refuses user namespaces" in found["bubblewrap"]["cause"]
    assert "procMount: Unmasked" in found["bubblewrap"]["mend"]
    assert found["landlock"]["state"] == "ok", found["landlock"]
    assert "fork bombs" not in open_to(found["landlock"])


@pytest.mark.slow  # quick: what is above, integration/test_environments.py, attacks/test_sockets.py
@pytest.mark.parametrize("level", ["landlock", "bubblewrap"])
def test_an_ordinary_repository_is_worked_on_in_a_pod(level: str, tmp_path: Path) -> None:
    ran = in_pod(tmp_path, "-m", "tests.pod_script", user_namespace=level == "bubblewrap", FLEET_SANDBOX=level)
    assert (ran["code"], ran["user"]) == (0, 10001), ran["out"] + ran["err"]
    document = json.loads(next(line for line in ran["out"].splitlines() if line.startswith("{")))
    assert document["verdict"] == "verified", document["verdict_reasons"]
    assert "2 tests fail without the change and pass with it" in document["verdict_reasons"][0]
    assert any(path.endswith("thing-1.0-py3-none-any.whl") for path in ran["asked"])
    # What the agent ran, and what was checked.
    assert {"patch applies", "tests"} <= {one["name"] for one in document["candidates"][0]["checks"] if one["passed"]}


@pytest.mark.slow  # quick: integration/test_environments.py
def test_a_patch_applies_where_root_gives_clones_to_another_user(tmp_path: Path) -> None:
    """Landlock as root hands a clone's files over and back, which git's index takes for changes."""
    variables = os.environ | {"FLEET_SANDBOX": "landlock", "HOME": str(tmp_path)}
    command = [sys.executable, "-B", "-m", "tests.pod_script"]
    run = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300, check=False)
    assert run.stdout, run.stderr
    ran = json.loads(run.stdout)
    document = json.loads(next(line for line in ran["out"].splitlines() if line.startswith("{")))
    assert (ran["user"], document["verdict"]) == (0, "verified"), document["verdict_reasons"]
