"""Git that contacts a remote for a clone, with the fleet's own configuration, in its own sandbox session.

The clone's configuration is untrusted, so a git with network access never reads it. That git has a directory made by
the fleet (config, refs, HEAD) and uses only the objects of the clone. Afterwards a git without network access updates
the clone's refs from a list made by the fleet.
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
"""Where commands of the session see the transport's directory; `repository` in it is the git directory."""

_PROXY = f"http://127.0.0.1:{PROXY_PORT}"
_OUTPUT_LIMIT = 4 * 1024 * 1024
# Harmless faults of commits in old histories.
_TOLERATED_FAULTS = ("badTimezone", "missingSpaceBeforeDate", "missingSpaceBeforeEmail", "zeroPaddedFilemode")
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
    # The gateway is on this host's loopback, which is reached through the proxy only.
    "no_proxy": "",
    "NO_PROXY": "",
}
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_REF_LINE = re.compile(r"([0-9a-f]{40}(?:[0-9a-f]{24})?) (refs/(?:heads|tags|remotes)/[^\s\x00-\x1f\x7f]+)")
# Constant text; the files it touches are its arguments.
_UPDATE_REFS = 'exec git -c core.hooksPath=/dev/null -c "safe.directory=*" update-ref --stdin <"$1"'


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportSource:
    """The data of a clone for the transport: the path of its objects, its refs, and the ends of a shallow history."""

    object_format: str = "sha1"
    objects: str = ""
    refs: Mapping[str, str]
    shallow: tuple[str, ...] = ()


class GitTransport:
    """Git between one remote, behind a gateway, and the clone at the workspace's root, if there is one."""

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
        """A transport for the clone in a workspace; its directory is removed at the end.

        Args:
            gateway: An open gateway, the only address that is reached.
            mask: Masks secrets in git's messages.
            shown: Replaces the gateway's URL in git's messages.
            seconds: The time limit of one command.
        """
        directory = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="fleet-transport-"))
        try:
            # Only the mounts: the environment's PATH and variables are untrusted.
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

    async def source(self) -> TransportSource:
        """The data of the clone at the workspace's root. Raises ToolFailure if there is no clone."""
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

    def prepare(self, source: TransportSource) -> None:
        """Write the transport's git directory. Without `objects` it gets its own object store."""
        repository = self.directory / "repository"
        for name in ("objects", "refs"):
            (repository / name).mkdir(parents=True, exist_ok=True)
        sha256 = source.object_format == "sha256"
        config = _CONFIG.format(
            version=1 if sha256 else 0,
            extensions="\n\tobjectFormat = sha256" if sha256 else "",
            proxy=_PROXY,
            post_buffer=self.gateway.max_sent_bytes,
            forgiven="\n".join(f"\t{name} = ignore" for name in _TOLERATED_FAULTS),
        )
        (repository / "config").write_text(config)
        (repository / "HEAD").write_text("ref: refs/heads/none\n")
        packed = "".join(f"{commit} {name}\n" for name, commit in sorted(source.refs.items()))
        (repository / "packed-refs").write_text(packed)
        if source.shallow:
            (repository / "shallow").write_text("".join(f"{commit}\n" for commit in source.shallow))
        self._objects = source.objects

    async def reach(self, *arguments: str) -> CommandResult:
        """Run git in the transport's directory with access to the gateway. Raises the gateway's or git's failure."""
        result = await self._git(self._networked, arguments)
        # A response that broke off can look complete to git.
        if not result.ok or self.gateway.problem is not None:
            raise self._failure(arguments[0], result)
        return result

    async def run(self, *arguments: str) -> CommandResult:
        """Run git in the transport's directory without a network; the caller checks its result."""
        return await self._git(self._local, arguments)

    async def _git(self, workspace: LocalWorkspace, arguments: tuple[str, ...]) -> CommandResult:
        variables = dict(_VARIABLES)
        if self._objects:
            variables["GIT_OBJECT_DIRECTORY"] = self._objects
        return await self._run(("git", "--no-pager", *arguments), variables, workspace=workspace)

    def _failure(self, command: str, result: CommandResult) -> ToolFailure:
        """The failure of a command: the gateway's, or else git's message without the gateway's address."""
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
        """The commits of the transport's refs, by name. Raises ToolFailure if there are too many."""
        options = (f"--count={MAX_REFS + 1}", "--format=%(objectname) %(refname)")
        listed = await self.run("for-each-ref", *options)
        if not listed.ok:
            raise self._failure("for-each-ref", listed)
        refs_found = _refs(listed.stdout.text())
        if len(refs_found) > MAX_REFS or listed.stdout.elided:
            raise ToolFailure(f"the remote has more than {MAX_REFS} refs; name the branches you need")
        return refs_found

    async def advertised(self, *patterns: str) -> tuple[Mapping[str, str], str]:
        """(the commits of matching refs at the remote, by name; the branch of its HEAD, or "")."""
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
        """Set refs of the clone, all or none; `changes` are (old, new) commits by ref, old "" for a new ref."""
        lines = [
            f"update {ref} {new} {old}\n" if old else f"create {ref} {new}\n" for ref, (old, new) in changes.items()
        ]
        (self.directory / "updates").write_text("".join(lines))
        command = ("sh", "-c", _UPDATE_REFS, "sh", f"{PLACE}/updates")
        result = await self._run(command, {"GIT_CONFIG_GLOBAL": "/dev/null"}, directory)
        if not result.ok:
            raise self._masked(failure("update-ref", result))

    async def local(self, *argv: str, directory: str = ".") -> None:
        """Run a command in a directory of the workspace, without the transport's variables. Raises ToolFailure."""
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
                # It mostly waits for the network.
                light=True,
            )
        )

    def _masked(self, problem: ToolFailure) -> ToolFailure:
        return type(problem)(self._mask(problem.message))


def _refs(listing: str) -> dict[str, str]:
    """Commits by ref, without the symbolic HEADs of remotes."""
    refs_by_name: dict[str, str] = {}
    for line in listing.splitlines():
        match = _REF_LINE.fullmatch(line)
        if match and not (match[2].startswith("refs/remotes/") and match[2].endswith("/HEAD")):
            refs_by_name[match[2]] = match[1]
    return refs_by_name


def _is_noise(line: str) -> bool:
    """Whether a line of `--porcelain` or progress output carries no information."""
    return not line.strip() or line.startswith(("To ", "Done", "=\t", "POST git-", "error: failed to push some refs"))
