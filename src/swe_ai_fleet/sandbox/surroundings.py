"""What the fleet itself runs in, as far as that shows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_CONTAINER_FILES = {".dockerenv": "a Docker container", "run/.containerenv": "a Podman container"}
_CONTROL_GROUPS = ("docker", "kubepods", "containerd", "libpod", "lxc")


def surroundings(root: Path, variables: Mapping[str, str]) -> str:
    """What the machine below `root` (`/`) and the variables of this process say it is: a container, a pod, or "".

    The marks of gVisor and Kata are named where they are seen. These are marks, which anybody could set; how strongly
    such a wall holds is not looked into.
    """
    container = next((name for file, name in _CONTAINER_FILES.items() if (root / file).exists()), "")
    if not container and any(mark in _text(root / "proc/1/cgroup") for mark in _CONTROL_GROUPS):
        container = "a container"
    if "KUBERNETES_SERVICE_HOST" in variables:
        container = "a Kubernetes pod"
    if "gVisor" in _text(root / "proc/version") or "gVisor" in _text(root / "proc/sys/kernel/osrelease"):
        return f"{container or 'a sandbox'} on gVisor"
    if "kata" in _text(root / "proc/cmdline"):
        return f"{container or 'a virtual machine'} on Kata Containers"
    return container


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
