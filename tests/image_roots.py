"""The container of an image as a node would start it: its root, the helper in it, the Pod's volumes at their places."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import tarfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from swe_ai_fleet.sandbox import images, jail
from tests.container_images import MadeImage


def unpack(image: MadeImage, root: Path) -> Path:
    """A root with the image's layers."""
    root.mkdir(parents=True)
    for data in image.layers:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            archive.extractall(root, filter="tar")
    return root


def parts(place: Path) -> Path:
    """What the container that clones leaves for the image's."""
    place.mkdir(parents=True)
    images.carry(jail.shell(), place)
    return place


@contextmanager
def helper(root: Path, volumes: Mapping[str, Path], variables: Mapping[str, str], socket: str) -> Generator[int]:
    """The helper at work in a root, as a container runtime starts it, until the context ends: volumes by mount path.

    It is read-only but for volumes; what is named `ro:PATH` is not written to. Processes, network and shared memory
    are those of the Pod, that is of this machine.
    """
    argv = ["bwrap", "--cap-add", "ALL"] if os.geteuid() == 0 else ["bwrap"]
    argv += ["--bind", str(root), "/", "--proc", "/proc", "--dev", "/dev", "--bind", "/dev/shm", "/dev/shm"]
    argv += ["--ro-bind", "/sys", "/sys"]
    for place, source in volumes.items():
        argv += ["--ro-bind" if place.startswith("ro:") else "--bind", str(source), place.removeprefix("ro:")]
    argv += ["--remount-ro", "/", "--clearenv", "--chdir", "/"]
    for name, value in variables.items():
        argv += ["--setenv", name, value]
    program = f"{images.INSIDE}/swe_ai_fleet/sandbox/container_helper.py"
    argv += ["--", *images.PYTHON, "-I", "-S", program, socket]
    process = subprocess.Popen(argv, start_new_session=True)
    try:
        yield process.pid
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
