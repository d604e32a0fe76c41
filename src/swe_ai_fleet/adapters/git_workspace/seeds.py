"""Seeds: one commit and its ancestry, and not one object more. Clones read their history from there."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

from swe_ai_fleet.adapters.git_workspace.directories import appearing, finished
from swe_ai_fleet.adapters.git_workspace.git import Git, GitFailed, Layout
from swe_ai_fleet.adapters.git_workspace.locks import locked
from swe_ai_fleet.adapters.git_workspace.skeleton import History, write_git_dir
from swe_ai_fleet.domain.errors import PreconditionFailed

_PACK_TIMEOUT_SECONDS = 1800.0


class Seeds:
    """The seeds of one node, below `home`: `<repository>/<commit>`, bare, read-only for everyone but us."""

    def __init__(self, home: Path, git: Git) -> None:
        self._home = home
        self._git = git

    def path(self, repository_key: str, commit: str) -> Path:
        return self._home / repository_key / commit

    def find(self, repository_key: str, commit: str) -> Path | None:
        """The seed, if it is there; looking for it counts as use."""
        seed = self.path(repository_key, commit)
        try:
            os.utime(seed)
        except FileNotFoundError:
            return None
        return seed

    async def plant(self, repository_key: str, commit: str, source: History, *, over: Path | None = None) -> Path:
        """The seed of a commit, made from a repository that holds it; `over` is the seed of an ancestor, to share with.

        Raises PreconditionFailed where it is broken.
        """
        seed = self.find(repository_key, commit)
        if seed is not None:
            return seed
        seed = self.path(repository_key, commit)
        seed.parent.mkdir(parents=True, exist_ok=True)
        async with locked(seed.parent / ".lock"):
            if seed.is_dir():
                return seed
            async with appearing(seed) as draft:
                await finished(asyncio.to_thread(write_git_dir, draft, head=commit, history=source))
                wanted = f"{commit}\n"
                if over is not None:
                    await finished(asyncio.to_thread(_share_packs, over, draft))
                    wanted += f"^{over.name}\n"
                try:
                    await self._git.run(
                        *("pack-objects", "--quiet", "--revs", "--delta-base-offset", "objects/pack/pack"),
                        layout=Layout(git_dir=draft),
                        stdin=wanted.encode(),
                        timeout_seconds=_PACK_TIMEOUT_SECONDS,
                    )
                except GitFailed as error:
                    raise PreconditionFailed(
                        f"the history of {commit[:12]} is incomplete: {error.message[:500]}", field="repo"
                    ) from error
                (draft / "objects/info/alternates").unlink()
        return seed


def _share_packs(seed: Path, draft: Path) -> None:
    """Have one seed's packs in another under the same names; either may be removed without the other."""
    for pack in (seed / "objects/pack").iterdir():
        shared = draft / "objects/pack" / pack.name
        try:
            shared.hardlink_to(pack)
        except OSError:
            shutil.copyfile(pack, shared)  # a file system without links


def history_of(seed: Path) -> History:
    """A seed as the source of objects for clones."""
    shallow = seed / "shallow"
    return History(
        objects=seed / "objects",
        object_format="sha256" if len(seed.name) == 64 else "sha1",
        shallow=shallow.read_bytes() if shallow.exists() else b"",
    )
