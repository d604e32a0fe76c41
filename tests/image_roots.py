"""The container of an image as a node would start it: its root, the helper in it, the Pod's volumes at their places."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import tarfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from swe_ai_fleet.sandbox import images, jail
from tests.container_images import MadeImage

UID = 10_001


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


def container_argv(
    root: Path, volumes: Mapping[str, Path], variables: Mapping[str, str], command: Sequence[str]
) -> list[str]:
    """The argv that runs a command in a root as a container runtime does: read-only but for volumes, by mount path.

    Processes, network and shared memory are those of the Pod, that is of this machine; what is named `ro:PATH` is not
    written to.
    """
    argv = ["bwrap", "--cap-add", "ALL"] if os.geteuid() == 0 else ["bwrap"]
    argv += ["--bind", str(root), "/", "--proc", "/proc", "--dev", "/dev", "--bind", "/dev/shm", "/dev/shm"]
    argv += ["--ro-bind", "/sys", "/sys"]
    for place, source in volumes.items():
        argv += ["--ro-bind" if place.startswith("ro:") else "--bind", str(source), place.removeprefix("ro:")]
    argv += ["--remount-ro", "/", "--clearenv", "--chdir", "/"]
    for name, value in variables.items():
        argv += ["--setenv", name, value]
    return [*argv, "--", *command]


_RESTRICTED = """
set -e
mount --bind "$1" "$1"
mount -t proc proc "$1/proc"
mount --rbind /dev "$1/dev"
mount --rbind /sys "$1/sys"
root=$1
shift
while [ "$1" != -- ]; do
  mount --bind "$2" "$root$1"
  case $3 in ro) mount -o remount,bind,ro "$root$1";; esac
  shift 3
done
mount -o remount,bind,ro "$root"
shift
exec setpriv --no-new-privs --bounding-set=-setpcap chroot --userspec="$UID_GIVEN" "$root" "$@"
"""


def restricted_argv(uid: int, root: Path, volumes: Mapping[str, Path], variables: Mapping[str, str]) -> list[str]:
    """The same as a container runtime does it, by mounts and chroot: no namespace of users is in it."""
    argv = ["env", "-i", f"PATH={os.environ['PATH']}", f"UID_GIVEN={uid}:{uid}"]
    argv += [f"{name}={value}" for name, value in variables.items() if name != "PATH"]
    argv += ["unshare", "--mount", "--propagation", "private", "sh", "-c", _RESTRICTED, "sh", str(root)]
    for place, source in volumes.items():
        argv += [place.removeprefix("ro:"), str(source), "ro" if place.startswith("ro:") else "rw"]
    return [*argv, "--"]


@contextmanager
def helper(
    root: Path, volumes: Mapping[str, Path], variables: Mapping[str, str], socket: str, *, uid: int = 0
) -> Generator[int]:
    """The helper at work in a root until the context ends; with a `uid` as that user without any right, by root."""
    program = f"{images.INSIDE}/swe_ai_fleet/sandbox/container_helper.py"
    started = restricted_argv(uid, root, volumes, variables) if uid else container_argv(root, volumes, variables, [])
    argv = [*started, *images.PYTHON, "-I", "-S", program, socket]
    process = subprocess.Popen(argv, start_new_session=True)
    try:
        yield process.pid
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
