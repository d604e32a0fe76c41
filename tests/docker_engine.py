"""A docker engine of our own for tests: it touches neither the network of this host nor any other engine's data."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

READY_SECONDS = 30.0
BUSYBOX = next((path for path in ("/bin/busybox", "/usr/bin/busybox") if os.path.exists(path)), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class TestEngine:
    """A running engine: `host` as the tool takes it, and the process behind it."""

    __test__ = False

    host: str
    process: subprocess.Popen[bytes]


class NoEngine(Exception):
    """No engine can be started here; the message says why."""


@contextmanager
def docker_engine(*, storage: str = "vfs") -> Generator[TestEngine]:
    """An engine that lives as long as the context, with everything it keeps in a directory of its own.

    Containers have no network but those that a test makes. `vfs` works everywhere and copies every layer, `overlay2`
    is for images of size. Raises NoEngine.
    """
    if os.geteuid() != 0:
        raise NoEngine("an engine of our own needs root")
    if missing := [program for program in ("dockerd", "containerd", "runc") if shutil.which(program) is None]:
        raise NoEngine(f"not installed: {', '.join(missing)}")
    if not BUSYBOX or not _static(BUSYBOX):
        raise NoEngine("there is no static busybox to make images of")
    # A short path: the sockets that containerd makes in it have at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="engine-", ignore_cleanup_errors=True) as place:
        root = Path(place)
        host = f"unix://{root}/engine.sock"
        (root / "engine.json").write_text("{}")
        command = ["dockerd", "-H", host, "--data-root", f"{root}/data", "--exec-root", f"{root}/exec"]
        command += ["--pidfile", f"{root}/engine.pid", "--config-file", f"{root}/engine.json"]
        command += ["--iptables=false", "--bridge=none", "--ip-masq=false", "--storage-driver", storage]
        log = root / "engine.log"
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            _until_ready(process, log)
            yield TestEngine(host=host, process=process)
        finally:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _until_ready(process: subprocess.Popen[bytes], log: Path) -> None:
    ends_at = time.monotonic() + READY_SECONDS
    while b"API listen on" not in log.read_bytes():
        if process.poll() is not None or time.monotonic() > ends_at:
            raise NoEngine(f"dockerd did not start: {log.read_text(errors='replace')[-600:]}")
        time.sleep(0.05)


def _static(program: str) -> bool:
    """Whether a program runs in an empty image: a dynamic one names its interpreter at its beginning."""
    return b"/ld-" not in Path(program).read_bytes()[:4096]
