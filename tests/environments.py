"""Repositories whose environments are built in the real sandbox, and what is asked of them."""

from __future__ import annotations

import atexit
import base64
import hashlib
import io
import json
import os
import sys
import tarfile
import tempfile
import threading
import zipfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from swe_ai_fleet.adapters.git_workspace import GitClone, GitWorkspaceProvider, SetupPolicy
from swe_ai_fleet.domain.command import Command, CommandResult
from swe_ai_fleet.domain.environment import Environment, Mount
from swe_ai_fleet.domain.task import EnvironmentSpec, PinnedRepository, RepoRef
from swe_ai_fleet.sandbox import IsolationLevel, NetworkGrant, Sandbox, SandboxPolicy
from swe_ai_fleet.testing.repositories import make_repository

# A test run by the pytest that runs this; the plug-ins of this project would take most of the time of a small suite.
WITH_PYTEST = Environment(
    mounts=tuple(Mount(source=prefix, target=prefix) for prefix in sorted({sys.prefix, sys.base_prefix})),
    test_command=(f"{sys.prefix}/bin/python", "-m", "pytest"),
    variables={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
)
_TOOLS = "FLEET_TEST_TOOLS"
OFFLINE = SetupPolicy(network=NetworkGrant(hosts=()), variables={"PIP_NO_INDEX": "1", "SETUP_ONLY": "s3cret"})
UNITTEST = """
import unittest
import {module}

class T(unittest.TestCase):
    def test_it(self):
        self.assertEqual({module}.answer, {answer})
"""
# A build backend in the repository itself: an editable installation that needs nothing from anywhere.
BACKEND = """
import os, zipfile
def build_editable(directory, config_settings=None, metadata_directory=None):
    name = "project-1.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(directory, name), "w") as wheel:
        wheel.writestr("project.pth", os.path.abspath("src"))
        wheel.writestr("project-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: project\\nVersion: 1.0\\n")
        wheel.writestr("project-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: any\\n")
        wheel.writestr("project-1.0.dist-info/RECORD", "")
    return name
build_wheel = build_editable
"""
PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "project"
version = "1.0"
"""


def wheel(name: str, answer: int, version: str = "1.0", **more: str) -> bytes:
    """A package of one module that knows an answer, and of `more` files."""
    about = f"{name}-{version}.dist-info"
    files = more or {f"{name}.py": f"answer = {answer}\n"}
    files |= {
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for path, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(content.encode())}\n"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, content in (*files.items(), (f"{about}/RECORD", record)):
            archive.writestr(path, content)
    return buffer.getvalue()


REQUIREMENTS: dict[str, str | bytes] = {
    "requirements.txt": "./wheels/thing-1.0-py3-none-any.whl\n",
    "wheels/thing-1.0-py3-none-any.whl": wheel("thing", 7),
    "tests/test_thing.py": UNITTEST.format(module="thing", answer=7),
}


def mask(text: str) -> str:
    return text.replace("s3cret", "***")


@cache
def shared_tools() -> Path:
    """One copy of pytest, ruff and pip for the homes of a run: each of its own takes seconds.

    Workers of a run find the place in a variable that they have from the process that started them.
    """
    if place := os.environ.get(_TOOLS):
        return Path(place)
    directory = tempfile.TemporaryDirectory(prefix="fleet-tools-")
    atexit.register(directory.cleanup)
    os.environ[_TOOLS] = directory.name
    return Path(directory.name)


def home_at(home: Path) -> Path:
    """The home of a node, made where there is none, with tools that it shares."""
    home.mkdir(parents=True, exist_ok=True)
    if not (home / "tools").exists():
        (home / "tools").symlink_to(shared_tools())
    return home


def provider_at(
    root: Path, home: str = "home", *, level: IsolationLevel | None = None, **options: Any
) -> GitWorkspaceProvider:
    """A node whose callers may name any repository below `root`."""
    sandbox = options.pop("sandbox", None) or Sandbox(SandboxPolicy(level=level) if level else SandboxPolicy())
    place = home_at(root / home)
    return GitWorkspaceProvider(place, sandbox, allowed_roots=(root,), allow_local_paths=True, **options)


def make_provider(root: Path, setup: SetupPolicy = OFFLINE, **options: Any) -> GitWorkspaceProvider:
    """A node that builds environments."""
    return provider_at(root, setup=setup, mask=mask, **options)


@asynccontextmanager
async def opened(
    root: Path, level: IsolationLevel | None = None, files: Mapping[str, str | bytes] | None = None
) -> AsyncGenerator[tuple[GitWorkspaceProvider, GitClone]]:
    """A clone of a new repository in an environment that nobody builds, and the node that it is on."""
    provider = make_provider(root, level=level)
    repository = await pin(provider, root, files or {"README": "x\n"})
    environment = await provider.environment(repository, EnvironmentSpec(detect=False))
    async with provider.open("e", "a", repository, environment) as clone:
        yield provider, clone


async def pin(
    provider: GitWorkspaceProvider, root: Path, files: Mapping[str, str | bytes], name: str = "repo"
) -> PinnedRepository:
    repo = make_repository(root / name, files)
    return await provider.pin("default", RepoRef(location=str(repo)))


async def run_tests(clone: GitClone) -> CommandResult:
    return await clone.run(Command(argv=clone.environment.test_command, merge_stderr=True))


async def sh(clone: GitClone, line: str) -> str:
    return (await clone.run(Command(argv=("sh", "-c", line), merge_stderr=True))).stdout.text().strip()


def built(root: Path) -> list[str]:
    return sorted(
        path.name for path in (root / "home/environments").glob("*") if path.is_dir() and path.name != "probe"
    )


class _Handler(BaseHTTPRequestHandler):
    server: Index

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        kind, body = self.server.answer(self.path)
        self.send_response(200 if body else 404)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


class Index(ThreadingHTTPServer):
    """An index of packages on the loopback interface; `asked` are the paths of all requests."""

    def __init__(self, wheels: Mapping[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[str] = []
        self._files = wheels

    def __enter__(self) -> Index:
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *fault: object) -> None:
        self.shutdown()
        self.server_close()

    def answer(self, path: str) -> tuple[str, bytes]:
        """The content type and the body for a path; no body where there is nothing."""
        name = path.strip("/").split("/")[-1]
        if found := self._files.get(name):
            return "application/zip", found
        files = [wheel for wheel in self._files if wheel.partition("-")[0] == name]
        return "text/html", "".join(f'<a href="/files/{file}">{file}</a>' for file in files).encode()

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    @property
    def variables(self) -> Mapping[str, str]:
        return {"PIP_INDEX_URL": f"http://{self.place}/simple", "PIP_TRUSTED_HOST": "127.0.0.1"}

    @property
    def setup(self) -> SetupPolicy:
        """What lets builds have packages of this index and nothing else."""
        grant = NetworkGrant(hosts=(self.place,), private_hosts=(self.place,))
        return SetupPolicy(network=grant, variables=self.variables)


class NpmRegistry(Index):
    """A registry of npm packages, by NAME-VERSION.tgz, as `npm_package` makes them."""

    def answer(self, path: str) -> tuple[str, bytes]:
        name = path.strip("/").split("/")[-1]
        if found := self._files.get(name):
            return "application/octet-stream", found
        archives = {file: data for file, data in self._files.items() if file.rpartition("-")[0] == name}
        versions = {
            (version := file.removesuffix(".tgz").rpartition("-")[2]): {
                "name": name,
                "version": version,
                "dist": {"tarball": f"http://{self.place}/{name}/-/{file}", "integrity": integrity(data)},
                **_scripts_of(data),
            }
            for file, data in archives.items()
        }
        document = {"name": name, "versions": versions, "dist-tags": {"latest": max(versions, default="")}}
        return "application/json", json.dumps(document).encode() if versions else b""

    @property
    def variables(self) -> Mapping[str, str]:
        # It asks no proxy for loopback where nobody says otherwise.
        return {"npm_config_registry": f"http://{self.place}", "no_proxy": "", "NO_PROXY": ""}


def _scripts_of(archive: bytes) -> Mapping[str, object]:
    """What a registry says of the scripts of a package."""
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
            manifest = opened.extractfile("package/package.json")
            scripts = json.load(manifest)["scripts"] if manifest is not None else {}
    except (tarfile.TarError, EOFError, OSError):
        return {}
    return {"scripts": scripts, "hasInstallScript": True} if scripts else {}


def integrity(data: bytes) -> str:
    """What npm calls the hash of an archive."""
    return "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()


def npm_package(name: str, version: str, install: str = "") -> bytes:
    """An npm package that exports its version; `install` is its script of that name."""
    buffer = io.BytesIO()
    files = {
        "package.json": json.dumps(
            {"name": name, "version": version, "scripts": {"install": install} if install else {}}
        ),
        "index.js": f"module.exports = '{version}'\n",
    }
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path, text in files.items():
            member = tarfile.TarInfo(f"package/{path}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return buffer.getvalue()
