"""The parts of the sandbox that need no sandbox: captures, addresses, patterns, rendering, control groups' texts."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.runtime.sandboxes import sandbox_policy
from swe_ai_fleet.sandbox import NetworkGrant, Rung, Sandbox, SandboxPolicy, jail
from swe_ai_fleet.sandbox.addresses import is_public
from swe_ai_fleet.sandbox.capture import Capture
from swe_ai_fleet.sandbox.control_groups import ControlGroups
from swe_ai_fleet.settings import Settings


@given(st.lists(st.binary(max_size=40), max_size=30), st.integers(min_value=0, max_value=50))
def test_capture_keeps_head_and_tail_and_counts_all(chunks: list[bytes], limit: int) -> None:
    capture = Capture(limit)
    for chunk in chunks:
        capture.feed(chunk)
    whole, output = b"".join(chunks), capture.output()
    assert output.total == len(whole)
    assert output.head == whole[:limit]
    assert output.tail == (whole[limit:][-limit:] if limit else b"")
    assert output.elided == max(0, len(whole) - 2 * limit)


PUBLIC = ("8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808")
NOT_PUBLIC = (
    "127.0.0.1", "127.8.9.1", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
    "100.100.100.200", "168.63.129.16", "192.0.0.1", "198.18.0.1", "203.0.113.9", "224.0.0.1", "240.0.0.1",
    "255.255.255.255", "::", "::1", "fe80::1", "fe80::1%eth0", "fec0::1", "fc00::1", "fd00:ec2::254", "ff02::1",
    "2001:db8::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "2002:7f00:1::", "2002:a00:1::1",
    "64:ff9b::7f00:1", "64:ff9b:1::a00:1", "2001:0:7f00:1::", "2001:0:808:808:0:0:80ff:fffe",
)  # fmt: skip


def test_public_addresses() -> None:
    assert [address for address in (*PUBLIC, *NOT_PUBLIC) if is_public(address)] == list(PUBLIC)


PATTERNS = (
    ("*", "example.org", 443, True), ("*", "example.org", 80, True), ("*", "example.org", 22, False),
    ("*:22", "example.org", 22, True), ("*:22", "example.org", 443, False),
    ("example.org", "example.org", 443, True), ("Example.ORG.", "example.org", 443, True),
    ("example.org", "notexample.org", 443, False), ("example.org", "a.example.org", 443, False),
    ("*.example.org", "a.b.example.org", 443, True), ("*.example.org", "example.org", 443, False),
    ("*.example.org", "evilexample.org", 443, False), ("example.org:8443", "example.org", 8443, True),
    ("example.org:8443", "example.org", 443, False), ("[2606:4700::1]:8443", "2606:4700::1", 8443, True),
    ("[2606:4700::1]", "2606:4700::1", 443, True), ("2606:4700::1", "2606:4700::1", 443, True),
)  # fmt: skip


def test_host_patterns() -> None:
    for pattern, host, port, covered in PATTERNS:
        assert NetworkGrant(hosts=(pattern,)).covers(host, port) is covered, (pattern, host, port)
    for none in (
        "",
        "exa mple.org",
        "example.org:0",
        "example.org:65536",
        "*.*.org",
        "a*.org",
        "http://a",
        "a/b",
        "[::1",
    ):
        with pytest.raises(InvalidRequest, match="not a host"):
            NetworkGrant(hosts=(none,))


def test_private_hosts_know_no_wildcards() -> None:
    assert not NetworkGrant(private_hosts=("*",)).covers("localhost", 80)
    assert not NetworkGrant(private_hosts=("*.internal",)).covers("a.internal", 80)
    assert NetworkGrant(private_hosts=("mirror.internal",)).private("mirror.internal", 80)
    assert not NetworkGrant(hosts=("mirror.internal",)).private("mirror.internal", 80)


def test_what_a_task_asks_for_lies_within_what_the_operator_grants() -> None:
    granted = NetworkGrant(hosts=("*.example.org", "api.test:8443"), private_hosts=("mirror.internal:8080",))
    for host in ("a.example.org", "*.example.org", "*.a.example.org", "api.test:8443"):
        assert granted.narrowed((host,), field="hosts") == NetworkGrant(hosts=(host,))
    narrowed = granted.narrowed(("Mirror.internal:8080",), field="hosts")
    assert narrowed.private("mirror.internal", 8080) and not narrowed.covers("a.example.org", 443)
    for host in ("*", "example.org", "*.org", "api.test", "a.example.org:22", "mirror.internal"):
        with pytest.raises(InvalidRequest, match="not granted") as refused:
            granted.narrowed(("a.example.org", host), field="constraints.network.allowed_hosts")
        assert refused.value.field == "constraints.network.allowed_hosts[1]"


async def test_commands_that_no_process_can_be_given_are_refused(tmp_path: Path) -> None:
    wrong = {
        "argv": [{"argv": ()}, {"argv": ("",)}, {"argv": ("-c", "x")}, {"argv": ("echo", "a\0b")}],
        "cwd": [{"cwd": "../other"}, {"cwd": "/etc"}, {"cwd": "a\0"}],
        "variables": [{"variables": {"A B": "1"}}, {"variables": {"A;id": "1"}}, {"variables": {"A": "\0"}}],
    }
    async with Sandbox(SandboxPolicy(rung=Rung.NONE)).workspace(tmp_path) as workspace:
        for field, commands in wrong.items():
            for given in commands:
                with pytest.raises(InvalidRequest) as refused:
                    await workspace.run(Command(**{"argv": ("true",), **given}))
                assert refused.value.field == field, given


def test_variables_come_from_a_list_and_the_environments_path_is_first() -> None:
    environment = Environment(path=("/workspace/.venv/bin",), variables={"MODE": "test", "CI": "2"})
    host = {"AWS_SECRET_ACCESS_KEY": "x", "SSL_CERT_FILE": "/etc/ssl/certs/ca.crt", "PIP_CERT": "/somebody/cert.pem"}
    found = jail.variables(environment, host)
    assert found["PATH"].startswith("/workspace/.venv/bin:")
    assert (found["MODE"], found["CI"], found["HOME"]) == ("test", "2", "/home/agent")
    assert found["SSL_CERT_FILE"] == "/etc/ssl/certs/ca.crt"
    assert not found.keys() & {"AWS_SECRET_ACCESS_KEY", "PIP_CERT", "http_proxy"}
    assert jail.variables(environment, host, proxy="http://127.0.0.1:1")["https_proxy"] == "http://127.0.0.1:1"


def groups_at(point: Path, controllers: str, own: str = "/", *, version: int = 1) -> ControlGroups:
    """What is found where control groups are mounted at `point`."""
    if version == 2:
        return ControlGroups(f"41 31 0:38 / {point} rw,relatime - cgroup2 cgroup2 rw", f"0::{own}\n")
    mount = f"39 31 0:36 / {point} rw,relatime - cgroup cgroup rw,{controllers}"
    return ControlGroups(mount, f"8:{controllers}:{own}\n")


def test_control_groups_are_made_below_our_own(tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    groups = groups_at(tmp_path, "pids", "/ours")
    assert (groups.processes, groups.memory) == (True, False)
    group = groups.create(SandboxPolicy(max_processes=7))
    assert group is not None
    (entrance,) = group.entrances
    assert entrance.parent.parent == tmp_path / "ours"
    assert (entrance.parent / "pids.max").read_text() == "7"
    groups = groups_at(tmp_path, "cpu,cpuacct")
    assert (groups.processes, groups.cpu) == (False, True)
    made = [groups.create(SandboxPolicy(max_cpus=0.5), tenant) for tenant in ("a", "a", "b", "")]
    places = [group.directories[0] for group in made if group is not None]
    assert [place.parent.name for place in places] == ["fleet-of-a", "fleet-of-a", "fleet-of-b", tmp_path.name]
    assert (places[-1] / "cpu.cfs_quota_us").read_text() == "50000"
    # A tenant with several commands at once weighs half.
    shares = tmp_path / "fleet-of-a" / "cpu.shares"
    shares.write_text("1024")
    groups.weigh("a", crowd=True)
    groups.weigh("nobody", crowd=True)
    assert shares.read_text().startswith("512")
    groups.weigh("a", crowd=False)
    assert shares.read_text() == "1024"
    # Those of version 2 need the controllers.
    groups = groups_at(tmp_path, "", version=2)
    assert (groups.processes, groups.memory) == (False, False)


def test_leftovers_of_dead_processes_are_removed_and_only_those(tmp_path: Path) -> None:
    dead, alive, other = tmp_path / "fleet-99999999-0", tmp_path / "fleet-1-0", tmp_path / "somebody"
    empty, used = tmp_path / "fleet-of-a", tmp_path / "fleet-of-b"
    for directory in (dead, alive, other, empty / "fleet-99999999-0", used / "fleet-1-0"):
        directory.mkdir(parents=True)
    groups_at(tmp_path, "cpu,cpuacct").reap()
    assert [path.exists() for path in (dead, alive, other, empty, used / "fleet-1-0")] == [
        False,
        True,
        True,
        False,
        True,
    ]


def test_what_a_dead_process_left_in_its_group_is_ended(tmp_path: Path) -> None:
    dead, alive = tmp_path / "fleet-99999999-0", tmp_path / f"fleet-{os.getpid()}-0"
    processes = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
    try:
        for directory, process in zip((dead, alive), processes, strict=True):
            directory.mkdir()
            (directory / "cgroup.procs").write_text(f"0\n{process.pid}\n")
        groups_at(tmp_path, "pids").reap()
        assert processes[0].wait(timeout=5) == -signal.SIGKILL
        assert processes[1].poll() is None
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_commands_take_no_port_of_the_fleets_own() -> None:
    settings = Settings(
        nats_url="nats://user:word@127.0.0.1:4222,nats://elsewhere:4333",
        ray_address="auto",
        model_url="http://localhost:8011/v1,http://[::1]:8012/v1,https://models.example.org:8443/v1",
        listen="0.0.0.0:50051",
        context_listen="127.0.0.1:0",
        http_listen="[::]:8080",
        metrics_listen="",
        probe_listen="0.0.0.0:50059",
    )
    assert sandbox_policy(settings).reserved_ports == {4222, 8011, 8012, 50051, 8080, 50059}
