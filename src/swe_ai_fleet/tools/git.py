"""Git for agents: what the repository's own configuration says can never start a program."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar

from pydantic import Field

from swe_ai_fleet.domain.command import Command, CommandResult, Output
from swe_ai_fleet.domain.tool import Risk, ToolResult
from swe_ai_fleet.tools.operation import ToolFailure, Toolkit, operation

FALLBACK_IDENTITY = ("SWE AI Fleet", "agent@swe-ai-fleet.invalid")
"""Name and email of commits in a repository that says neither."""

TIME_LIMIT_SECONDS = 60.0
MAX_FILES_LISTED = 200

# Filters (clean, smudge) stay as configured: large-file storage needs them. They run inside the sandbox like all else.
_SETTINGS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.sshCommand=false",
    "core.pager=cat",
    "core.quotePath=false",
    "color.ui=false",
    "commit.gpgSign=false",
    "gpg.program=false",
    "gpg.openpgp.program=false",
    "gpg.x509.program=false",
    "gpg.ssh.program=false",
    "log.showSignature=false",
    "diff.noprefix=false",
    "diff.mnemonicPrefix=false",
    "status.submoduleSummary=false",
    "submodule.recurse=false",
    "protocol.allow=never",
    "gc.auto=0",
    "maintenance.auto=false",
    "user.useConfigOnly=true",
    # The clone may belong to whoever made it; inside the sandbox there is no other repository to be fooled into.
    "safe.directory=*",
)
_VARIABLES = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_EDITOR": "true",
    "GIT_PAGER": "cat",
    "GIT_OPTIONAL_LOCKS": "0",
    # A list of protocols that holds none: no missing object is fetched, whatever protocol.<name>.allow says.
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "LC_ALL": "C.UTF-8",
}
# A submodule has a configuration of its own, which the settings above do not reach: git does not look into it.
_READ_ONLY_DIFF = ("--no-color", "--no-ext-diff", "--no-textconv", "--ignore-submodules=dirty")
_REF = re.compile(r"(?![-/.])[^\x00-\x20\x7f:?*\[\\]{1,250}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

Paths = Annotated[list[str], Field(description="Files or directories, relative to the repository; globs are allowed.")]
Ref = Annotated[str, Field(description="A commit, branch or tag, such as HEAD~1 or main.")]


class GitTool(Toolkit):
    """Git in the workspace's own clone; nothing here reaches a remote."""

    name: ClassVar[str] = "git"

    @operation(read_only=True)
    async def status(self) -> ToolResult:
        """Show the branch and which files are staged, changed or untracked."""
        return await self._status("git_status")

    @operation(risk=Risk.LOW)
    async def add(self, paths: Paths) -> ToolResult:
        """Stage files for the next commit; deletions are staged too."""
        if not paths:
            raise ToolFailure('name what to stage; paths=["."] stages everything')
        await self._git("add", "--", *_pathspecs(paths))
        return await self._status("git_add")

    @operation(risk=Risk.LOW)
    async def commit(self, message: Annotated[str, Field(description="The commit message.")]) -> ToolResult:
        """Commit what is staged."""
        if not message.strip() or "\0" in message:
            raise ToolFailure("a commit needs a message; say in one line what changed")
        arguments = ("commit", "--no-verify", "--no-gpg-sign", "--cleanup=whitespace", f"--message={message}")
        result = await self._run(*arguments)
        if "tell me who you are" in result.stderr.text():
            name, email = FALLBACK_IDENTITY
            result = await self._run(*arguments, settings=(f"user.name={name}", f"user.email={email}"))
        if not result.ok:
            raise _failure("commit", result)
        sha, *files = await self._committed()
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
        staged: Annotated[bool, Field(description="Compare the index instead of the files.")] = False,
        base: Annotated[str | None, Field(description="Compare with this commit; A..B compares two.")] = None,
    ) -> ToolResult:
        """Show changes of tracked files (not of untracked ones): lines added and deleted per file, then the patch."""
        options = ["--cached"] if staged else []
        revision = ["--end-of-options", _ref(base)] if base else []
        pathspecs = _pathspecs(paths)
        result = await self._git("diff", *_READ_ONLY_DIFF, "--numstat", "-p", *options, *revision, "--", *pathspecs)
        if not result.stdout.total:
            if paths:
                await self._must_match(pathspecs)
            return ToolResult(success=True, operation="git_diff", content=_no_difference(staged, base))
        counted = _numstat(result.stdout)
        return _printed("git_diff", result, counted)

    @operation(read_only=True)
    async def log(
        self,
        limit: Annotated[int, Field(description="How many commits.", ge=1, le=500)] = 20,
        path: Annotated[str | None, Field(description="Only commits that touch this path.")] = None,
        ref: Annotated[str | None, Field(description="Where to start, or A..B; HEAD unless given.")] = None,
    ) -> ToolResult:
        """List commits, newest first: hash, date, author, subject."""
        start = ["--end-of-options", _ref(ref)] if ref else []
        pathspecs = _pathspecs([path]) if path is not None else []
        form = "--format=%h %ad %an: %s"
        options = ("--no-color", "--no-show-signature", "--date=short", form, f"--max-count={limit}")
        result = await self._git("log", *options, *start, "--", *pathspecs)
        if not result.stdout.total:
            where = f" that touches {path!r}" if path is not None else ""
            raise ToolFailure(
                f"{ref or 'HEAD'} holds no commit{where}; check the path with git_status or files_list_files"
            )
        lines = result.stdout.text().splitlines()
        return _printed("git_log", result, {"commits": [line.partition(" ")[0] for line in lines]})

    @operation(read_only=True)
    async def show(
        self,
        ref: Ref,
        path: Annotated[str | None, Field(description="Show this file as it was in that commit.")] = None,
    ) -> ToolResult:
        """Show a commit with its patch, or one file (or directory listing) as it was in that commit."""
        if path is None:
            options = (*_READ_ONLY_DIFF, "--no-show-signature", "--format=medium", "--stat", "-p")
            return _printed("git_show", await self._git("show", *options, "--end-of-options", _ref(ref), "--"), {})
        (file,) = _pathspecs([path])
        inside = file.removeprefix(f"{self.workspace.mount}/").removeprefix("./").rstrip("/")
        inside = "" if inside == "." else inside
        result = await self._git("show", *_READ_ONLY_DIFF, "--end-of-options", f"{_ref(ref)}:{inside}")
        if b"\0" in result.stdout.head:
            raise ToolFailure(f"{inside} is a binary file of {result.stdout.total} bytes in {ref}")
        return _printed("git_show", result, {"path": inside, "bytes": result.stdout.total})

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
            await self._git("switch", "-q", "--no-track", f"--create={_ref(ref or '')}")
        elif paths:
            source = [_ref(ref)] if ref is not None else []
            await self._git("checkout", "-q", *source, "--", *_pathspecs(paths))
        elif ref is not None:
            await self._git("checkout", "-q", _ref(ref), "--")
        else:
            raise ToolFailure("name a ref to switch to, or paths to restore")
        return await self._status("git_checkout")

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
            await self._git("branch", *(["-d"] if delete else ["--no-track"]), "--", _ref(name))
        form = "--format=%(HEAD) %(refname:short) %(objectname:short) %(contents:subject)"
        listed = await self._git("for-each-ref", form, "refs/heads", "refs/remotes")
        return _printed("git_branch", listed, {})

    async def _status(self, operation_name: str) -> ToolResult:
        options = ("--porcelain=v1", "-z", "--branch", "--untracked-files=normal", "--ignore-submodules=dirty")
        output = (await self._git("status", *options)).stdout
        header, *entries = _records(output) or ["## "]
        lines, files = [header], list[str]()
        remaining = iter(entries)
        for entry in remaining:
            state, file = entry[:2], entry[3:]
            origin = f"{next(remaining, '')} -> " if state[0] in "RC" else ""
            lines.append(f"{state} {origin}{file}")
            files.append(file)
        branch = header.removeprefix("## ").removeprefix("No commits yet on ").partition("...")[0]
        if not files:
            lines.append("nothing to commit, working tree clean")
        return ToolResult(
            success=True,
            operation=operation_name,
            content="\n".join(lines),
            exit_code=0,
            metadata={
                "branch": "" if branch.startswith("HEAD (") else branch,
                "clean": not files,
                "files": files[:MAX_FILES_LISTED],
            },
            truncated=output.elided > 0,
        )

    async def _committed(self) -> list[str]:
        """The commit at HEAD and the files that it changed."""
        options = (
            "--format=%H",
            "-m",
            "--first-parent",
            "--name-only",
            "--no-renames",
            "-z",
            "--ignore-submodules=dirty",
        )
        shown = await self._git("show", "--no-ext-diff", "--no-show-signature", *options, "HEAD", "--")
        return [record.lstrip("\n") for record in _records(shown.stdout)]

    async def _must_match(self, pathspecs: list[str]) -> None:
        found = await self._run("ls-files", "--error-unmatch", "--", *pathspecs)
        if not found.ok:
            raise _failure("diff", found)

    async def _git(self, *arguments: str) -> CommandResult:
        result = await self._run(*arguments)
        if not result.ok:
            raise _failure(arguments[0], result)
        return result

    async def _run(self, *arguments: str, settings: tuple[str, ...] = ()) -> CommandResult:
        options = [part for setting in (*_SETTINGS, *settings) for part in ("-c", setting)]
        # Twice the operation's limit: it is the pipeline that ends an operation, and says so in the audit.
        command = Command(
            argv=("git", "--no-pager", *options, *arguments),
            variables=_VARIABLES,
            timeout_seconds=2 * TIME_LIMIT_SECONDS,
            light=True,
        )
        return await self.workspace.run(command)


def _ref(text: str) -> str:
    if not _REF.fullmatch(text):
        raise ToolFailure(
            f"{text[:80]!r} is no valid ref: use a commit hash, branch or tag such as HEAD~1 or main, without spaces, "
            "':' or a leading '-' (a file within a commit goes into `path`)"
        )
    return text


def _pathspecs(paths: list[str]) -> list[str]:
    for path in paths:
        if not path or path.startswith(":") or _CONTROL.search(path):
            raise ToolFailure(f"{path[:80]!r} is no valid path: use one relative to the repository, such as src/app.py")
    return paths


def _failure(command: str, result: CommandResult) -> ToolFailure:
    """What git said, without its hints for a person at a terminal, and what would work."""
    said = result.stderr.text().strip() or result.stdout.text().strip()
    lines = [line for line in said.splitlines() if line.strip() and not line.startswith("hint:")]
    text = "\n".join(lines).removeprefix("fatal: ").removeprefix("error: ")
    return ToolFailure(f"git {command}: {text or f'exit code {result.exit_code}'}{_advice(text)}")


def _advice(said: str) -> str:
    for needle, advice in _ADVICE:
        if needle in said:
            return f"\n{advice}"
    return ""


_ADVICE = (
    ("nothing to commit", "There is nothing to commit: change a file first, then stage it with git_add."),
    ("no changes added to commit", 'Nothing is staged: call git_add first, paths=["."] stages everything.'),
    ("nothing added to commit", 'Nothing is staged: call git_add first, paths=["."] stages everything.'),
    ("did not match any file", "git_status lists what has changed, files_list_files what there is."),
    ("ignored by one of your .gitignore", "Ignored files cannot be staged; leave them out."),
    ("does not have any commits yet", "The repository has no commit yet; git_commit makes the first."),
    ("bad revision", "git_log and git_branch show which commits and branches there are."),
    ("invalid reference", "git_log and git_branch show which commits and branches there are."),
    ("unknown revision", "git_log and git_branch show which commits and branches there are."),
    ("invalid object name", "git_log and git_branch show which commits and branches there are."),
    ("ambiguous argument", "git_log and git_branch show which commits and branches there are."),
    ("would be overwritten", "Commit your changes first, or restore those files with git_checkout(paths=[...])."),
    ("not a git repository", "The workspace holds no git repository."),
)


def _no_difference(staged: bool, base: str | None) -> str:
    if staged:
        return "No differences: nothing is staged."
    against = f" with {base}" if base else " with the index (staged=true shows what is staged)"
    return f"No differences{against}. Untracked files are not compared; git_status lists them."


def _records(output: Output) -> list[str]:
    """The records of a `-z` output; one that was cut is left out."""
    if output.elided:
        return output.head.decode("utf-8", "replace").split("\0")[:-1]
    return [record for record in output.text().split("\0") if record]


def _numstat(output: Output) -> dict[str, object]:
    """Files and line counts from the lines `added<TAB>deleted<TAB>file` before the patch."""
    files: list[str] = []
    insertions = deletions = 0
    for line in output.head.decode("utf-8", "replace").splitlines():
        added, _, rest = line.partition("\t")
        deleted, _, file = rest.partition("\t")
        if not file:
            break
        files.append(file)
        insertions += int(added) if added.isdecimal() else 0
        deletions += int(deleted) if deleted.isdecimal() else 0
    return {"files": files[:MAX_FILES_LISTED], "insertions": insertions, "deletions": deletions}


def _printed(operation_name: str, result: CommandResult, metadata: dict[str, object]) -> ToolResult:
    return ToolResult(
        success=True,
        operation=operation_name,
        content=result.stdout.text().rstrip("\n"),
        exit_code=result.exit_code,
        metadata=metadata,
        truncated=result.stdout.elided > 0,
    )
