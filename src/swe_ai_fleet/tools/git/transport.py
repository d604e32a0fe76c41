"""Git that speaks to a remote for a clone: with a configuration of our own, in a sandbox session of its own.

The clone's configuration may be anybody's, so the git that reaches the network never reads it. It has a git directory
of ours (config, refs, HEAD) and takes from the clone its objects alone. What came in is put into the clone's refs by a
git without network access, from a list of ours.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import tempfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from swe_ai_fleet.domain.command import Command, CommandResult, Output
from swe_ai_fleet.domain.environment import Environment, Mount
from swe_ai_fleet.ports import SecretMask, Workspace
from swe_ai_fleet.sandbox import LocalWorkspace, NetworkGrant, Sandbox
from swe_ai_fleet.sandbox.jail import PROXY_PORT
from swe_ai_fleet.tools.definition import ToolFailure, ToolTimeout
from swe_ai_fleet.tools.git.gateway import Gateway
from swe_ai_fleet.tools.git.repository import Repository, failure

MAX_REFS = 8_000
PLACE = "/transport"
"""Where commands of the session see the transport's directory; its git directory is `repository` in there."""

_PROXY = f"http://127.0.0.1:{PROXY_PORT}"
_OUTPUT_LIMIT = 4 * 1024 * 1024
# Old faults that whole histories carry and that harm nobody.
_FORGIVEN = ("badTimezone", "missingSpaceBeforeDate", "missingSpaceBeforeEmail", "zeroPaddedFilemode")
_CONFIG = """\
[core]
	repositoryformatversion = {version}
	bare = true
	hooksPath = /dev/null
	commitGraph = false
	multiPackIndex = false
	alternateRefsCommand = false
	logAllRefUpdates = false
	askPass = false
[extensions]{extensions}
[protocol]
	allow = never
[protocol "http"]
	allow = always
[http]
	proxy = {proxy}
	followRedirects = false
	postBuffer = {post_buffer}
[credential]
	helper =
[fetch]
	fsckObjects = true
	unpackLimit = 1
	recurseSubmodules = false
	writeCommitGraph = false
[fetch "fsck"]
{forgiven}
[push]
	recurseSubmodules = no
	useBitmaps = false
[pack]
	threads = 1
	useBitmaps = false
[gc]
	auto = 0
[maintenance]
	auto = false
"""
_VARIABLES = {
    "GIT_DIR": f"{PLACE}/repository",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "false",
    "GIT_ALLOW_PROTOCOL": "http",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_GRAFT_FILE": "/dev/null",
    "GIT_PAGER": "cat",
    "LC_ALL": "C.UTF-8",
    # The gateway is on this host's loopback, which only the proxy leads to.
    "no_proxy": "",
    "NO_PROXY": "",
}
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_REF_LINE = re.compile(r"([0-9a-f]{40}(?:[0-9a-f]{24})?) (refs/(?:heads|tags|remotes)/[^\s\x00-\x1f\x7f]+)")
# Constant text; the files it touches are its arguments.
_UPDATE_REFS = 'exec git -c core.hooksPath=/dev/null -c "safe.directory=*" update-ref --stdin <"$1"'


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportSource:
    """What the transport takes from a clone: where its objects lie, its refs, and where a shallow history ends."""

    object_format: str = "sha1"
    objects: str = ""
    refs: Mapping[str, str]
    shallow: tuple[str, ...] = ()


class GitTransport:
    """The git process between one remote, behind a gateway, and the clone at the workspace's root, if there is one."""

    def __init__(
        self, local: LocalWorkspace, networked: LocalWorkspace, directory: Path, gateway: Gateway, *,
        mask: SecretMask, shown: str, seconds: float,
    ) -> None:  # fmt: skip
        self._local = local
        self._networked = networked
        self.directory = directory
        self.gateway = gateway
        self.clone = Repository(local)
        self._mask = mask
        self._shown = shown
        self._seconds = seconds
        self._objects = ""

    @classmethod
    @asynccontextmanager
    async def open(
        cls, sandbox: Sandbox, workspace: Workspace, gateway: Gateway, *, mask: SecretMask, shown: str, seconds: float
    ) -> AsyncGenerator[GitTransport]:
        """A transport for the clone in a workspace; its directory vanishes at the end.

        Args:
            gateway: Open already; nothing else is reached.
            mask: Applied to whatever git says.
            shown: What stands for the gateway's URL in what git says.
            seconds: Limit of one command.
        """
        directory = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="fleet-transport-"))
        try:
            # Only the mounts: what an environment puts on PATH or into variables is not ours.
            environment = Environment(mounts=workspace.environment.mounts)
            ours = (Mount(source=str(directory), target=PLACE),)
            granted = NetworkGrant(private_hosts=(gateway.address,))
            async with (
                sandbox.workspace(workspace.root, environment=environment, writable=ours) as local,
                sandbox.workspace(workspace.root, environment=environment, writable=ours, network=granted) as networked,
            ):
                yield cls(local, networked, directory, gateway, mask=mask, shown=shown, seconds=seconds)
        finally:
            await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)

    async def origins(self) -> TransportSource:
        """What there is of the clone at the workspace's root. Raises ToolFailure where there is none."""
        options = ("--path-format=absolute", "--show-object-format", "--git-path", "objects", "--git-path", "shallow")
        lines = (await self.clone.git("rev-parse", *options)).stdout.text().splitlines()
        if len(lines) != 3 or lines[0] not in ("sha1", "sha256"):
            raise ToolFailure("the workspace's repository cannot be read")
        listed = await self.clone.git(
            "for-each-ref", f"--count={MAX_REFS}", "--format=%(objectname) %(refname)", "refs/heads", "refs/remotes",
            "refs/tags",
        )  # fmt: skip
        shallow = await self._run(("cat", "--", lines[2]), {})
        return TransportSource(
            object_format=lines[0],
            objects=lines[1],
            refs=_refs(listed.stdout.text()),
            shallow=tuple(line for line in shallow.stdout.text().splitlines() if _COMMIT.fullmatch(line)),
        )

    def prepare(self, origins: TransportSource) -> None:
        """Write the transport's git directory. Without `objects` it gets a store of its own."""
        repository = self.directory / "repository"
        for name in ("objects", "refs"):
            (repository / name).mkdir(parents=True, exist_ok=True)
        sha256 = origins.object_format == "sha256"
        config = _CONFIG.format(
            version=1 if sha256 else 0,
            extensions="\n\tobjectFormat = sha256" if sha256 else "",
            proxy=_PROXY,
            post_buffer=self.gateway.max_sent_bytes,
            forgiven="\n".join(f"\t{name} = ignore" for name in _FORGIVEN),
        )
        (repository / "config").write_text(config)
        (repository / "HEAD").write_text("ref: refs/heads/none\n")
        (repository / "packed-refs").write_text(_packed(origins.refs))
        if origins.shallow:
            (repository / "shallow").write_text("".join(f"{commit}\n" for commit in origins.shallow))
        self._objects = origins.objects

    async def reach(self, *arguments: str) -> CommandResult:
        """Run git in the transport's directory, with the gateway in reach. Raises what git or the gateway said."""
        result = await self._git(self._networked, arguments)
        # An answer that broke off can look whole to git.
        if not result.ok or self.gateway.problem is not None:
            raise self._failure(arguments[0], result)
        return result

    async def run(self, *arguments: str) -> CommandResult:
        """Run git in the transport's directory, without a network, whatever becomes of it."""
        return await self._git(self._local, arguments)

    async def _git(self, workspace: LocalWorkspace, arguments: tuple[str, ...]) -> CommandResult:
        variables = dict(_VARIABLES)
        if self._objects:
            variables["GIT_OBJECT_DIRECTORY"] = self._objects
        return await self._run(("git", "--no-pager", *arguments), variables, workspace=workspace)

    def _failure(self, command: str, result: CommandResult) -> ToolFailure:
        """Why a command failed: what the gateway objected to, else what git said, without addresses of ours."""
        if self.gateway.problem is not None:
            return self._masked(self.gateway.problem)
        if result.timed_out:
            return ToolTimeout(f"git {command} did not finish within {self._seconds:g} seconds")
        message = "\n".join(
            line for line in (result.stdout.text() + result.stderr.text()).splitlines() if not _is_noise(line)
        )
        text = message.replace(self.gateway.url, self._shown).encode("utf-8", "replace")
        return self._masked(
            failure(command, replace(result, stdout=Output(), stderr=Output(head=text, total=len(text))))
        )

    async def refs(self) -> Mapping[str, str]:
        """The refs of the transport's directory, name to commit. Raises ToolFailure where there are too many."""
        options = (f"--count={MAX_REFS + 1}", "--format=%(objectname) %(refname)")
        listed = await self.run("for-each-ref", *options)
        if not listed.ok:
            raise self._failure("for-each-ref", listed)
        refs_found = _refs(listed.stdout.text())
        if len(refs_found) > MAX_REFS or listed.stdout.elided:
            raise ToolFailure(f"the remote has more than {MAX_REFS} refs; name the branches you need")
        return refs_found

    async def advertised(self, *patterns: str) -> tuple[Mapping[str, str], str]:
        """(refs at the remote that match, the branch that its HEAD names or nothing)."""
        options = ("--symref", "--quiet", "--end-of-options")
        listed = await self.reach("ls-remote", *options, self.gateway.url, "HEAD", *patterns)
        refs: dict[str, str] = {}
        head = ""
        for line in listed.stdout.text().splitlines():
            value, _, name = line.partition("\t")
            if name == "HEAD" and value.startswith("ref: refs/heads/"):
                head = value.removeprefix("ref: refs/heads/")
            elif _COMMIT.fullmatch(value):
                refs[name] = value
        return refs, head

    async def update_refs(self, changes: Mapping[str, tuple[str, str]], directory: str = ".") -> None:
        """Set refs of the clone (name to old, which is empty where there was none, and new), all or none."""
        lines = [
            f"update {ref} {new} {old}\n" if old else f"create {ref} {new}\n" for ref, (old, new) in changes.items()
        ]
        (self.directory / "updates").write_text("".join(lines))
        command = ("sh", "-c", _UPDATE_REFS, "sh", f"{PLACE}/updates")
        result = await self._run(command, {"GIT_CONFIG_GLOBAL": "/dev/null"}, directory)
        if not result.ok:
            raise self._masked(failure("update-ref", result))

    async def local(self, *argv: str, directory: str = ".") -> None:
        """Run a command without any of our variables in a directory of the workspace. Raises ToolFailure."""
        result = await self._run(argv, {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}, directory)
        if not result.ok:
            raise self._masked(failure(argv[0], result))

    async def _run(
        self,
        argv: tuple[str, ...],
        variables: Mapping[str, str],
        directory: str = ".",
        *,
        workspace: LocalWorkspace | None = None,
    ) -> CommandResult:
        return await (workspace or self._local).run(
            Command(
                argv=argv,
                cwd=directory,
                variables=variables,
                timeout_seconds=self._seconds,
                output_limit=_OUTPUT_LIMIT,
                # It waits for a network most of its time.
                light=True,
            )
        )

    def _masked(self, problem: ToolFailure) -> ToolFailure:
        return type(problem)(self._mask(problem.message))


def _packed(refs: Mapping[str, str]) -> str:
    return "".join(f"{commit} {name}\n" for name, commit in sorted(refs.items()))


def _refs(listing: str) -> dict[str, str]:
    """Refs by name. A symbolic HEAD of a remote is none of its branches."""
    refs_by_name: dict[str, str] = {}
    for line in listing.splitlines():
        match = _REF_LINE.fullmatch(line)
        if match and not (match[2].startswith("refs/remotes/") and match[2].endswith("/HEAD")):
            refs_by_name[match[2]] = match[1]
    return refs_by_name


def _is_noise(line: str) -> bool:
    """Lines of `--porcelain` and of progress that tell a reader nothing."""
    return not line.strip() or line.startswith(("To ", "Done", "=\t", "POST git-", "error: failed to push some refs"))
