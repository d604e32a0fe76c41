"""Packages of npm, downloaded once by its own client, checked against the lock, unpacked outside of the repository."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import tarfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LOCK = HERE / "harnesses.toml"
CACHE = Path.home() / ".cache" / "swe-ai-fleet-harnesses"


def harnesses(cache: Path) -> Mapping[str, Mapping[str, Any]]:
    """The harnesses of the lock as settings take them, installed. Raises ValueError for a package that was changed."""
    lock = tomllib.loads(LOCK.read_text())
    digest = hashlib.sha256(repr(sorted(lock["packages"].items())).encode()).hexdigest()[:16]
    directory = cache / digest
    if not directory.is_dir():
        partial = cache / f"{digest}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for name, package in lock["packages"].items():
            _install(name, package["version"], package["integrity"], partial)
        partial.rename(directory)
    homes = {name: HERE / "homes" / name for name in lock["harnesses"]}
    return {
        name: {**table, "directory": str(directory), **({"home": str(homes[name])} if homes[name].is_dir() else {})}
        for name, table in lock["harnesses"].items()
    }


def _install(name: str, version: str, integrity: str, directory: Path) -> None:
    print(f"installing {name} {version}", flush=True)
    packing = ("npm", "pack", "--silent", "--ignore-scripts", f"{name}@{version}")
    packed = subprocess.run(packing, cwd=directory, check=True, capture_output=True, text=True).stdout.split()[-1]
    archive = directory / packed
    with archive.open("rb") as file:
        found = base64.b64encode(hashlib.file_digest(file, "sha512").digest()).decode()
    if f"sha512-{found}" != integrity:
        raise ValueError(f"{name} {version} is not what the lock has: sha512-{found}")
    with tarfile.open(archive) as opened:
        opened.extractall(directory / "unpacked", filter="data")
    # A package's content lies in one directory, mostly called `package`.
    [content] = (directory / "unpacked").iterdir()
    content.rename(directory / name.rpartition("/")[2])
    (directory / "unpacked").rmdir()
    archive.unlink()
