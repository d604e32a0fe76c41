"""Runs hidden tests after the execution, outside of the workspaces of agents, who never see them.

As in SWE-bench: a clean clone at the base commit, the patch without its changes to the files of the tests, the tests'
own patch, then the required tests; or the record's own script, whose log is read. As in Harbor: tests/ is mounted at
/tests, tests/test.sh runs and writes its reward to /logs/verifier. The tests run on this machine, in the sandbox.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import uuid
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager as AsyncContext
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.adapters.git_workspace.git import Git, GitLayout
from swe_ai_fleet.adapters.git_workspace.git_dirs import FIXED_IDENTITY
from swe_ai_fleet.contract import from_message
from swe_ai_fleet.domain.command import Command, CommandResult
from swe_ai_fleet.domain.environment import Environment, Mount
from swe_ai_fleet.domain.errors import FleetError, InvalidRequest, NotFound, PatchRejected
from swe_ai_fleet.domain.task import DEFAULT_TENANT, EnvironmentSpec, RepoRef, UncommittedChanges
from swe_ai_fleet.extensions.batch import harbor
from swe_ai_fleet.extensions.batch.harbor import HarborTask
from swe_ai_fleet.extensions.batch.log_parsers import grade, read_log, recording_exit_code
from swe_ai_fleet.extensions.batch.records import Hidden, TaskRecord
from swe_ai_fleet.ports import Clone, WorkspaceProvider
from swe_ai_fleet.sandbox import LocalWorkspace, NetworkGrant, Sandbox
from swe_ai_fleet.sandbox.disk import remove_tree

SECONDS = 1800.0
"""The time limit of one command of a record's hidden tests."""
_IDS_PER_RUN = 500
_MAX_REASON_CHARS = 2_000
_LOG_BYTES = 4 * 1024 * 1024
_LIMIT_FACTOR = 8
"""The limits for the files of an image or a repository, as a multiple of those for a task's own files."""
# Applies patches to the files of an image as SWE-bench does, then runs the script.
_APPLYING = """\
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'
cd -- "$1" || exit
shift
for patch; do
    applied=
    for way in "git apply --verbose" "git apply --verbose --3way" "git apply --verbose --reject" \
        "patch --batch --forward --fuzz=5 -p1 -i"; do
        $way "/workspace/$patch" && applied=1 && break
        git checkout -- . && git clean -fd
    done
    [ "$applied" ] || { echo '>>>>> Patch Apply Failed'; exit 1; }
done
exec bash /workspace/eval.sh
"""
_FILE_HEADER = "diff --git "
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][\w.-]{0,120}", re.ASCII)
LOG = "test_output.txt"

Tests = Mapping[str, Mapping[str, Sequence[str]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Whether the hidden tests pass; None if they could not be run. `reason` is why not, or the end of the output.

    `tests` are the tests that succeeded and failed, where each has a result; `rewards` are those of a Harbor task's
    verifier.
    """

    resolved: bool | None
    reason: str = ""
    tests: Tests = field(default_factory=dict[str, Mapping[str, Sequence[str]]])
    rewards: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenTestBench:
    """Runs hidden tests, and creates the repositories of tasks that consist of files.

    Attributes:
        directory: The results, with a folder for each task.
    """

    workspaces: WorkspaceProvider
    sandbox: Sandbox
    directory: Path
    repositories: Path
    network: NetworkGrant
    variables: Mapping[str, str]
    image_credential: str = ""

    def folder(self, instance_id: str) -> Path:
        """A task's folder among the results."""
        return self.directory / folder_name(instance_id)

    async def make_repository(self, record: TaskRecord, repo: pb.RepoRef) -> None:
        """Create the repository of a task with files or with a fault; equal content gives the same commit.

        It has one commit: a history would show the code without the fault. Raises FleetError, OSError.

        Args:
            record: A task that `creates_repository`.
            repo: For a fault, the repository to which it is applied.
        """
        path = repository_path(self.repositories, record.instance_id)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        remove_tree(draft, ignore_errors=True)
        tree = draft / "tree"
        tree.mkdir(parents=True)
        try:
            if record.image and record.hidden.task is not None:
                (draft / "empty").mkdir()
                await self._copy_image(record.image, draft / "empty", tree)
            elif record.hidden.task is not None:
                await asyncio.to_thread(harbor.place_files, record.hidden.task, draft / "context", tree)
            else:
                async with self._clone(repo, EnvironmentSpec(detect=False)) as clone:
                    await clone.apply(record.fault.encode())
                    harbor.copy_folder(clone.root, "", tree, links=True, times=_LIMIT_FACTOR)
            await _commit(tree)
            if not path.exists() or await _head(path) != await _head(tree):
                remove_tree(path, ignore_errors=True)
                tree.rename(path)
        finally:
            remove_tree(draft, ignore_errors=True)

    async def _copy_image(self, image: str, empty: Path, tree: Path) -> None:
        """Copy the files of an image's working directory; `empty` becomes an empty repository for the clone."""
        await _commit(empty)
        spec = EnvironmentSpec(image=image, image_credential=self.image_credential, detect=False)
        async with self._clone(pb.RepoRef(path=str(empty)), spec) as clone:
            root = clone.environment.image
            if root is None or not root.directory.strip("/"):
                raise InvalidRequest("the image has no working directory", field="environment.container_image")
            harbor.copy_folder(Path(root.path), root.directory.strip("/"), tree, links=True, times=_LIMIT_FACTOR)

    async def evaluate(
        self, record: TaskRecord, repo: pb.RepoRef, environment: pb.EnvironmentSpec, patch: str
    ) -> Evaluation:
        """Run a task's hidden tests on a patch of its repository."""
        hidden = record.hidden
        if not patch:
            return Evaluation(resolved=False, reason="there is no patch")
        if hidden.needs:
            return Evaluation(resolved=None, reason=f"not run: needs {hidden.needs}")
        folder = self.folder(record.instance_id)
        remove_tree(folder, ignore_errors=True)
        folder.mkdir(parents=True, mode=0o700)
        detect = not (environment.disable_detection or hidden.task or hidden.script)
        spec = from_message(EnvironmentSpec, environment, detect=detect)
        try:
            async with self._clone(repo, spec) as clone:
                if hidden.task is not None:
                    return await self._run_verifier(hidden, hidden.task, clone, self._clone(repo, spec), patch, folder)
                if hidden.script:
                    return await self._run_script(record, clone, patch, folder)
                return await _run_tests(hidden, clone, patch)
        except (FleetError, OSError) as fault:
            return Evaluation(resolved=None, reason=f"not run: {fault}"[:_MAX_REASON_CHARS])

    @asynccontextmanager
    async def _clone(self, repo: pb.RepoRef, spec: EnvironmentSpec) -> AsyncGenerator[Clone]:
        """A new clone, in which nothing has run."""
        name = f"evaluate-{uuid.uuid4().hex[:12]}"
        location = RepoRef(
            location=repo.path or repo.url, ref=repo.ref, commit=repo.commit, uncommitted=UncommittedChanges.IGNORE
        )
        try:
            pinned = await self.workspaces.pin(DEFAULT_TENANT, location)
            ready = await self.workspaces.environment(pinned, spec)
            async with self.workspaces.open(name, "tests", pinned, ready) as clone:
                yield clone
        finally:
            with suppress(NotFound):
                await self.workspaces.release(name)

    @asynccontextmanager
    async def _at(
        self, clone: Clone, hidden: Hidden, mounts: Mapping[str, Path] | None = None
    ) -> AsyncGenerator[LocalWorkspace]:
        """The clone as a workspace at the path that tests expect, with further directories mounted."""
        memory_bytes, offline = (hidden.task.memory_bytes, hidden.task.offline) if hidden.task else (0, False)
        policy = self.sandbox.policy
        if not policy.level.mounts:
            raise InvalidRequest("needs bubblewrap: tests need files at fixed paths", field="sandbox")
        sandbox = self.sandbox
        if 0 < memory_bytes < policy.max_memory_bytes:
            sandbox = Sandbox(replace(policy, max_memory_bytes=memory_bytes), sandbox.slots)
        shown = {hidden.workdir or clone.mount: clone.root, **(mounts or {})}
        writable = tuple(Mount(source=str(at), target=target) for target, at in shown.items() if target != clone.mount)
        async with sandbox.workspace(
            clone.root,
            environment=clone.environment,
            writable=writable,
            network=None if offline else self.network or None,
        ) as workspace:
            yield workspace

    async def _run_script(self, record: TaskRecord, clone: Clone, patch: str, folder: Path) -> Evaluation:
        hidden, script = record.hidden, recording_exit_code(record.hidden.script)
        image = clone.environment.image
        if image is None:
            try:
                await clone.apply(patch.encode())
            except PatchRejected as fault:
                return Evaluation(resolved=False, reason=str(fault))
            async with self._at(clone, hidden) as workspace:
                result = await workspace.run(_bash('cd -- "$1" && exec bash -c "$2"', hidden.workdir, script))
        else:
            # The image's own files, with its build results; the workspace has only patches and the script.
            inputs = folder / "inputs"
            inputs.mkdir()
            for name, text in (("fault.diff", record.fault), ("patch.diff", patch), ("eval.sh", script)):
                (inputs / name).write_text(text)
            patches = () if hidden.applies else ("fault.diff", "patch.diff") if record.fault else ("patch.diff",)
            environment = replace(clone.environment, image=replace(image, directory=""))
            async with self.sandbox.workspace(
                inputs, environment=environment, network=self.network or None
            ) as workspace:
                result = await workspace.run(_bash(_APPLYING, hidden.workdir, *patches))
        log = _save_output(result, folder)
        if result.timed_out:
            return Evaluation(resolved=False, reason=_end(result))
        statuses = await asyncio.to_thread(read_log, log, hidden.log_parser)
        if statuses is None:
            return Evaluation(resolved=False, reason=_end(result))
        if hidden.expected:
            wrong = {test for test, status in hidden.expected.items() if statuses.get(test) != status}
            return Evaluation(resolved=not wrong, reason=f"not as expected: {sorted(wrong)[:20]}" if wrong else "")
        graded = grade(statuses, hidden.fail_to_pass, hidden.pass_to_pass, fail_only=hidden.fail_only)
        failed = [test for group in graded.values() for test in group["failure"]]
        return Evaluation(resolved=not failed, reason=_end(result) if failed else "", tests=graded)

    async def _run_verifier(
        self, hidden: Hidden, task: HarborTask, clone: Clone, other: AsyncContext[Clone], patch: str, folder: Path
    ) -> Evaluation:
        """Run tests/test.sh; returns its reward. Processes of the agents are gone."""
        variables = harbor.resolved_variables(task.verifier_variables, self.variables)
        tests, rewards = folder / "tests", folder / "verifier"
        try:
            await asyncio.to_thread(harbor.copy_folder, task.folder, "tests", tests)
            if not (tests / "test.sh").is_file():
                raise InvalidRequest("tests/test.sh does not exist")
            (tests / "test.sh").chmod(0o755)
            mounts = {"/tests": tests, harbor.REWARDS: rewards}
            mounts |= {f"/logs/{name}": folder / name for name in ("agent", "artifacts")}
            for mounted in mounts.values():
                mounted.mkdir(exist_ok=True)
            async with AsyncExitStack() as stack:
                patched = await stack.enter_async_context(other) if task.separate else clone
                await patched.apply(patch.encode())
                for artifact in task.artifacts if patched is not clone else ():
                    await asyncio.to_thread(_copy_artifact, patched.root, artifact, clone.root)
                async with self._at(clone, hidden, mounts) as workspace:
                    image = clone.environment.image
                    directory = task.workdir or (image.directory if image is not None else clone.mount)
                    command = _bash('cd -- "$1" && exec /tests/test.sh', directory)
                    result = await workspace.run(
                        replace(command, variables=variables, timeout_seconds=task.verifier_seconds)
                    )
            _save_output(result, folder)
            if result.timed_out:
                return Evaluation(resolved=False, reason=_end(result))
            try:
                reward_values = harbor.read_rewards(rewards)
            except InvalidRequest as fault:
                return Evaluation(resolved=None, reason=fault.message)
        finally:
            remove_tree(tests, ignore_errors=True)
        resolved = harbor.passed(reward_values)
        reason = "a reward is outside 0 to 1" if resolved is None else "" if resolved else _end(result)
        return Evaluation(resolved=resolved, reason=reason, rewards=reward_values)


def folder_name(instance_id: str) -> str:
    """A unique folder name for a task."""
    if _PLAIN_NAME.fullmatch(instance_id) and not instance_id.endswith(("~", ".")):
        return instance_id
    plain = re.sub(r"[^A-Za-z0-9_-]+", "_", instance_id)[:80]
    return f"{plain}~{hashlib.sha256(instance_id.encode()).hexdigest()[:10]}"


def repository_path(repositories: Path, instance_id: str) -> Path:
    """The path of a task's created repository."""
    return (repositories / folder_name(instance_id)).absolute()


async def _commit(tree: Path) -> None:
    git = Git(os.environ)
    await git.run("init", "--quiet", "--initial-branch=main", "--template=", str(tree), cwd=tree)
    layout = GitLayout(git_dir=tree / ".git", work_tree=tree)
    await git.run("add", "--all", "--force", "--", ".", layout=layout, cwd=tree)
    commit = ("commit", "--quiet", "--allow-empty", "--no-verify", "--message=The task")
    await git.run(*commit, layout=layout, cwd=tree, variables=FIXED_IDENTITY)


async def _head(repository: Path) -> str:
    return await Git(os.environ).commit(GitLayout(git_dir=repository / ".git"), "HEAD")


def _copy_artifact(source: Path, artifact: str, clean: Path) -> None:
    """Copy an artifact, a file or a directory, from the patched clone to a clean one; a missing one is skipped."""
    tree = harbor.Tree(source)
    try:
        kind, _, path = tree.info(artifact)
    except harbor.MissingPath:
        return
    if kind == "directory":
        harbor.copy_folder(source, "" if path == "." else path, clean / path)
    else:
        content = tree.read(artifact, limit=harbor.MOST_BYTES)
        harbor.Tree(clean).write(artifact, content.data, limit=harbor.MOST_BYTES, mode=content.mode)


def _bash(script: str, *arguments: str) -> Command:
    return Command(
        argv=("bash", "-c", script, "bash", *arguments),
        timeout_seconds=SECONDS,
        merge_stderr=True,
        output_limit=_LOG_BYTES,
    )


def _save_output(result: CommandResult, folder: Path) -> str:
    """The output of a script, also written to the task's folder."""
    text = result.stdout.text()
    (folder / LOG).write_text(text)
    return text


async def _run_tests(hidden: Hidden, clone: Clone, patch: str) -> Evaluation:
    if not all((".py" in test_id.partition("::")[0]) for test_id in (*hidden.fail_to_pass, *hidden.pass_to_pass)):
        return Evaluation(resolved=None, reason="its tests do not have pytest names")
    try:
        for change in (without_files_of(hidden.test_patch, patch), hidden.test_patch):
            if change.strip():
                await clone.apply(change.encode())
    except PatchRejected as fault:
        return Evaluation(resolved=False, reason=str(fault))
    for argv in commands(hidden, clone.environment):
        result = await clone.run(Command(argv=argv, timeout_seconds=SECONDS, merge_stderr=True))
        if not result.ok:
            return Evaluation(resolved=False, reason=_end(result))
    return Evaluation(resolved=True)


def commands(hidden: Hidden, environment: Environment) -> Generator[tuple[str, ...]]:
    """The commands to run; each must exit with 0."""
    for line in hidden.commands:
        yield ("sh", "-c", line)
    ids = (*hidden.fail_to_pass, *hidden.pass_to_pass)
    for first in range(0, len(ids), _IDS_PER_RUN):
        yield (*_pytest(environment.test_command), "-q", "--", *ids[first : first + _IDS_PER_RUN])


def without_files_of(tests: str, patch: str) -> str:
    """A patch without its changes to files that another patch changes. Both are in git's format."""
    headers = {line for line in tests.split("\n") if line.startswith(_FILE_HEADER)}
    lines: list[str] = []
    keeping = True
    # Lines end only at git's line ends, not at those of Unicode.
    for line in patch.split("\n"):
        if line.startswith(_FILE_HEADER):
            keeping = line not in headers
        if keeping:
            lines.append(line)
    text = "\n".join(lines)
    return text if keeping or not text else f"{text}\n"


def _pytest(test_command: Sequence[str]) -> tuple[str, ...]:
    """The repository's command for pytest, without its arguments."""
    if "pytest" in test_command:
        return tuple(test_command[: test_command.index("pytest") + 1])
    return ("python3", "-m", "pytest")


def _end(result: CommandResult) -> str:
    text = result.stdout.text().rstrip()[-_MAX_REASON_CHARS:]
    return f"timed out\n{text}" if result.timed_out else text
