"""The fleet as an agent of Harbor: `PYTHONPATH=examples harbor run --path TASKS --agent harbor_agent:FleetAgent`.

Harbor keeps the task's environment; the fleet works on a copy of its working directory, and the winner's change is
brought back. Needs Harbor (Python 3.12 or newer) and the `fleet` program of whatever Python; both may be on PATH from
different virtual environments. Where the fleet is: FLEET_SERVER and FLEET_TOKEN, or FLEET_HOME, as for every command.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

try:
    from harbor.agents.base import BaseAgent
except ImportError:  # the logic can be read and tried without it
    BaseAgent = object

# `fleet run` ends with these where it has done its work: accepted, no candidate passed, accepted but unverified.
_ENDED = (0, 1, 6)
_COMMITTED = ("-c", "user.name=fleet", "-c", "user.email=fleet@localhost", "-c", "core.hooksPath=/dev/null")


class FleetAgent(BaseAgent):
    """Runs `fleet run` for a task; `--agent-kwarg options="--agents 3 --rounds 1"` adds to its command line."""

    def __init__(self, *args: Any, options: str = "", **kwargs: Any) -> None:
        if BaseAgent is not object:
            super().__init__(*args, **kwargs)
        self._command = (*shlex.split(os.environ.get("FLEET_PROGRAM", "fleet")), "run", "--json", "--deliberate-only")
        self._more = tuple(shlex.split(options))

    @staticmethod
    def name() -> str:
        return "swe-ai-fleet"

    def version(self) -> str | None:
        return "0.1.0"

    async def setup(self, environment: Any) -> None:
        """Nothing is installed in the environment: agents work in the fleet's own sandbox."""

    async def run(self, instruction: str, environment: Any, context: Any) -> None:
        """Let the fleet solve the task on a copy, bring the winner's change back. Raises RuntimeError."""
        where = (await environment.exec("pwd")).stdout.strip()
        with tempfile.TemporaryDirectory(prefix="fleet-harbor-") as directory:
            tree = Path(directory) / "tree"
            tree.mkdir()
            await environment.download_dir(where, tree)
            # Whatever git directory came along was the environment's to write: its settings would be ours.
            for below in [path for path in tree.rglob(".git") if path.parent.is_relative_to(tree)]:
                shutil.rmtree(below) if below.is_dir() and not below.is_symlink() else below.unlink()
            _git(tree, "init", "--quiet", "--template=")
            _git(tree, "add", "--all", "--force")
            _git(tree, *_COMMITTED, "commit", "--quiet", "--allow-empty", "--message=The task")
            told = f"What the task calls {where} is your workspace, the repository's own directory.\n\n{instruction}"
            document = await self._fleet(told, tree)
            await _bring_back(tree, document["diff"], where, environment)
        usage = document["usage"]
        context.n_input_tokens = usage["prompt_tokens"]
        context.n_output_tokens = usage["completion_tokens"]
        context.n_cache_tokens = usage["cached_tokens"]
        context.cost_usd = usage["cost"]
        context.metadata = {"execution_id": document["execution_id"], "verdict": document["verdict"]}

    async def _fleet(self, instruction: str, tree: Path) -> dict[str, Any]:
        argv = (*self._command, "--repo", str(tree), *self._more, "--", instruction)
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
        )
        try:
            out, err = await process.communicate()
        finally:
            if process.returncode is None:  # Harbor's own time was up
                process.terminate()
        if process.returncode not in _ENDED:
            raise RuntimeError(f"fleet run ended with {process.returncode}: {(out + err).decode()[-2000:]}")
        return json.loads(out)


async def _bring_back(tree: Path, diff: str, where: str, environment: Any) -> None:
    """Apply a patch here, where git is, and put what it changed into the environment."""
    if not diff.strip():
        return
    _git(tree, "apply", "--index", "-", stdin=diff)
    listed = _git(tree, "diff", "--cached", "--name-status", "--no-renames", "-z", "HEAD").split("\0")
    for status, name in zip(listed[::2], listed[1::2], strict=False):
        path, target = tree / name, f"{where.rstrip('/')}/{name}"
        quoted, above = shlex.quote(target), shlex.quote(target.rpartition("/")[0])
        if status == "D":
            await _done(environment, f"rm -f -- {quoted}")
        elif path.is_symlink():
            link = shlex.quote(str(path.readlink()))
            await _done(environment, f"mkdir -p -- {above} && ln -sfn -- {link} {quoted}")
        else:
            await _done(environment, f"mkdir -p -- {above}")
            await environment.upload_file(path, target)
            await _done(environment, f"chmod {'+x' if os.access(path, os.X_OK) else 'a-x'} -- {quoted}")


async def _done(environment: Any, command: str) -> None:
    result = await environment.exec(command)
    if result.return_code != 0:
        raise RuntimeError(f"{command}: {result.stderr or result.stdout}")


def _git(tree: Path, *argv: str, stdin: str = "") -> str:
    # Names are bytes to git; what is no UTF-8 comes through unharmed.
    ended = subprocess.run(
        ["git", *argv], cwd=tree, input=os.fsencode(stdin), capture_output=True, check=False,
        env={"PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull},
    )  # fmt: skip
    if ended.returncode:
        raise RuntimeError(f"git {argv[0]}: {os.fsdecode(ended.stderr)[-1000:]}")
    return os.fsdecode(ended.stdout)
