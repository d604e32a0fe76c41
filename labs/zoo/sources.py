"""Where projects come from: package registries by their own clients, verified, made into git repositories."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import os
import re
import shutil
import sys
import tarfile
import tempfile
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labs.zoo.catalogue import Project
from labs.zoo.commands import SECONDS, Unavailable, run
from labs.zoo.locks import make_lock
from swe_ai_fleet.testing.repositories import git, make_repository

_INDEX_DEFAULT = re.compile(r"\(default\s+(https?://\S+?)\)")
_NOT_IN_A_TAG = re.compile(r"[^\w.+-]")
_SIMPLE = "application/vnd.pypi.simple.v1+json"
# apt-get locks its directory and gives up where another one has it.
_fetching = asyncio.Lock()
_APT_SOURCES = (Path("/etc/apt/sources.list"), Path("/etc/apt/sources.list.d"))


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Downloads projects into a directory that outlives the run, and unpacks them.

    Attributes:
        cache: Archives, made locks, and the tools that make them.
        without_lock: Why projects, by name, go without their lock file.
    """

    cache: Path
    without_lock: dict[str, str] = field(default_factory=dict[str, str])

    async def repository(self, project: Project, directory: Path) -> Path:
        """The project as a git repository with one commit, tagged with its version. Raises Unavailable.

        Where its lock file cannot be made (a mirror may lack what its tool asks for) it goes without, and
        `without_lock` has the reason.
        """
        archive = await self.archive(project)
        await asyncio.to_thread(_unpack, archive, directory)
        for name in ("PKG-INFO", *project.drop):
            (directory / name).unlink(missing_ok=True)
        for egg_info in directory.rglob("*.egg-info"):
            shutil.rmtree(egg_info)
        for name, text in project.add.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_text(text)
        if project.lock:
            try:
                shutil.copy(await self._lock(project, directory), directory / project.lock)
            except Unavailable as error:
                self.without_lock[project.name] = f"{project.lock} could not be made: {str(error)[-200:]}"
        return await asyncio.to_thread(_committed, directory, project.version)

    async def _lock(self, project: Project, directory: Path) -> Path:
        """The project's lock file, made once; in a copy with its tag, as versions may be made from tags."""
        kept = self.cache / "locks" / project.name / project.version / project.lock
        if not kept.exists():
            with tempfile.TemporaryDirectory(prefix="fleet-zoo-lock-") as place:
                copy = Path(place) / project.name
                await asyncio.to_thread(shutil.copytree, directory, copy, symlinks=True)
                await asyncio.to_thread(_committed, copy, project.version)
                made = await make_lock(project.lock, copy, self.cache / "tools")
                kept.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(made, kept)
        return kept

    async def archive(self, project: Project) -> Path:
        """The verified archive. Raises Unavailable."""
        path = self.cache / "archives" / project.file
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            download = {"pypi": self._pypi, "npm": self._npm, "debian": self._debian}[project.kind]
            await download(project, path)
        if (found := await asyncio.to_thread(_digest, path, project.digest)) != project.digest:
            path.unlink()
            raise Unavailable(f"{project.file} has the digest {found} and not {project.digest}")
        return path

    async def _pypi(self, project: Project, path: Path) -> None:
        index = os.environ.get("PIP_INDEX_URL") or await _said("pip", "config", "get", "global.index-url")
        if not index and (default := _INDEX_DEFAULT.search(await _said("pip", "download", "--help"))):
            index = default[1]
        page = f"{index.rstrip('/')}/{project.package}/"
        files: list[Mapping[str, Any]] = json.loads(await asyncio.to_thread(_get, page, _SIMPLE))["files"]
        url = next((file["url"] for file in files if file["filename"] == project.file), "")
        if not url:
            raise Unavailable(f"the index has no {project.file}")
        path.write_bytes(await asyncio.to_thread(_get, url, "*/*"))

    async def _npm(self, project: Project, path: Path) -> None:
        package = f"{project.package}@{project.version}"
        await run(("npm", "pack", package, "--ignore-scripts", "--pack-destination", str(path.parent)), path.parent)

    async def _debian(self, project: Project, path: Path) -> None:
        apt = self.cache / "apt"
        async with _fetching:
            options = await asyncio.to_thread(_apt_options, apt)
            if not (apt / "updated").exists():
                await run(("apt-get", *options, "update"), apt)
                (apt / "updated").touch()
            source = f"{project.package}={project.version}"
            await run(("apt-get", *options, "source", "--download-only", "--tar-only", source), apt)
        found = apt / project.file
        if not found.exists():
            raise Unavailable(f"the source package has no {project.file}")
        found.rename(path)


async def _said(*words: str) -> str:
    try:
        return (await run((sys.executable, "-m", *words), Path.cwd())).strip()
    except Unavailable:
        return ""


def _get(url: str, accept: str) -> bytes:
    request = urllib.request.Request(url, headers={"Accept": accept})
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return answer.read()
    except OSError as error:
        raise Unavailable(f"{url}: {error}") from None


def _digest(path: Path, wanted: str) -> str:
    content = path.read_bytes()
    if wanted.startswith("sha512-"):
        return f"sha512-{base64.b64encode(hashlib.sha512(content).digest()).decode()}"
    return hashlib.sha256(content).hexdigest()


def _apt_options(apt: Path) -> tuple[str, ...]:
    """apt's options for source packages from where the machine's own packages come from, in a directory of ours."""
    for name in ("lists/partial", "cache/archives/partial", "sources"):
        (apt / name).mkdir(parents=True, exist_ok=True)
    for path in (_APT_SOURCES[0], *_APT_SOURCES[1].glob("*.list"), *_APT_SOURCES[1].glob("*.sources")):
        if path.is_file():
            text = re.sub(r"(?m)^Types: .*", "Types: deb-src", path.read_text())
            (apt / "sources" / path.name).write_text(re.sub(r"(?m)^deb\s", "deb-src ", text))
    places = {
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": str(apt / "sources"),
        "Dir::State::lists": str(apt / "lists"),
        "Dir::Cache": str(apt / "cache"),
        "APT::Sandbox::User": "root",
    }
    return tuple(word for name, value in places.items() for word in ("-o", f"{name}={value}"))


def _unpack(archive: Path, directory: Path) -> None:
    """The archive without its outermost directory."""
    directory.mkdir(parents=True)
    with tarfile.open(archive) as file:
        for member in file:
            _, _, name = member.name.removeprefix("./").partition("/")
            if not name or member.islnk():
                continue
            member.name = name
            member.mode |= 0o600
            # Links that lead outside are none of the project's.
            with contextlib.suppress(tarfile.LinkOutsideDestinationError, tarfile.AbsoluteLinkError):
                file.extract(member, directory, filter="data")


def _committed(directory: Path, version: str) -> Path:
    repository = make_repository(directory)
    tag = f"v{_NOT_IN_A_TAG.sub('-', version)}"
    git(repository, "add", "--all", "--force")
    git(repository, "commit", "--quiet", "--no-verify", "--message", f"Version {tag}")
    git(repository, "tag", tag)
    return repository
