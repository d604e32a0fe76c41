"""A commit's files as git objects have them: what is there and what the small ones say, without a checkout."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

from swe_ai_fleet.adapters.git_workspace.git import Git, Layout
from swe_ai_fleet.adapters.git_workspace.seeds import submodules_of, tags_of
from swe_ai_fleet.environments.repository_files import RepositoryFiles, is_manifest, is_read

_MAX_TESTS_READ = 40
_MAX_MANIFESTS_READ = 1000
_MAX_FILE_BYTES = 8 * 1024 * 1024
_MAX_TEST_BYTES = 64 * 1024
_MAX_BYTES = 64 * 1024 * 1024
_VERSION = re.compile(r"\d+\.\d+")
_COMMITTED = re.compile(rb"^committer .*> (\d{1,12}) [+-]\d{4}$", re.M)
_OLDEST = datetime(2010, 1, 1, tzinfo=UTC)
_RECENT = timedelta(days=180)


async def read_files(git: Git, seed: Path) -> RepositoryFiles:
    """The files of a seed's commit: two git processes, however large the repository is."""
    layout = Layout(git_dir=seed)
    listed = await git.run("ls-tree", "-r", "-z", "-l", "--full-tree", seed.name, layout=layout)
    files: dict[str, str] = {}
    readable: list[tuple[str, int]] = []
    for entry in filter(None, listed.stdout.decode("utf-8", "surrogateescape").split("\0")):
        facts, path = entry.split("\t", 1)
        mode, _, name, size = facts.split()
        files[path] = name
        if mode.startswith("100") and is_read(path):
            readable.append((path, int(size)))
    wanted = _affordable(readable)
    names = (seed.name, f"{seed.name}^{{tree}}", *(files[path] for path in wanted))
    questions = "".join(f"{name}\n" for name in names)
    answered = await git.run(
        "cat-file", "--batch", layout=layout, stdin=questions.encode(), output_limit=2 * _MAX_BYTES
    )
    contents = _split(answered.stdout)
    tags, submodules = await asyncio.to_thread(lambda: (tags_of(seed), submodules_of(seed)))
    return RepositoryFiles(
        tree=contents[1][0],
        files=files,
        texts={
            path: content.decode("utf-8", "replace") for path, (_, content) in zip(wanted, contents[2:], strict=True)
        },
        until=_until(contents[0][1], datetime.now(UTC)),
        versions_tagged=any(_VERSION.search(tag) for tag in tags),
        submodules={submodule.path: submodule.tree for submodule in submodules if submodule.tree},
    )


def _until(commit: bytes, now: datetime) -> str:
    """The first day of the month behind that of a commit; empty for one of the last months, or of no sensible time.

    A month, so that its commits share an environment.
    """
    match = _COMMITTED.search(commit.partition(b"\n\n")[0])
    seconds = int(match[1]) if match else 0
    if not _OLDEST.timestamp() < seconds < (now - _RECENT).timestamp():
        return ""
    day = datetime.fromtimestamp(seconds, UTC)
    return f"{day.year + day.month // 12}-{day.month % 12 + 1:02}-01"


def _affordable(readable: list[tuple[str, int]]) -> list[str]:
    """Those of the files that are read: manifests near the top first, some of the tests, none that is huge."""
    tests = manifests = total = 0
    wanted: list[str] = []
    for path, size in sorted(readable, key=lambda entry: (not is_manifest(entry[0]), entry[0].count("/"), entry[0])):
        manifest = is_manifest(path)
        if size > (_MAX_FILE_BYTES if manifest else _MAX_TEST_BYTES) or total + size > _MAX_BYTES:
            continue
        if (manifest and manifests >= _MAX_MANIFESTS_READ) or (not manifest and tests >= _MAX_TESTS_READ):
            continue
        manifests += manifest
        tests += not manifest
        total += size
        wanted.append(path)
    return wanted


def _split(stream: bytes) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    position = 0
    while position < len(stream):
        end = stream.index(b"\n", position)
        name, _, size = stream[position:end].decode().split(" ")
        start = end + 1
        found.append((name, stream[start : start + int(size)]))
        position = start + int(size) + 1
    return found
