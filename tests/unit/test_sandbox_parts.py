"""The parts of the sandbox that need no sandbox: addresses, patterns, the call filter, disk use."""

from __future__ import annotations

import errno
import struct
from pathlib import Path

import pytest

from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.runtime.tool_services import sandbox_policy
from swe_ai_fleet.sandbox import IsolationLevel, NetworkGrant, Sandbox, SandboxPolicy
from swe_ai_fleet.sandbox.landlock import Landlock
from swe_ai_fleet.sandbox.seccomp import machine_known, seccomp_filter
from swe_ai_fleet.settings import Settings

PATTERNS = (
    ("*", "example.org", 443, True), ("*", "example.org", 80, True), ("*", "example.org", 22, False),
    ("*:22", "example.org", 22, True), ("*:22", "example.org", 443, False), ("Example.ORG.", "example.org", 443, True),
    ("example.org", "notexample.org", 443, False), ("example.org", "a.example.org", 443, False),
    ("*.example.org", "a.b.example.org", 443, True), ("*.example.org", "example.org", 443, False),
    ("*.example.org", "evilexample.org", 443, False), ("example.org:8443", "example.org", 8443, True),
    ("example.org:8443", "example.org", 443, False), ("[2606:4700::1]:8443", "2606:4700::1", 8443, True),
    ("[2606:4700::1]", "2606:4700::1", 443, True), ("2606:4700::1", "2606:4700::1", 443, True),
)  # fmt: skip
NO_PATTERNS = ("", "exa mple.org", "example.org:0", "example.org:65536", "*.*.org", "a*.org", "http://a", "a/b", "[::1")


def test_host_patterns() -> None:
    for pattern, host, port, covered in PATTERNS:
        assert NetworkGrant(hosts=(pattern,)).covers(host, port) is covered, (pattern, host, port)
    for none in NO_PATTERNS:
        with pytest.raises(InvalidRequest, match="not a host"):
            NetworkGrant(hosts=(none,))
    # Private hosts know no wildcards.
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
        with pytest.raises(InvalidRequest, match="not allowed here") as refused:
            granted.narrowed(("a.example.org", host), field="constraints.network.allowed_hosts")
        assert refused.value.field == "constraints.network.allowed_hosts[1]"


async def test_commands_that_no_process_can_be_given_are_refused(tmp_path: Path) -> None:
    wrong = {
        "argv": [{"argv": ()}, {"argv": ("",)}, {"argv": ("-c", "x")}, {"argv": ("echo", "a\0b")}],
        "cwd": [{"cwd": "../other"}, {"cwd": "/etc"}, {"cwd": "a\0"}],
        "variables": [{"variables": {"A B": "1"}}, {"variables": {"A;id": "1"}}, {"variables": {"A": "\0"}}],
    }
    async with Sandbox(SandboxPolicy(level=IsolationLevel.NONE)).workspace(tmp_path) as workspace:
        for field, commands in wrong.items():
            for given in commands:
                with pytest.raises(InvalidRequest) as refused:
                    await workspace.run(Command(**{"argv": ("true",), **given}))
                assert refused.value.field == field, given


def test_commands_take_no_port_of_the_fleets_own() -> None:
    nats = "nats://user:word@127.0.0.1:4222,nats://elsewhere:4333"
    models = "http://localhost:8011/v1,http://[::1]:8012/v1,https://models.example.org:8443/v1"
    listen = {"listen": "0.0.0.0:50051", "context_listen": "127.0.0.1:0", "http_listen": "[::]:8080"}
    settings = Settings(nats_url=nats, ray_address="auto", model_url=models, **listen, probe_listen="0.0.0.0:50059")
    assert sandbox_policy(settings).reserved_ports == {4222, 8011, 8012, 50051, 8080, 50059}


# --- the system call filter as the kernel would run it, and disk measuring ---

X86, ARM = 0xC000_003E, 0xC000_00B7
ALLOW, KILL, ASK = 0x7FFF_0000, 0x8000_0000, 0x7FC0_0000
EPERM, EACCES, ENOSYS, EOPNOTSUPP = (0x5_0000 | n for n in (errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EOPNOTSUPP))
EAFNOSUPPORT, EPROTONOSUPPORT = 0x5_0000 | errno.EAFNOSUPPORT, 0x5_0000 | errno.EPROTONOSUPPORT
ENOPROTOOPT = 0x5_0000 | errno.ENOPROTOOPT


def judge(program: bytes, audit: int, number: int, *arguments: int) -> int:
    """What the kernel would answer to a call."""
    padded = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    data = struct.pack("<IIQ6Q", number, audit, 0, *(argument % 2**64 for argument in padded))
    instructions = list(struct.iter_unpack("=HBBI", program))
    at = accumulator = 0
    while True:
        code, jump_true, jump_false, k = instructions[at]
        at += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, k)
        elif code == 0x54:
            accumulator &= k
        elif code == 0x06:
            return k
        else:
            taken = {0x15: accumulator == k, 0x35: accumulator >= k, 0x45: bool(accumulator & k)}[code]
            at += jump_true if taken else jump_false


Case = tuple[int, tuple[int, ...], int]
CONFINED: tuple[Case, ...] = (
    # read, execve, ptrace, mount, bpf, io_uring_setup, clone3, setxattr, openat2, a call of x32, ptrace of x32
    (0, (), ALLOW), (59, (), ALLOW), (101, (), EPERM), (165, (), EPERM), (321, (), EPERM), (425, (), EPERM),
    (435, (), ENOSYS), (188, (), EOPNOTSUPP), (437, (), ENOSYS), (0x4000_0000, (), KILL), (0x4000_0000 + 101, (), KILL),
    # fsopen, setns, kexec_load, init_module, swapon, reboot, settimeofday, iopl, open_by_handle_at
    *((number, (), EPERM) for number in (430, 308, 246, 175, 167, 169, 164, 172, 304)),
    # socket
    (41, (1, 1, 0), EACCES), (41, (2, 1, 0), EACCES), (41, (16, 3, 0), EACCES),
    # socketpair
    (53, (1, 1, 0), ALLOW), (53, (1, 0x80005, 0), ALLOW), (53, (1, 2, 0), EACCES), (53, (1, 3, 0), EACCES),
    (53, (2, 1, 0), EACCES),
    # clone: as fork does it, of a thread, into namespaces
    (56, (0x0120_0011,), ALLOW), (56, (0x003D_0F00,), ALLOW), (56, (0x1000_0011,), EPERM), (56, (0x0002_0011,), EPERM),
    # unshare, ioctl
    (272, (0x4000_0000,), EPERM), (272, (0x0000_0080,), EPERM), (272, (0x0000_0400,), ALLOW),
    (16, (0, 0x5412), EPERM), (16, (0, 0x5413), ALLOW),
    # mknod, mknodat
    (133, (0, 0o060600), EPERM), (133, (0, 0o010600), ALLOW), (259, (0, 0, 0o020600), EPERM),
    (259, (0, 0, 0o140600), ALLOW),
    # chmod, fchmodat, open, openat
    (90, (0, 0o4755), EPERM), (90, (0, 0o1777), ALLOW), (268, (0, 0, 0o2644), EPERM), (2, (0, 0o101, 0o4755), EPERM),
    (2, (0, 0o1, 0o4755), ALLOW), (257, (0, 0, 0o20200001, 0o2755), EPERM), (257, (0, 0, 0o100, 0o644), ALLOW),
    # utimensat, which only those with capabilities are held to do by descriptor
    (280, (-100, 0xDEAD, 0), ALLOW),
)  # fmt: skip
CONFINED_ON_ARM: tuple[Case, ...] = (
    # read, ptrace, mount, socket, clone, mknodat, fchmod, openat
    (63, (), ALLOW), (117, (), EPERM), (40, (), EPERM), (198, (1, 1, 0), EACCES), (220, (0x1000_0011,), EPERM),
    (33, (0, 0, 0o060600), EPERM), (52, (0, 0o4755), EPERM), (56, (0, 0, 0o100, 0o4755), EPERM),
)  # fmt: skip
OVERRIDING: tuple[Case, ...] = (
    (280, (-100, 0xDEAD, 0), EPERM), (280, (-100, 0xDEAD_0000_0000, 0), EPERM), (280, (5, 0, 0), ALLOW),
    (280, (-100, 0xDEAD, 0xBEEF), ALLOW), (280, (-100, 0xDEAD, 0xBEEF_0000_0000), ALLOW),
)  # fmt: skip
IN_NAMESPACES: tuple[Case, ...] = (
    *((41, (family, 1, 0), ALLOW) for family in (1, 2, 10, 16)),
    *((41, (family, 1, 0), EAFNOSUPPORT) for family in (0, 3, 17, 29, 38, 40, 44, 2**31)),
    # netlink of netfilter, ptrace, shmget, setxattr, keyctl, chmod, unshare
    (41, (16, 3, 12), EPROTONOSUPPORT), (101, (16, 7, 0), ALLOW), (29, (), ALLOW), (188, (), ALLOW), (250, (), EPERM),
    (90, (0, 0o4755), EPERM), (272, (0x1000_0000,), EPERM),
)  # fmt: skip
SUPERVISED: tuple[Case, ...] = (
    *((41, (family, 1, protocol), ALLOW) for family in (2, 10) for protocol in (0, 6)),
    (41, (2, 0x80801, 0), ALLOW), (41, (1, 1, 0), ALLOW),
    # datagrams, which go to any name, and the like
    (41, (1, 2, 0), EACCES), (41, (1, 5, 0), EACCES), (41, (2, 2, 17), EACCES), (41, (2, 3, 1), EACCES),
    # MPTCP, SCTP, netlink, packets
    (41, (2, 1, 262), EPROTONOSUPPORT), (41, (10, 1, 132), EPROTONOSUPPORT), (41, (16, 3, 4), EACCES),
    (41, (17, 1, 0), EACCES),
    # connect, bind, listen, accept
    (42, (3, 0xDEAD, 16), ASK), (49, (), ASK), (50, (), ASK), (43, (), ALLOW),
    # sendto, sendmsg, sendmmsg with fast open; setsockopt
    (44, (3, 0, 0, 0x2000_0000), EOPNOTSUPP), (44, (3, 0, 0, 0x4000), ALLOW), (46, (3, 0, 0x2000_4000), EOPNOTSUPP),
    (307, (3, 0, 0, 0x2000_0000), EOPNOTSUPP), (54, (3, 1, 15), ENOPROTOOPT), (54, (3, 1, 2), ALLOW),
    (54, (3, 6, 15), ALLOW),
)  # fmt: skip
SUPERVISED_ON_ARM: tuple[Case, ...] = (
    (203, (), ASK), (200, (), ASK), (201, (), ASK), (206, (3, 0, 0, 0x2000_0000), EOPNOTSUPP),
    (198, (2, 2, 0), EACCES),
)  # fmt: skip


@pytest.mark.parametrize(
    ("machine", "kind", "cases"),
    [
        pytest.param("x86_64", {"namespaces": False}, CONFINED, id="confined"),
        pytest.param("aarch64", {"namespaces": False}, CONFINED_ON_ARM, id="confined on ARM"),
        pytest.param("x86_64", {"namespaces": False, "overrides": True}, OVERRIDING, id="with capabilities"),
        pytest.param("x86_64", {"namespaces": True}, IN_NAMESPACES, id="with namespaces"),
        pytest.param("x86_64", {"namespaces": False, "supervised": True}, SUPERVISED, id="supervised"),
        pytest.param("aarch64", {"namespaces": False, "supervised": True}, SUPERVISED_ON_ARM, id="supervised on ARM"),
    ],
)
def test_what_the_filter_says(machine: str, kind: dict[str, bool], cases: tuple[Case, ...]) -> None:
    program = seccomp_filter(machine, **kind)
    for number, arguments, answer in cases:
        assert judge(program, X86 if machine == "x86_64" else ARM, number, *arguments) == answer, (number, arguments)


def test_calls_of_another_machine_end_the_process_and_rights_are_those_of_the_kernel() -> None:
    for audit in (0x4000_0003, ARM, 0, X86 - 1):
        assert judge(seccomp_filter("x86_64", namespaces=False), audit, 0) == KILL, audit
    assert [Landlock(version=version).rights.bit_count() for version in range(1, 7)] == [13, 14, 15, 15, 16, 16]
    assert [machine_known(name) for name in ("x86_64", "aarch64", "riscv64", "i686")] == [True, True, False, False]
