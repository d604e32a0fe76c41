"""Git in the workspace's clone, and access to granted remotes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from swe_ai_fleet.domain.command import CommandResult
from swe_ai_fleet.domain.task import Role
from swe_ai_fleet.domain.tool import FOR_PROGRAMS, Risk, ToolResult
from swe_ai_fleet.ports import Workspace
from swe_ai_fleet.tools.definition import ToolFailure, ToolRefusal
from swe_ai_fleet.tools.git.gateway import GrantedRepository, checked_branch, shown_url
from swe_ai_fleet.tools.git.gateway import RemoteGrant as RemoteGrant
from swe_ai_fleet.tools.git.remotes import GitRemotes
from swe_ai_fleet.tools.git.repository import (
    MAX_FILES_LISTED,
    READ_ONLY_DIFF,
    Repository,
    checked_ref,
    conflict,
    failure,
    no_difference,
    numstat,
    pathspecs,
    printed,
    without_ids,
    without_untouched,
)
from swe_ai_fleet.tools.operation import Toolkit, operation
from swe_ai_fleet.tools.pipeline import Pipeline

Paths = Annotated[list[str], Field(description="Files, directories or globs.")]
_REMOTE_SECONDS = 900.0
"""Above the limit of GitRemotes, which therefore ends an operation first, with an explanation."""
_PUSHING = frozenset({Role.DEV, Role.DEVOPS})

Remote = Annotated[str, Field(description="Name of a granted remote.")]
Ref = Annotated[str, Field(description="A commit, branch or tag, such as HEAD~1 or main.")]


class GitTool(Toolkit):
    """Git in the workspace's own clone.

    Args:
        workspace: The clone: an open workspace, or the path of a directory.
        remotes: The remote repositories for clone, fetch, pull and push; without it these are refused.
    """

    name: ClassVar[str] = "git"

    def __init__(
        self,
        workspace: Workspace | Path | str,
        pipeline: Pipeline | None = None,
        *,
        remotes: GitRemotes | None = None,
    ) -> None:
        super().__init__(workspace, pipeline)
        self._repository = Repository(self.workspace)
        self._remotes = remotes

    @operation(read_only=True)
    async def status(self) -> ToolResult:
        """Show the branch and which files are staged, changed or untracked."""
        return await self._repository.status("git_status")

    @operation(risk=Risk.LOW)
    async def add(self, paths: Paths) -> ToolResult:
        """Stage files for the next commit; deletions are staged too."""
        if not paths:
            raise ToolFailure('name what to stage; paths=["."] stages everything')
        await self._repository.git("add", "--", *pathspecs(paths))
        return await self._repository.status("git_add")

    @operation(risk=Risk.LOW)
    async def commit(self, message: Annotated[str, Field(description="The commit message.")]) -> ToolResult:
        """Commit what is staged."""
        if not message.strip() or "\0" in message:
            raise ToolFailure("a commit needs a message; say in one line what changed")
        arguments = ("commit", "--no-verify", "--no-gpg-sign", "--cleanup=whitespace", f"--message={message}")
        result = await self._repository.run(*arguments, settings=await self._repository.identity())
        if not result.ok:
            raise failure("commit", result)
        sha, *files = await self._repository.committed()
        return ToolResult(
            success=True,
            operation="git_commit",
            content=result.stdout.text().strip(),
            exit_code=0,
            metadata={"commit_sha": sha, "files": files[:MAX_FILES_LISTED]},
        )

    @operation(read_only=True)
    async def diff(
        self,
        paths: Paths = [],  # noqa: B006 - never changed; a list is what the schema shows
        staged: Annotated[
            bool,
            Field(description="Compare the index instead of the files.", json_schema_extra={FOR_PROGRAMS: True}),
        ] = False,
        base: Annotated[str | None, Field(description="A commit to compare with, or A..B.")] = None,
    ) -> ToolResult:
        """Show the changes of tracked files: lines added and deleted per file, then the patch."""
        options = ["--cached"] if staged else []
        revision = ["--end-of-options", checked_ref(base)] if base else []
        specs = pathspecs(paths)
        result = await self._repository.git(
            "diff", *READ_ONLY_DIFF, "--numstat", "-p", "-U1", *options, *revision, "--", *specs
        )
        shown = printed("git_diff", result, {})
        if not (text := without_untouched(shown.content)):
            if paths:
                await self._repository.must_match(specs)
            return ToolResult(success=True, operation="git_diff", content=no_difference(staged, base))
        return replace(shown, content=without_ids(text), metadata=numstat(text))

    @operation(read_only=True)
    async def log(
        self,
        limit: Annotated[int, Field(description="How many commits.", ge=1, le=500)] = 20,
        path: Annotated[str | None, Field(description="Only commits that touch this path.")] = None,
        ref: Annotated[str | None, Field(description="Where to start, or A..B; HEAD unless given.")] = None,
    ) -> ToolResult:
        """List commits, newest first: hash, date, author, subject."""
        start = ["--end-of-options", checked_ref(ref)] if ref else []
        specs = pathspecs([path]) if path is not None else []
        form = "--format=%h %ad %an: %s"
        options = ("--no-color", "--no-show-signature", "--date=short", form, f"--max-count={limit}")
        result = await self._repository.git("log", *options, *start, "--", *specs)
        if not result.stdout.total:
            where = f" that touches {path!r}" if path is not None else ""
            raise ToolFailure(
                f"{ref or 'HEAD'} contains no commit{where}; check the path with git_status or files_list_files"
            )
        lines = result.stdout.text().splitlines()
        return printed("git_log", result, {"commits": [line.partition(" ")[0] for line in lines]})

    @operation(read_only=True)
    async def show(
        self,
        ref: Ref,
        path: Annotated[str | None, Field(description="Show this file as it was in that commit.")] = None,
    ) -> ToolResult:
        """Show a commit with its patch, or one file (or directory listing) as it was in that commit."""
        if path is None:
            options = (*READ_ONLY_DIFF, "--no-show-signature", "--format=medium", "--stat", "-p")
            return printed(
                "git_show", await self._repository.git("show", *options, "--end-of-options", checked_ref(ref), "--"), {}
            )
        (file,) = pathspecs([path])
        inside = file.removeprefix(f"{self.workspace.mount}/").removeprefix("./").rstrip("/")
        inside = "" if inside == "." else inside
        result = await self._repository.git("show", *READ_ONLY_DIFF, "--end-of-options", f"{checked_ref(ref)}:{inside}")
        if b"\0" in result.stdout.head:
            raise ToolFailure(f"{inside} is a binary file of {result.stdout.total} bytes in {ref}")
        return printed("git_show", result, {"path": inside, "bytes": result.stdout.total})

    @operation(risk=Risk.MEDIUM)
    async def checkout(
        self,
        ref: Annotated[
            str | None, Field(description="The branch or commit to switch to, or to take paths from.")
        ] = None,
        paths: Annotated[list[str] | None, Field(description="Restore only these; discards their changes.")] = None,
        create: Annotated[bool, Field(description="Create the branch `ref` at HEAD and switch to it.")] = False,
    ) -> ToolResult:
        """Switch to a branch or commit, or put files back as they are in a commit (without ref: in the index)."""
        if create and (ref is None or paths):
            raise ToolFailure("create=true takes the new branch's name as ref, and no paths")
        if create:
            await self._repository.git("switch", "-q", "--no-track", f"--create={checked_ref(ref or '')}")
        elif paths:
            source = [checked_ref(ref)] if ref is not None else []
            await self._repository.git("checkout", "-q", *source, "--", *pathspecs(paths))
        elif ref is not None:
            await self._repository.git("checkout", "-q", checked_ref(ref), "--")
        else:
            raise ToolFailure("name a ref to switch to, or paths to restore")
        return await self._repository.status("git_checkout")

    @operation(risk=Risk.LOW)
    async def branch(
        self,
        name: Annotated[str | None, Field(description="The branch to create at HEAD (or to delete).")] = None,
        delete: Annotated[bool, Field(description="Delete the branch; it must be merged.")] = False,
    ) -> ToolResult:
        """List branches (without arguments), create one without switching to it, or delete one."""
        if delete and name is None:
            raise ToolFailure("name the branch to delete")
        if name is not None:
            await self._repository.git("branch", *(["-d"] if delete else ["--no-track"]), "--", checked_ref(name))
        form = "--format=%(HEAD) %(refname:short) %(objectname:short) %(contents:subject)"
        listed = await self._repository.git("for-each-ref", form, "refs/heads", "refs/remotes")
        return printed("git_branch", listed, {})

    @operation(read_only=True)
    async def blame(
        self,
        path: Annotated[str, Field(description="File, relative to the repository.")],
        start_line: Annotated[int, Field(description="First line, from 1.", ge=1)] = 1,
        end_line: Annotated[int | None, Field(description="Last line; the file's if left out.", ge=1)] = None,
    ) -> ToolResult:
        """Show for each line of a file which commit, author and day it comes from."""
        if end_line is not None and end_line < start_line:
            raise ToolFailure(f"end_line {end_line} lies before start_line {start_line}")
        lines = f"-L{start_line},{end_line or ''}"
        result = await self._repository.git(
            "blame", "--no-textconv", "--no-progress", "--date=short", lines, "--", *pathspecs([path])
        )
        return printed("git_blame", result, {"path": path})

    @operation(risk=Risk.MEDIUM)
    async def stash(
        self,
        action: Annotated[Literal["push", "pop", "list", "drop"], Field(description="What to do.")] = "push",
        message: Annotated[str, Field(description="With push: what the changes are.", max_length=500)] = "",
    ) -> ToolResult:
        """Put changes of tracked files aside (push), bring the last ones back (pop) or forget them (drop)."""
        if message and (action != "push" or not message.isprintable()):
            raise ToolFailure("a message is one line, and goes with action='push'")
        match action:
            case "list":
                listed = await self._repository.git("stash", "list", "--no-show-signature", "--format=%gd: %gs")
                return printed("git_stash", listed, {})
            case "drop":
                return printed("git_stash", await self._repository.git("stash", "drop", "-q"), {})
            case "push":
                described = [f"--message={message}"] if message else []
                result = await self._repository.merging("stash", "push", *described)
            case "pop":
                result = await self._repository.merging("stash", "pop")
                if not result.ok and (files := await self._repository.conflicts()):
                    return conflict("git_stash", result, files, "the stash is kept until git_stash(action='drop')")
        if not result.ok:
            raise failure("stash", result)
        if "No local changes" in result.stdout.text():
            raise ToolFailure("no tracked file has changed; there is nothing to put aside")
        return await self._repository.status("git_stash")

    @operation(risk=Risk.MEDIUM)
    async def merge(
        self,
        ref: Annotated[str | None, Field(description="The branch or commit to merge into the current branch.")] = None,
        no_commit: Annotated[bool, Field(description="Stage the result, but do not commit it.")] = False,
        abort: Annotated[bool, Field(description="Give up a merge that stopped at conflicts.")] = False,
    ) -> ToolResult:
        """Merge a branch. Conflicts are left in the files, marked, and listed."""
        if abort:
            return await self._abort("merge")
        if ref is None:
            raise ToolFailure("name the branch or commit to merge")
        return await self._merge(ref, ["--no-commit", "--no-ff"] if no_commit else ["--commit", "--ff"])

    @operation(risk=Risk.MEDIUM)
    async def revert(
        self,
        ref: Annotated[str | None, Field(description="The commit whose changes to take back.")] = None,
        no_commit: Annotated[bool, Field(description="Stage the result, but do not commit it.")] = False,
        abort: Annotated[bool, Field(description="Give up a revert that stopped at conflicts.")] = False,
    ) -> ToolResult:
        """Take back what one commit changed, by a new commit; of a merge, what it brought into its first parent."""
        if abort:
            return await self._abort("revert")
        if ref is None:
            raise ToolFailure("name the commit to revert")
        sha, parents = await self._repository.commit_of(ref)
        options = ["--no-edit", "--no-gpg-sign", "--strategy=ort", *(["--mainline=1"] if parents > 1 else [])]
        result = await self._repository.merging("revert", *options, *(["--no-commit"] if no_commit else []), sha)
        return await self._merged("revert", result)

    @operation(risk=Risk.MEDIUM, network=True, time_limit_seconds=_REMOTE_SECONDS)
    async def clone(
        self,
        url: Annotated[str, Field(description="URL of the repository (https), or the name of a granted remote.")],
        directory: Annotated[str, Field(description="Where to; empty, or not there yet.")] = ".",
        branch: Annotated[str | None, Field(description="Branch to check out; else the remote's default.")] = None,
        depth: Annotated[int | None, Field(description="Only this many commits of one branch.", ge=1)] = None,
    ) -> ToolResult:
        """Clone a remote repository into an empty directory of the workspace, without its submodules."""
        remotes, target = self._granted(url)
        name = checked_branch(branch) if branch is not None else None
        return await remotes.clone(self.workspace, target, directory, name, depth)

    @operation(risk=Risk.MEDIUM, network=True, time_limit_seconds=_REMOTE_SECONDS)
    async def fetch(
        self,
        remote: Remote = "origin",
        branches: Annotated[list[str], Field(description="Only these; all if empty.", max_length=100)] = [],  # noqa: B006
        tags: Annotated[bool, Field(description="Fetch tags too.")] = False,
    ) -> ToolResult:
        """Bring `<remote>/<branch>` up to date with the remote; your own branches and files stay as they are."""
        remotes, target = self._granted(remote)
        names = [checked_branch(branch) for branch in branches]
        return await remotes.fetch(self.workspace, target, names, tags=tags)

    @operation(risk=Risk.MEDIUM, network=True, time_limit_seconds=_REMOTE_SECONDS)
    async def pull(
        self,
        remote: Remote = "origin",
        branch: Annotated[str | None, Field(description="Of the remote; else the current branch's name.")] = None,
        ff_only: Annotated[bool, Field(description="Fail rather than make a merge commit.")] = False,
    ) -> ToolResult:
        """Fetch a branch and merge it into the current one. Conflicts are left in the files, marked, and listed."""
        remotes, target = self._granted(remote)
        name = checked_branch(branch) if branch is not None else await self._current_branch()
        fetched = await remotes.fetch(self.workspace, target, [name], tags=False)
        how = ["--commit", "--ff-only" if ff_only else "--ff"]
        merged = await self._merge(f"refs/remotes/{target.name}/{name}", how, "pull")
        content = f"{fetched.content}\n{merged.content}" if merged.content else fetched.content
        return replace(merged, content=content, metadata={**fetched.metadata, **merged.metadata})

    @operation(risk=Risk.HIGH, network=True, time_limit_seconds=_REMOTE_SECONDS, roles=_PUSHING)
    async def push(
        self,
        remote: Remote = "origin",
        branch: Annotated[str | None, Field(description="Your branch; the current one if left out.")] = None,
        to: Annotated[str | None, Field(description="Name of the branch at the remote; the same if left out.")] = None,
        force_with_lease: Annotated[
            bool, Field(description="Replace the remote's branch, provided it is where your last fetch saw it.")
        ] = False,
    ) -> ToolResult:
        """Push a branch. Only granted branches can be pushed; nothing is ever deleted at the remote."""
        remotes, target = self._granted(remote)
        name = checked_branch(branch) if branch is not None else await self._current_branch()
        there = checked_branch(to) if to is not None else name
        return await remotes.push(self.workspace, target, name, there, force=force_with_lease)

    def recorded(self, arguments: Mapping[str, object]) -> Mapping[str, object]:
        return {
            name: shown_url(value) if name in ("url", "remote") and isinstance(value, str) else value
            for name, value in arguments.items()
        }

    def _granted(self, remote: str) -> tuple[GitRemotes, GrantedRepository]:
        if self._remotes is None or not self._remotes.grants:
            raise ToolRefusal(
                "no remote repository is granted to this run; work in the clone that is there (whoever runs the "
                "fleet grants remotes by GitTool(remotes=GitRemotes(sandbox, [RemoteGrant(...)])))"
            )
        return self._remotes, self._remotes.target(remote)

    async def _current_branch(self) -> str:
        head = await self._repository.run("symbolic-ref", "--short", "-q", "HEAD")
        if not head.ok:
            raise ToolFailure("HEAD is on no branch; name the branch, or make one with git_checkout(create=true)")
        return checked_branch(head.stdout.text().strip())

    async def _merge(self, ref: str, how: list[str], command: str = "merge") -> ToolResult:
        await self._repository.commit_of(ref)
        options = ("--no-edit", "--no-gpg-sign", "--no-verify", "--no-stat", "--strategy=ort", "--no-squash")
        return await self._merged(command, await self._repository.merging("merge", *options, *how, checked_ref(ref)))

    async def _abort(self, command: str) -> ToolResult:
        result = await self._repository.merging(command, "--abort")
        if not result.ok:
            raise failure(command, result)
        return await self._repository.status(f"git_{command}")

    async def _merged(self, command: str, result: CommandResult) -> ToolResult:
        if result.ok:
            return await self._repository.status(f"git_{command}")
        files = await self._repository.conflicts()
        if not files or "CONFLICT" not in result.stdout.text() + result.stderr.text():
            raise failure(command, result)
        undo = "merge" if command == "pull" else command
        ending = f"git_commit finishes, git_{undo}(abort=true) gives up instead"
        return conflict(f"git_{command}", result, files, ending)
