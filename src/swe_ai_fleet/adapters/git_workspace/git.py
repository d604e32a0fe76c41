"""Runs git, hardened against the repositories it reads; and the form of patches."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from swe_ai_fleet.domain.candidate import Diff
from swe_ai_fleet.domain.command import Owner
from swe_ai_fleet.domain.errors import FleetError, PatchRejected, ResourceExhausted, Unavailable
from swe_ai_fleet.sandbox.cpu_slots import CpuSlots
from swe_ai_fleet.sandbox.processes import started_group

DEFAULT_TIMEOUT_SECONDS = 120.0
DEFAULT_OUTPUT_LIMIT = 64 * 1024 * 1024
DEFAULT_MEMORY_BYTES = 1024**3
"""The memory limit of each git process. Mapped packs do not count; files that git reads completely do, and an index or
a pack with some 150 bytes for each of its entries."""
HISTORY_MEMORY_BYTES = 4 * 1024**3
"""The limit for git commands on all objects of a history, of which there may be millions."""
DEFAULT_DISK_BYTES = 10 * 1024**3
_STDERR_LIMIT = 64 * 1024
COMMIT_ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")

# Configuration with command scope, which overrides a repository's own config file.
_CONFIG = {
    "safe.directory": "*",
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.untrackedCache": "false",
    "core.splitIndex": "false",
    "core.attributesFile": "/dev/null",
    "core.excludesFile": "/dev/null",
    "core.autocrlf": "false",
    "core.safecrlf": "false",
    "core.alternateRefsCommand": "false",
    "core.sshCommand": "false",
    "credential.helper": "",
    "commit.gpgSign": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "submodule.recurse": "false",
    "fetch.recurseSubmodules": "false",
    # Always a pack, which is a single file within the limit.
    "fetch.unpackLimit": "1",
    "push.recurseSubmodules": "no",
    "protocol.allow": "never",
    "http.followRedirects": "initial",
}
# The variables that network calls inherit: certificates. Proxies are set by a `Route`.
_TRANSPORT_VARIABLES = ("GIT_SSL_CAINFO", "GIT_SSL_CAPATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "CURL_CA_BUNDLE")


# A chain of deltas, or a tree that contains itself many times, is small in transport and unbounded when unpacked.
# Git ignores the signal, so that it gets an error and reports it.
_LIMITED = 'trap "" XFSZ; ulimit -d "$1" 2>/dev/null; ulimit -f "$2"; shift 2; exec "$@"'
_TOO_LARGE = re.compile(r"file too large", re.IGNORECASE)
_MOST_WORKERS = 4
_NO_MEMORY = re.compile(r"out of memory|malloc failed|cannot allocate memory|unable to create thread", re.IGNORECASE)


class GitFailed(FleetError):
    """A git command failed; the message is git's own."""


class GitExhausted(GitFailed, ResourceExhausted):
    """A git command exceeded its limit of memory or of the size of a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """The limits of a git command: memory for each of its processes, and a CPU slot that it waits for as `owner` (None:
    no slot, for short commands)."""

    memory_bytes: int = DEFAULT_MEMORY_BYTES
    owner: Owner | None = None


_PLUMBING = Allowance()


def unpacking(tenant: str) -> Owner:
    """The owner of CPU slots for a tenant's uploads, which belong to no execution yet."""
    return Owner(tenant=tenant, execution_id="repositories")


@dataclass(frozen=True, slots=True, kw_only=True)
class GitResult:
    """The result of a git command. `code` is its exit status."""

    code: int
    stdout: bytes
    stderr: str

    def lines(self) -> list[str]:
        return os.fsdecode(self.stdout).splitlines()

    def text(self) -> str:
        return os.fsdecode(self.stdout).strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class GitLayout:
    """The explicit paths of a repository for one call; each part can be in another directory."""

    git_dir: Path
    work_tree: Path | None = None
    index: Path | None = None
    objects: Path | None = None
    alternates: tuple[Path, ...] = ()

    def variables(self) -> dict[str, str]:
        environ = {"GIT_DIR": str(self.git_dir)}
        if self.work_tree is not None:
            environ["GIT_WORK_TREE"] = str(self.work_tree)
        if self.index is not None:
            environ["GIT_INDEX_FILE"] = str(self.index)
        if self.objects is not None:
            environ["GIT_OBJECT_DIRECTORY"] = str(self.objects)
        if self.alternates:
            environ["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = ":".join(map(quoted, self.alternates))
        return environ


def quoted(path: Path) -> str:
    """A path in the form of git's lists of object stores."""
    text = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


class Git:
    """Runs git in a new environment: without system or user configuration, hooks, prompts or pagers.

    `environ` is this process's environment, from which network calls inherit certificates. No file that
    git writes, including a pack of everything it fetches, is larger than `max_disk_bytes`, which also limits the files
    of a commit. `slots` are shared with heavy commands in sandboxes.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        max_disk_bytes: int = DEFAULT_DISK_BYTES,
        slots: CpuSlots | None = None,
    ) -> None:
        self.max_disk_bytes = max_disk_bytes
        self._slots = slots
        # Each of git's workers may use as much memory as git itself.
        workers = str(min(os.cpu_count() or 1, _MOST_WORKERS))
        settings = {**_CONFIG, "checkout.workers": workers, "pack.threads": workers}
        config = {
            f"GIT_CONFIG_{part}_{number}": text
            for number, entry in enumerate(settings.items())
            for part, text in zip(("KEY", "VALUE"), entry, strict=True)
        }
        self._base = {
            "PATH": environ.get("PATH", os.defpath),
            "HOME": "/nonexistent",
            "LC_ALL": "C.UTF-8",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "/bin/false",
            "GIT_SSH_COMMAND": "/bin/false",
            "GIT_EDITOR": "/bin/false",
            "GIT_PAGER": "cat",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_NO_LAZY_FETCH": "1",
            # An allow-list without a real transport, so that git never fetches by itself.
            "GIT_ALLOW_PROTOCOL": "none",
            "GIT_CONFIG_COUNT": str(len(settings)),
            **config,
        }
        self._transport = {name: environ[name] for name in _TRANSPORT_VARIABLES if environ.get(name)}

    async def run(
        self,
        *args: str,
        options: Sequence[str] = (),
        layout: GitLayout | None = None,
        cwd: Path | None = None,
        stdin: bytes = b"",
        variables: Mapping[str, str] | None = None,
        protocols: Sequence[str] = (),
        expect: Sequence[int] = (0,),
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        output_limit: int = DEFAULT_OUTPUT_LIMIT,
        allowance: Allowance = _PLUMBING,
        confining: Sequence[str] = (),
    ) -> GitResult:
        """Run git; with `protocols` it may use the network.

        `options` go before the command. `confining` is the argv of a launcher that confines git to the allowed paths.
        Waiting for a slot does not count for `timeout_seconds`.

        Raises GitFailed (exit status not in `expect`), GitExhausted (over its limit of memory or file size),
        Unavailable (time is up), ResourceExhausted (more than `output_limit` bytes on standard output).
        """
        environment = dict(self._base)
        if protocols:
            environment |= self._transport | {"GIT_ALLOW_PROTOCOL": ":".join(protocols)}
        if layout is not None:
            environment |= layout.variables()
        if variables:
            environment |= variables
        async with self._slot(allowance.owner):
            process = await started_group(
                *("sh", "-c", _LIMITED, "sh", str(allowance.memory_bytes // 1024), str(self.max_disk_bytes // 512)),
                *confining,
                "git",
                *options,
                *args,
                cwd=cwd or (layout.git_dir if layout is not None else None),
                env=environment,
                stdin=asyncio.subprocess.PIPE if stdin else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            try:
                async with asyncio.timeout(timeout_seconds):
                    _, stdout, stderr, code = await asyncio.gather(
                        _feed(process.stdin, stdin),
                        _read(process, output_limit),
                        _read_tail(process.stderr),
                        process.wait(),
                    )
            except TimeoutError:
                raise Unavailable(f"git {args[0]} took more than {timeout_seconds:g} s") from None
            finally:
                await _end(process)
        if stdout is None:
            raise ResourceExhausted(f"git printed more than {output_limit} bytes")
        result = GitResult(code=code, stdout=stdout, stderr=stderr.decode("utf-8", "replace").strip())
        if code not in expect:
            if _NO_MEMORY.search(result.stderr):
                most = f"{allowance.memory_bytes // 1024**2} MiB of memory"
                raise GitExhausted(
                    f"git {args[0]} needs more than {most}: {result.stderr[-500:]}",
                    hint="smaller files, or fewer of them, or .gitignore for what is generated",
                )
            if _TOO_LARGE.search(result.stderr):
                raise GitExhausted(
                    f"git {args[0]} writes a file of more than {self.max_disk_bytes} bytes",
                    hint="the operator can raise FLEET_MAX_DISK_BYTES",
                )
            raise GitFailed(result.stderr or f"git {args[0]} ended with status {code}")
        return result

    async def commit(self, layout: GitLayout, name: str) -> str:
        """The commit of a name; empty without one."""
        answer = await self.run(
            *("rev-parse", "--quiet", "--verify", "--end-of-options", f"{name}^{{commit}}"),
            layout=layout,
            expect=(0, 1, 128),
        )
        return answer.text() if answer.code == 0 else ""

    async def tree(self, layout: GitLayout, commit: str) -> str:
        """The tree of a commit."""
        return (await self.run("rev-parse", f"{commit}^{{tree}}", layout=layout)).text()

    async def is_ancestor(self, layout: GitLayout, older: str, newer: str) -> bool:
        """Whether a commit is an ancestor of another; False if one of them is missing."""
        answer = await self.run("merge-base", "--is-ancestor", older, newer, layout=layout, expect=(0, 1, 128))
        return answer.code == 0

    def _slot(self, owner: Owner | None) -> AbstractAsyncContextManager[None]:
        return nullcontext() if self._slots is None or owner is None else self._slots.hold(owner)


async def _feed(pipe: asyncio.StreamWriter | None, data: bytes) -> None:
    if pipe is None:
        return
    try:
        pipe.write(data)
        await pipe.drain()
    except (BrokenPipeError, ConnectionResetError):
        return  # git ended early; its exit status is the reason
    finally:
        pipe.close()


async def _read(process: asyncio.subprocess.Process, limit: int) -> bytes | None:
    """Standard output up to its end; None if it is longer than `limit`, which kills the process.

    It is always read to the end: asyncio never notices the end of a process whose pipe is not read.
    """
    if process.stdout is None:
        return b""
    chunks: list[bytes] = []
    size = 0
    while chunk := await process.stdout.read(1 << 18):
        size += len(chunk)
        if size > limit:
            _kill(process)
            chunks.clear()
        else:
            chunks.append(chunk)
    return b"".join(chunks) if size <= limit else None


async def _read_tail(pipe: asyncio.StreamReader | None) -> bytes:
    if pipe is None:
        return b""
    tail = b""
    while chunk := await pipe.read(1 << 16):
        tail = (tail + chunk)[-_STDERR_LIMIT:]
    return tail


def _kill(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    _kill(process)
    # This does not delay a cancellation for long: a killed process ends within a scheduler tick.
    await asyncio.shield(asyncio.gather(_read(process, 0), _read_tail(process.stderr), process.wait()))


@contextmanager
def bounded(what: str, max_bytes: int, *, hint: str = "let .gitignore name generated files") -> Generator[None]:
    """A context that reports too long an output as `what` of the caller. Raises ResourceExhausted."""
    try:
        yield
    except GitExhausted:
        raise
    except ResourceExhausted as error:
        raise ResourceExhausted(f"{what} of more than {max_bytes} bytes", hint=hint) from error


PATCH_FORM = (
    *("--binary", "--full-index", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color", "--unified=3"),
    *("--diff-algorithm=myers", "--src-prefix=a/", "--dst-prefix=b/", "--ignore-submodules=none"),
)
# Only headers match: lines of content begin with a sign, and binary content has no blanks.
_HEADER = re.compile(rb"^diff --git a/([^\n]+)$", re.M)


async def apply_patch(git: Git, patch: bytes, where: str, *, layout: GitLayout, cwd: Path) -> None:
    """Apply a patch all or nothing; `where` is `--index` or `--cached`. Raises PatchRejected with git's reason."""
    try:
        await git.run(
            *("apply", where, "--whitespace=nowarn", "-p1", "-"),
            # A sandbox may have changed the owner of files since their checkout.
            options=("-c", "core.checkStat=minimal"),
            layout=layout,
            cwd=cwd,
            stdin=patch,
        )
    except GitFailed as error:
        raise PatchRejected(error.message[:2000]) from error


async def touched(git: Git, patch: bytes) -> frozenset[str]:
    """The files that a patch changes or creates; none for a malformed patch."""
    counted = await git.run("apply", "--numstat", "-z", "-p1", "-", stdin=patch, cwd=Path("/"), expect=(0, 1, 128))
    names = (entry.split(b"\t", 2) for entry in counted.stdout.split(b"\0"))
    return frozenset(os.fsdecode(parts[2]) for parts in names if len(parts) == 3)


def diff_of(patch: bytes, counts: bytes) -> Diff:
    """A `Diff` of git's patch and its `--numstat -z`."""
    files: list[str] = []
    insertions = deletions = 0
    for entry in filter(None, counts.split(b"\0")):
        added, removed, name = entry.split(b"\t", 2)
        files.append(name.decode("utf-8", "backslashreplace"))
        insertions += int(added) if added != b"-" else 0
        deletions += int(removed) if removed != b"-" else 0
    return Diff(patch=readable(patch), files=tuple(files), insertions=insertions, deletions=deletions)


def readable(patch: bytes) -> bytes:
    """A patch from git, in a form that git can read back whatever the names of its files."""
    return _HEADER.sub(_unambiguous, patch)


def _unambiguous(header: re.Match[bytes]) -> bytes:
    """A patch's header line with both names quoted if they contain a blank.

    git writes them unquoted, and cannot read them back if no other line names the file (`a /b`, empty or only its
    mode changed).
    """
    names = header[1]
    name = names[: (len(names) - 3) // 2]
    if b" " not in name or names != name + b" b/" + name:
        return header[0]
    return b'diff --git "a/' + name + b'" "b/' + name + b'"'
