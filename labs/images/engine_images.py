"""The images of this repository, built by an engine of our own from a base made of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from labs.images.base import build_base, runtime_base
from tests.docker_engine import NoEngine

ROOT = Path(__file__).parents[2]
DOCKERFILE = "deploy/Dockerfile"
TITLES = ("fleet-orchestrator", "fleet-agent", "fleet-context", "fleet-gateway", "fleet-runner")
TAG = "test"
BUILD_SECONDS = 900.0


def requirements(*options: str) -> str:
    """What scripts/image_requirements.py prints."""
    script = ROOT / "scripts" / "image_requirements.py"
    command = [sys.executable, str(script), "--directory", str(ROOT), *options]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def fetch_wheels(directory: Path) -> Path:
    """Every file of the lock that an image needs, by the pip of this environment. Raises NoEngine without an index."""
    listed = directory / "requirements.txt"
    listed.write_text(
        requirements("--extras", "db,docker,k8s") + requirements("--build-system", "--also", "setuptools")
    )
    wheels = directory / "wheels"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    asked = subprocess.run(
        [*command, "--dest", str(wheels), "--requirement", str(listed)], capture_output=True, text=True, check=False
    )
    if asked.returncode != 0:
        raise NoEngine(f"the packages of the lock cannot be fetched: {asked.stderr.strip()[-300:]}")
    return wheels


def import_base(host: str, name: str, write: Callable[[IO[bytes]], None]) -> str:
    """Import a base that is written as a stream; its name."""
    with tempfile.TemporaryFile() as stream:
        write(stream)
        stream.seek(0)
        docker(host, "import", "-", name, stdin=stream)
    return name


def build_images(host: str, directory: Path) -> dict[str, str]:
    """Build all of them without any network; names by title. Raises RuntimeError with the end of a log."""
    wheels = fetch_wheels(directory)
    base = import_base(host, "base:1", runtime_base)
    builder = import_base(host, "build:1", lambda stream: build_base(stream, wheels))
    built = dict[str, str]()
    for title in TITLES:
        built[title] = f"{title}:{TAG}"
        arguments = ("--build-arg", f"BASE_IMAGE={base}", "--build-arg", f"BUILD_IMAGE={builder}")
        build = ("build", "--network", "none", "--rm", "-f", DOCKERFILE, "--target", title)
        docker(host, *build, *arguments, "-t", built[title], ".")
    return built


def docker(host: str, *arguments: str, stdin: IO[bytes] | None = None) -> str:
    """What a command of the engine prints. Raises RuntimeError with what it said."""
    environment = {**os.environ, "DOCKER_HOST": host, "DOCKER_BUILDKIT": "0"}
    asked = subprocess.run(
        ["docker", *arguments],
        cwd=ROOT,
        env=environment,
        stdin=stdin or subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=BUILD_SECONDS,
        check=False,
    )
    said = asked.stdout.decode(errors="replace")
    if asked.returncode != 0:
        raise RuntimeError(f"docker {' '.join(arguments[:2])} ended with {asked.returncode}: {said[-3000:]}")
    return said
