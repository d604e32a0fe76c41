"""A commit's files as git objects tell them: what is there and what the small ones say, without a checkout."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from swe_ai_fleet.adapters.git_workspace.git import Git, Layout
from swe_ai_fleet.tools.tests.runners.detection import is_test

_MANIFESTS = {
    *(
        "pyproject.toml",
        "setup.py",
        "setup.cfg",
        "pytest.ini",
        "tox.ini",
        "conftest.py",
        ".gitattributes",
        ".gitmodules",
    ),
    *("package.json", "package-lock.json", "npm-shrinkwrap.json", "go.mod", "Cargo.toml", "Makefile", "makefile"),
    *("MANIFEST.in", "uv.lock", "poetry.lock", "pdm.lock", "Pipfile.lock", "GNUmakefile", ".python-version"),
}
_MAX_TESTS_READ = 40
_MAX_FILE_BYTES = 8 * 1024 * 1024
_MAX_LARGE_READ_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Paths relative to the repository's subdirectory, with the object id of each, and the text of what was read.

    `tree` identifies the whole content.
    """

    tree: str
    files: Mapping[str, str]
    texts: Mapping[str, str] = field(default_factory=dict[str, str])

    def named(self, *names: str) -> list[str]:
        """Those of the names that exist at the top."""
        return [name for name in names if name in self.files]

    def text(self, name: str) -> str:
        return self.texts.get(name, "")

    def digest(self, names: Sequence[str]) -> str:
        """A digest of the named files, whether they exist and what they hold."""
        facts = "".join(f"{name}\0{self.files.get(name, '')}\n" for name in sorted(names))
        return hashlib.sha256(facts.encode("utf-8", "surrogateescape")).hexdigest()


def is_requirements(path: str) -> bool:
    """Whether a path is a list of requirements, at the top or in `requirements/`."""
    place = PurePosixPath(path)
    here = len(place.parts) == 1 and place.name.startswith("requirements") and place.suffix in (".txt", ".in")
    return here or (len(place.parts) == 2 and place.parts[0] == "requirements" and place.suffix in (".txt", ".in"))


async def read_listing(git: Git, seed: Path, subdirectory: str) -> Listing:
    """The listing of a seed's commit: two git processes, however large the repository is."""
    layout = Layout(git_dir=seed)
    root = f"{seed.name}:{subdirectory}" if subdirectory else seed.name
    listed = await git.run("ls-tree", "-r", "-z", "-l", "--full-tree", root, layout=layout)
    files: dict[str, str] = {}
    wanted: list[str] = []
    tests = 0
    for entry in filter(None, listed.stdout.decode("utf-8", "surrogateescape").split("\0")):
        facts, path = entry.split("\t", 1)
        mode, _, name, size = facts.split()
        files[path] = name
        if not mode.startswith("100"):
            continue
        test = is_test(path)
        limit = _MAX_LARGE_READ_BYTES if test else _MAX_FILE_BYTES
        manifest = path in _MANIFESTS or PurePosixPath(path).name == "conftest.py" or is_requirements(path)
        if int(size) > limit or not (manifest or (test and tests < _MAX_TESTS_READ)):
            continue
        tests += test
        wanted.append(path)
    questions = "".join(f"{name}\n" for name in [f"{root}^{{tree}}" if not subdirectory else root])
    questions += "".join(f"{files[path]}\n" for path in wanted)
    answered = await git.run("cat-file", "--batch", layout=layout, stdin=questions.encode())
    contents = _split(answered.stdout)
    return Listing(
        tree=contents[0][0],
        files=files,
        texts={
            path: content.decode("utf-8", "replace") for path, (_, content) in zip(wanted, contents[1:], strict=True)
        },
    )


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
