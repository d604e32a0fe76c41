"""Git commands in the workspace's repository, with settings that keep its configuration from running programs."""

from __future__ import annotations

import re
from collections.abc import Mapping

from swe_ai_fleet.domain.command import Command, CommandResult, Output
from swe_ai_fleet.domain.tool import Outcome, ToolResult
from swe_ai_fleet.ports import Workspace
from swe_ai_fleet.tools.definition import ToolFailure, ToolRefusal

FALLBACK_IDENTITY = ("SWE AI Fleet", "agent@swe-ai-fleet.invalid")
"""Name and email of commits in a repository that configures neither."""

TIME_LIMIT_SECONDS = 60.0
MAX_FILES_LISTED = 200

# Filters (clean, smudge) stay as configured, since large-file storage needs them; they run inside the sandbox too.
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
    # Reading must not write the index; `git diff` would, whatever GIT_OPTIONAL_LOCKS says.
    "diff.autoRefreshIndex=false",
    "diff.noprefix=false",
    "diff.mnemonicPrefix=false",
    "status.submoduleSummary=false",
    "submodule.recurse=false",
    "blame.ignoreRevsFile=",
    "rerere.enabled=false",
    "merge.autoStash=false",
    "merge.verifySignatures=false",
    "protocol.allow=never",
    "gc.auto=0",
    "maintenance.auto=false",
    "user.useConfigOnly=true",
    # The clone may belong to another user; the sandbox has no other repository that git could use by mistake.
    "safe.directory=*",
)
_VARIABLES = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_EDITOR": "true",
    "GIT_PAGER": "cat",
    "GIT_OPTIONAL_LOCKS": "0",
    # No protocol at all: missing objects are not fetched, whatever protocol.<name>.allow says.
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "LC_ALL": "C.UTF-8",
}
# Git's behaviour without a driver; git fills in the size of the markers and the names of temporary files.
_PLAIN_MERGE = "git merge-file --marker-size=%L %A %O %B"
_MAX_MERGE_DRIVERS = 50
# Git must not look into submodules: they have configurations of their own, which the settings above do not override.
READ_ONLY_DIFF = ("--no-color", "--no-ext-diff", "--no-textconv", "--ignore-submodules=dirty")
_REF = re.compile(r"(?![-/.])[^\x00-\x20\x7f:?*\[\\]{1,250}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class Repository:
    """Git at a workspace's root, always with the settings above; it never contacts a remote."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    async def status(self, operation_name: str) -> ToolResult:
        """The branch and the changed files, as the result of an operation."""
        options = ("--porcelain=v1", "-z", "--branch", "--untracked-files=normal", "--ignore-submodules=dirty")
        output = (await self.git("status", *options)).stdout
        header, *entries = records(output) or ["## "]
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

    async def committed(self) -> list[str]:
        """The commit at HEAD and the files that it changed."""
        options = ("--no-ext-diff", "--no-show-signature", "--ignore-submodules=dirty", "--no-renames")
        files = ("-m", "--first-parent", "--name-only", "-z")
        commit = await self.git("show", *options, *files, "--format=%H", "HEAD", "--")
        return [record.lstrip("\n") for record in records(commit.stdout)]

    async def identity(self) -> tuple[str, ...]:
        """The settings of a fallback committer, empty if the repository configures one."""
        for variable in ("GIT_AUTHOR_IDENT", "GIT_COMMITTER_IDENT"):
            if not (await self.run("var", variable)).ok:
                name, email = FALLBACK_IDENTITY
                return f"user.name={name}", f"user.email={email}"
        return ()

    async def merging(self, *arguments: str) -> CommandResult:
        """Run a command that merges, with a committer and without the repository's merge drivers and options."""
        drivers = await self.run("config", "-z", "--name-only", "--get-regexp", r"^merge\..*\.driver$")
        if len(names := sorted(set(records(drivers.stdout)))) > _MAX_MERGE_DRIVERS:
            raise ToolFailure(f"the repository configures more than {_MAX_MERGE_DRIVERS} merge drivers")
        overridden = dict.fromkeys(names, _PLAIN_MERGE)
        branch = (await self.run("symbolic-ref", "--short", "-q", "HEAD")).stdout.text().strip()
        if branch:
            overridden[f"branch.{branch}.mergeOptions"] = ""
        # By variables, since `-c` cannot set a driver with "=" in its name.
        variables = {"GIT_CONFIG_COUNT": str(len(overridden))}
        for number, (name, value) in enumerate(overridden.items()):
            variables |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
        return await self.run(*arguments, settings=await self.identity(), variables=variables)

    async def conflicts(self) -> list[str]:
        listed = await self.git(
            "diff", "--name-only", "--diff-filter=U", "-z", "--no-ext-diff", "--ignore-submodules=dirty"
        )
        return records(listed.stdout)

    async def commit_of(self, ref: str) -> tuple[str, int]:
        """The hash of a ref's commit, and the number of its parents. Raises ToolFailure."""
        commit = f"{checked_ref(ref)}^{{commit}}"
        parsed = await self.run("rev-parse", "--verify", "--quiet", "--end-of-options", commit)
        if not parsed.ok:
            raise ToolFailure(f"there is no commit {ref[:80]!r}; git_log and git_branch show which there are")
        sha = parsed.stdout.text().strip()
        parents = (await self.git("show", "-s", "--format=%P", "--no-show-signature", sha, "--")).stdout.text().split()
        return sha, len(parents)

    async def must_match(self, paths: list[str]) -> None:
        """Raise ToolFailure for a path that matches no tracked file."""
        listing = await self.run("ls-files", "--error-unmatch", "--", *paths)
        if not listing.ok:
            raise failure("diff", listing)

    async def git(self, *arguments: str) -> CommandResult:
        """Run one git command. Raises ToolFailure with git's message if it fails."""
        result = await self.run(*arguments)
        if not result.ok:
            raise failure(arguments[0], result)
        return result

    async def run(
        self, *arguments: str, settings: tuple[str, ...] = (), variables: Mapping[str, str] | None = None
    ) -> CommandResult:
        """Run one git command; the caller checks its result."""
        options = [part for setting in (*_SETTINGS, *settings) for part in ("-c", setting)]
        # Twice the operation's limit, so that the pipeline ends the operation and records that in the audit.
        command = Command(
            argv=("git", "--no-pager", *options, *arguments),
            variables={**_VARIABLES, **(variables or {})},
            timeout_seconds=2 * TIME_LIMIT_SECONDS,
            light=True,
        )
        return await self._workspace.run(command)


def checked_ref(text: str) -> str:
    """The ref, unchanged. Raises ToolFailure for texts that git could interpret otherwise, ToolRefusal for options."""
    if text.startswith("-"):
        raise ToolRefusal(f"{text[:80]!r} is an option, not a ref; give a commit hash, branch or tag such as HEAD~1")
    if not _REF.fullmatch(text):
        raise ToolFailure(
            f"{text[:80]!r} is not a ref: use a commit hash, branch or tag such as HEAD~1 or main, without spaces, "
            "':' or a leading '-' (a file within a commit goes into `path`)"
        )
    return text


def pathspecs(paths: list[str]) -> list[str]:
    """The paths, unchanged. Raises ToolFailure for pathspec magic and control characters."""
    for path in paths:
        if not path or path.startswith(":") or _CONTROL.search(path):
            raise ToolFailure(
                f"{path[:80]!r} is not a valid path: use one relative to the repository, such as src/app.py"
            )
    return paths


def failure(command: str, result: CommandResult) -> ToolFailure:
    """The failure of a git command: git's message without its hints for a terminal, and advice."""
    output = result.stderr.text().strip() or result.stdout.text().strip()
    lines = [line for line in output.splitlines() if line.strip() and not line.startswith("hint:")]
    text = "\n".join(lines).removeprefix("fatal: ").removeprefix("error: ")
    # Agents must neither read nor change files outside the workspace's repository.
    outside = "is outside repository" in text or "Invalid path '/" in text
    kind = ToolRefusal if outside else ToolFailure
    return kind(f"git {command}: {text or f'exit code {result.exit_code}'}{_advice(text)}")


def _advice(message: str) -> str:
    return next((f"\n{advice}" for needles, advice in _ADVICE.items() if any(map(message.__contains__, needles))), "")


_ADVICE = {
    ("nothing to commit",): "There is nothing to commit: change a file first, then stage it with git_add.",
    ("no changes added to commit", "nothing added to commit"): (
        'Nothing is staged: call git_add first, paths=["."] stages everything.'
    ),
    ("did not match any file",): "git_status lists what has changed, files_list_files what there is.",
    ("ignored by one of your .gitignore",): "Ignored files cannot be staged; leave them out.",
    ("does not have any commits yet",): "The repository has no commit yet; git_commit makes the first.",
    ("bad revision", "invalid reference", "unknown revision", "invalid object name", "ambiguous argument"): (
        "git_log and git_branch show which commits and branches there are."
    ),
    ("would be overwritten",): "Commit your changes first, or restore those files with git_checkout(paths=[...]).",
    ("No stash entries found",): "Nothing is stashed; git_stash(action='push') stashes changes.",
    ("MERGE_HEAD missing",): "No merge is going on.",
    ("no cherry-pick or revert in progress",): "No revert is going on.",
    ("have not concluded your merge",): "Finish it with git_add and git_commit, or give it up with abort=true.",
    ("unmerged files",): "Resolve them, stage them with git_add and commit, or give up with abort=true.",
    ("not possible because you have",): "Resolve conflicts first, or give up with git_merge(abort=true).",
    ("your local changes",): "Commit your changes first, or put them aside with git_stash(action='push').",
    ("Invalid path '/", "is outside repository"): "Give a path relative to the repository, such as src/app.py.",
    ("couldn't find remote ref",): ("The remote has no such branch; git_fetch without branches shows which there are."),
    ("refusing to merge unrelated histories",): "The two branches have no commit in common.",
    ("stale info",): "The remote's branch has moved: call git_fetch, look at what has changed, and push again.",
    ("not a git repository",): "The workspace has no git repository.",
}


def records(output: Output) -> list[str]:
    """The records of a `-z` output, without one that was cut."""
    if output.elided:
        return output.head.decode("utf-8", "replace").split("\0")[:-1]
    return [record for record in output.text().split("\0") if record]


def printed(operation_name: str, result: CommandResult, metadata: dict[str, object]) -> ToolResult:
    return ToolResult(
        success=True,
        operation=operation_name,
        content=result.stdout.text().rstrip("\n"),
        exit_code=result.exit_code,
        metadata=metadata,
        truncated=result.stdout.elided > 0,
    )


_IDS = re.compile(r"^(?:diff --git .*\n)?index [0-9a-f]+\.\.[0-9a-f]+.*\n(?=--- )", re.MULTILINE)


def conflict(operation_name: str, result: CommandResult, files: list[str], ending: str) -> ToolResult:
    """The result of a merge with conflicts: the files, and how to continue."""
    listed = "\n".join(files[:MAX_FILES_LISTED])
    return ToolResult(
        success=False,
        operation=operation_name,
        outcome=Outcome.ERROR,
        error=(
            f"conflicts in {len(files)} file{'' if len(files) == 1 else 's'}:\n{listed}\n"
            f"Edit them until no <<<<<<< marker is left, stage them with git_add; {ending}."
        ),
        exit_code=result.exit_code,
        metadata={"conflicts": files[:MAX_FILES_LISTED]},
    )


def no_difference(staged: bool, base: str | None) -> str:
    """The text for an empty diff, with the two sides that were compared."""
    if staged:
        return "No differences: nothing is staged."
    against = f" with {base}" if base else " with the index (staged=true shows what is staged)"
    return f"No differences{against}. Untracked files are not compared; git_status lists them."


def without_untouched(text: str) -> str:
    """A diff without binary files that have not changed.

    Git lists a binary file whose time differs from the index, which read-only operations must not update; the patch has
    no section for it.
    """
    if not text.startswith("-\t-\t") and "\n-\t-\t" not in text:
        return text
    counts, gap, patch = text.partition("\n\n")
    sections = [
        line
        for line in counts.split("\n")
        if not (file := line.removeprefix("-\t-\t")) or file == line or "=>" in file or f" b/{file}\n" in patch
    ]
    return "\n".join(sections) + gap + patch if sections else ""


def without_ids(text: str) -> str:
    """A diff without the redundant lines before a file's `---`: its name twice, and ids of blobs."""
    return _IDS.sub("", text)


def numstat(text: str) -> dict[str, object]:
    """Files and line counts from the lines `added<TAB>deleted<TAB>file` before the patch."""
    files: list[str] = []
    insertions = deletions = 0
    for line in text.splitlines():
        added, _, rest = line.partition("\t")
        deleted, _, file = rest.partition("\t")
        if not file:
            break
        files.append(file)
        insertions += int(added) if added.isdecimal() else 0
        deletions += int(deleted) if deleted.isdecimal() else 0
    return {"files": files[:MAX_FILES_LISTED], "insertions": insertions, "deletions": deletions}
