"""The system call filter as the kernel would run it, disk measuring, marks of containers."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.domain.environment import Mount
from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.sandbox.disk import DiskWatch, Usage, measure
from swe_ai_fleet.sandbox.landlock import Landlock, check_mounts
from swe_ai_fleet.sandbox.seccomp import machine_known, seccomp_filter
from swe_ai_fleet.sandbox.surroundings import surroundings

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


@pytest.mark.parametrize(
    ("machine", "number", "arguments", "answer"),
    [
        ("x86_64", 0, (), ALLOW),  # read
        ("x86_64", 59, (), ALLOW),  # execve
        ("x86_64", 101, (), EPERM),  # ptrace
        ("x86_64", 165, (), EPERM),  # mount
        ("x86_64", 321, (), EPERM),  # bpf
        ("x86_64", 425, (), EPERM),  # io_uring_setup
        ("x86_64", 41, (1, 1, 0), EACCES),  # socket, unix
        ("x86_64", 41, (2, 1, 0), EACCES),
        ("x86_64", 41, (16, 3, 0), EACCES),
        ("x86_64", 53, (1, 1, 0), ALLOW),  # socketpair
        ("x86_64", 53, (1, 0x80005, 0), ALLOW),
        ("x86_64", 53, (1, 2, 0), EACCES),
        ("x86_64", 53, (1, 3, 0), EACCES),
        ("x86_64", 53, (2, 1, 0), EACCES),
        ("x86_64", 56, (0x0120_0011,), ALLOW),  # clone, as fork does it
        ("x86_64", 56, (0x003D_0F00,), ALLOW),  # clone of a thread
        ("x86_64", 56, (0x1000_0011,), EPERM),
        ("x86_64", 56, (0x0002_0011,), EPERM),
        ("x86_64", 272, (0x4000_0000,), EPERM),  # unshare
        ("x86_64", 272, (0x0000_0080,), EPERM),
        ("x86_64", 272, (0x0000_0400,), ALLOW),
        ("x86_64", 435, (), ENOSYS),  # clone3
        ("x86_64", 16, (0, 0x5412), EPERM),  # ioctl
        ("x86_64", 16, (0, 0x5413), ALLOW),
        ("x86_64", 133, (0, 0o060600), EPERM),  # mknod
        ("x86_64", 133, (0, 0o010600), ALLOW),
        ("x86_64", 259, (0, 0, 0o020600), EPERM),
        ("x86_64", 259, (0, 0, 0o140600), ALLOW),
        ("x86_64", 188, (), EOPNOTSUPP),  # setxattr
        ("x86_64", 90, (0, 0o4755), EPERM),  # chmod
        ("x86_64", 90, (0, 0o1777), ALLOW),
        ("x86_64", 268, (0, 0, 0o2644), EPERM),  # fchmodat
        ("x86_64", 2, (0, 0o101, 0o4755), EPERM),  # open
        ("x86_64", 2, (0, 0o1, 0o4755), ALLOW),
        ("x86_64", 257, (0, 0, 0o20200001, 0o2755), EPERM),  # openat
        ("x86_64", 257, (0, 0, 0o100, 0o644), ALLOW),
        ("x86_64", 437, (), ENOSYS),  # openat2
        ("x86_64", 0x4000_0000, (), KILL),  # x32
        ("x86_64", 0x4000_0000 + 101, (), KILL),
        ("aarch64", 63, (), ALLOW),
        ("aarch64", 117, (), EPERM),  # ptrace
        ("aarch64", 40, (), EPERM),  # mount
        ("aarch64", 198, (1, 1, 0), EACCES),
        ("aarch64", 220, (0x1000_0011,), EPERM),
        ("aarch64", 33, (0, 0, 0o060600), EPERM),
        ("aarch64", 52, (0, 0o4755), EPERM),  # fchmod
        ("aarch64", 56, (0, 0, 0o100, 0o4755), EPERM),  # openat
    ],
)
def test_what_the_filter_says(machine: str, number: int, arguments: tuple[int, ...], answer: int) -> None:
    program = seccomp_filter(machine, namespaces=False)
    assert judge(program, X86 if machine == "x86_64" else ARM, number, *arguments) == answer


@pytest.mark.parametrize("audit", [0x4000_0003, ARM, 0, X86 - 1])
def test_calls_of_another_machine_end_the_process(audit: int) -> None:
    assert judge(seccomp_filter("x86_64", namespaces=False), audit, 0) == KILL


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ((-100, 0xDEAD, 0), EPERM),
        ((-100, 0xDEAD_0000_0000, 0), EPERM),
        ((5, 0, 0), ALLOW),
        ((-100, 0xDEAD, 0xBEEF), ALLOW),
        ((-100, 0xDEAD, 0xBEEF_0000_0000), ALLOW),
    ],
)
def test_with_capabilities_files_are_touched_by_descriptor_only(arguments: tuple[int, ...], answer: int) -> None:
    assert judge(seccomp_filter("x86_64", namespaces=False, overrides=True), X86, 280, *arguments) == answer
    assert judge(seccomp_filter("x86_64", namespaces=False), X86, 280, *arguments) == ALLOW


@pytest.mark.parametrize(
    ("number", "arguments", "answer"),
    [
        *((41, (family, 1, 0), ALLOW) for family in (1, 2, 10, 16)),
        *((41, (family, 1, 0), EAFNOSUPPORT) for family in (0, 3, 17, 29, 38, 40, 44, 2**31)),
        (41, (16, 3, 12), EPROTONOSUPPORT),
        (101, (16, 7, 0), ALLOW),  # ptrace
        (29, (), ALLOW),  # shmget
        (188, (), ALLOW),  # setxattr
        (250, (), EPERM),  # keyctl
        (90, (0, 0o4755), EPERM),  # chmod
        (272, (0x1000_0000,), EPERM),  # unshare
    ],
)
def test_with_namespaces_what_stays_in_them_is_allowed(number: int, arguments: tuple[int, ...], answer: int) -> None:
    assert judge(seccomp_filter("x86_64", namespaces=True), X86, number, *arguments) == answer


@pytest.mark.parametrize(
    ("machine", "number", "arguments", "answer"),
    [
        *(("x86_64", 41, (family, 1, protocol), ALLOW) for family in (2, 10) for protocol in (0, 6)),
        ("x86_64", 41, (2, 0x80801, 0), ALLOW),
        ("x86_64", 41, (1, 1, 0), ALLOW),
        ("x86_64", 41, (1, 2, 0), EACCES),  # datagrams go to any name
        ("x86_64", 41, (1, 5, 0), EACCES),
        ("x86_64", 41, (2, 2, 17), EACCES),
        ("x86_64", 41, (2, 3, 1), EACCES),
        ("x86_64", 41, (2, 1, 262), EPROTONOSUPPORT),  # MPTCP
        ("x86_64", 41, (10, 1, 132), EPROTONOSUPPORT),  # SCTP
        ("x86_64", 41, (16, 3, 4), EACCES),
        ("x86_64", 41, (17, 1, 0), EACCES),
        ("x86_64", 42, (3, 0xDEAD, 16), ASK),  # connect
        ("x86_64", 49, (), ASK),  # bind
        ("x86_64", 50, (), ASK),  # listen
        ("x86_64", 43, (), ALLOW),  # accept
        ("x86_64", 44, (3, 0, 0, 0x2000_0000), EOPNOTSUPP),  # sendto
        ("x86_64", 44, (3, 0, 0, 0x4000), ALLOW),
        ("x86_64", 46, (3, 0, 0x2000_4000), EOPNOTSUPP),  # sendmsg
        ("x86_64", 307, (3, 0, 0, 0x2000_0000), EOPNOTSUPP),  # sendmmsg
        ("x86_64", 54, (3, 1, 15), ENOPROTOOPT),  # setsockopt
        ("x86_64", 54, (3, 1, 2), ALLOW),
        ("x86_64", 54, (3, 6, 15), ALLOW),
        ("aarch64", 203, (), ASK),
        ("aarch64", 200, (), ASK),
        ("aarch64", 201, (), ASK),
        ("aarch64", 206, (3, 0, 0, 0x2000_0000), EOPNOTSUPP),
        ("aarch64", 198, (2, 2, 0), EACCES),
    ],
)
def test_a_supervisor_is_asked_and_sockets_that_it_does_not_see_are_refused(
    machine: str, number: int, arguments: tuple[int, ...], answer: int
) -> None:
    program = seccomp_filter(machine, namespaces=False, supervised=True)
    assert judge(program, X86 if machine == "x86_64" else ARM, number, *arguments) == answer


@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(0, 2**64 - 1), min_size=6, max_size=6),
    st.sampled_from([(False, False, False), (False, True, True), (True, False, False)]),
)
def test_the_filter_always_comes_to_an_answer(number: int, arguments: list[int], kind: tuple[bool, bool, bool]) -> None:
    for machine, audit in (("x86_64", X86), ("aarch64", ARM)):
        program = seccomp_filter(machine, namespaces=kind[0], overrides=kind[1], supervised=kind[2])
        answer = judge(program, audit, number, *arguments)
        refusals = (EPERM, EACCES, ENOSYS, EOPNOTSUPP, EAFNOSUPPORT, EPROTONOSUPPORT, ENOPROTOOPT)
        assert answer in (ALLOW, KILL, ASK, *refusals)
        assert len(program) // 8 < 4096


def test_machines_without_a_filter_have_no_landlock_rung() -> None:
    assert [machine_known(name) for name in ("x86_64", "aarch64", "riscv64", "i686")] == [True, True, False, False]


def test_rights_by_version() -> None:
    counts = [Landlock(version=version).rights.bit_count() for version in (1, 2, 3, 4, 5, 6)]
    assert counts == [13, 14, 15, 15, 16, 16]
    assert [Landlock(version=version).keeps_signals for version in (5, 6)] == [False, True]


def test_mounts_must_stand_where_they_are() -> None:
    check_mounts([Mount(source="/a", target="/a")])
    with pytest.raises(PreconditionFailed, match="/b"):
        check_mounts([Mount(source="/a", target="/b")])


def test_measuring_counts_each_file_once_and_follows_no_link(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    (inside / "deep" / "er").mkdir(parents=True)
    outside.mkdir()
    empty = measure([inside]).bytes
    (outside / "large").write_bytes(bytes(2**20))
    (inside / "link").symlink_to(outside)
    (inside / "deep" / "a").write_bytes(bytes(2**20))
    os.link(inside / "deep" / "a", inside / "deep" / "er" / "again")
    os.truncate(inside / "deep" / "a", 2**20)
    with (inside / "sparse").open("wb") as file:
        file.truncate(2**30)
    usage = measure([inside, tmp_path / "gone"])
    assert usage.complete
    assert 2**20 <= usage.bytes - empty < 2**20 + 2**16


def test_measuring_says_where_it_could_not_look(tmp_path: Path) -> None:
    deep = tmp_path
    descriptor = os.open(tmp_path, os.O_RDONLY)
    for _ in range(30):
        name = "n" * 200
        os.mkdir(name, dir_fd=descriptor)
        below = os.open(name, os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
        deep /= name
    os.close(descriptor)
    assert len(str(deep)) > 4096
    assert not measure([tmp_path]).complete


async def test_a_watch_knows_what_it_measured(tmp_path: Path) -> None:
    watch = DiskWatch([tmp_path], 2**20)
    assert (watch.usage, watch.exceeded, watch.due) == (Usage(bytes=0), False, True)
    await watch.measure()
    assert not watch.exceeded
    (tmp_path / "a").write_bytes(bytes(2**21))
    held = (tmp_path / "b").open("wb")
    with held:
        held.write(bytes(2**21))
        held.flush()
        (tmp_path / "b").unlink()
        named = (await watch.measure()).bytes
        with_nameless = (await watch.measure(lambda: [os.getpid()])).bytes
    assert watch.exceeded
    assert with_nameless >= named + 2**21


@pytest.mark.parametrize(
    ("files", "variables", "said"),
    [
        ({}, {}, ""),
        ({".dockerenv": ""}, {}, "a Docker container"),
        ({"run/.containerenv": ""}, {}, "a Podman container"),
        ({"proc/1/cgroup": "0::/kubepods/pod1\n"}, {}, "a container"),
        ({"proc/1/cgroup": "0::/init.scope\n"}, {}, ""),
        ({}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "a Kubernetes pod"),
        ({"proc/version": "Linux version 4.4.0 gVisor"}, {}, "a sandbox on gVisor"),
        ({".dockerenv": "", "proc/version": "gVisor"}, {}, "a Docker container on gVisor"),
        ({"proc/cmdline": "root=/dev/vda agent=kata"}, {}, "a virtual machine on Kata Containers"),
    ],
)
def test_marks_of_containers(tmp_path: Path, files: dict[str, str], variables: dict[str, str], said: str) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert surroundings(tmp_path, variables) == said
