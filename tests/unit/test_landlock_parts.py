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
from swe_ai_fleet.testing.repositories import write_files

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


def test_calls_of_another_machine_end_the_process() -> None:
    for audit in (0x4000_0003, ARM, 0, X86 - 1):
        assert judge(seccomp_filter("x86_64", namespaces=False), audit, 0) == KILL, audit


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


MARKS: tuple[tuple[dict[str, str], dict[str, str], str], ...] = (
    ({}, {}, ""),
    ({".dockerenv": ""}, {}, "a Docker container"),
    ({"run/.containerenv": ""}, {}, "a Podman container"),
    ({"proc/1/cgroup": "0::/kubepods/pod1\n"}, {}, "a container"),
    ({"proc/1/cgroup": "0::/init.scope\n"}, {}, ""),
    ({}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "a Kubernetes pod"),
    ({"proc/version": "Linux version 4.4.0 gVisor"}, {}, "a sandbox on gVisor"),
    ({".dockerenv": "", "proc/version": "gVisor"}, {}, "a Docker container on gVisor"),
    ({"proc/cmdline": "root=/dev/vda agent=kata"}, {}, "a virtual machine on Kata Containers"),
)


def test_marks_of_containers(tmp_path: Path) -> None:
    for number, (files, variables, said) in enumerate(MARKS):
        root = tmp_path / str(number)
        write_files(root, files)
        assert surroundings(root, variables) == said
