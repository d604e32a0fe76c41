"""The README's tour, walked as a newcomer would: `python scripts/tour.py [--installed VENV]`.

A fresh HOME, a PATH with the installation and the system's programs only, two terminals: `fleet up` in one, every
command of the tour in the other, of 80 columns, which has nothing but the same PATH. The model is the scripted one of
docs/models.md. Prints how each command ended and, last, the time from `git clone` to the first delivered change.
Exit code 1 where a command fails. Without --installed the clone is installed with pip, which takes minutes.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = 80
START_SECONDS = 180.0
_FREE = "127.0.0.1:0"


def typed(command: str, cwd: Path, env: Mapping[str, str]) -> tuple[int, str]:
    """A command as typed at a terminal of its own: its exit code, and what the terminal was sent."""
    process, terminal = pty.fork()
    if not process:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
        os.chdir(cwd)
        os.execve("/bin/sh", ["sh", "-c", command], {**env, "TERM": "xterm"})  # noqa: S606 - as a person types it
    written = b""
    with suppress(OSError):  # the other side is gone
        while piece := os.read(terminal, 65_536):
            written += piece
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), written.decode(errors="replace")


def first_line(process: subprocess.Popen[str], wanted: str) -> str:
    """The first line of a program that begins in this way. Raises RuntimeError where it ends without one."""
    assert process.stdout is not None
    said: list[str] = []
    for line in process.stdout:
        said.append(line)
        if line.startswith(wanted):
            return line.strip()
    raise RuntimeError("".join(said))


def tour() -> list[str]:
    """The commands of the README's tour."""
    found = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    return next(block for block in found if block.startswith("fleet doctor")).splitlines()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--installed", type=Path, help="a virtual environment that has the fleet already")
    installed: Path | None = parser.parse_args().installed
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fleet-tour-", ignore_cleanup_errors=True) as directory:
        here = Path(directory)
        clone, home, sample = here / "swe-ai-fleet", here / "home", here / "home" / "tour"
        home.mkdir()
        subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(clone)], check=True)
        env = {"HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": os.environ.get("LANG", "C.UTF-8")}
        if installed is None:
            installed = clone / ".venv"
            subprocess.run([sys.executable, "-m", "venv", str(installed)], check=True)
            pip = [str(installed / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "."]
            # Which registry pip asks is this machine's matter, not the newcomer's.
            subprocess.run(pip, cwd=clone, check=True)
        env["PATH"] = f"{installed.absolute() / 'bin'}:{env['PATH']}"
        print(f"installed after {time.monotonic() - began:.0f} s", flush=True)
        subprocess.run(["cp", "-r", str(clone / "examples/tour"), str(sample)], check=True)
        me = ("-c", "user.name=me", "-c", "user.email=me@example.org")
        for words in (("init", "-q"), ("add", "."), (*me, "commit", "-qm", "A sample")):
            subprocess.run(["git", *words], cwd=sample, env=env, check=True)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": clone}
        scripted = ["python", "-m", "swe_ai_fleet.testing.scripted_model", "examples/tour.json", "--port", "0"]
        model = subprocess.Popen(scripted, env=env, **pipes)
        fleet: subprocess.Popen[str] | None = None
        try:
            url = first_line(model, "http")
            ports = {"FLEET_LISTEN": _FREE, "FLEET_HTTP_LISTEN": _FREE, "FLEET_METRICS_LISTEN": _FREE}
            fleet = subprocess.Popen(["fleet", "up"], env={**env, **ports, "FLEET_MODEL_URL": url}, **pipes)
            first_line(fleet, "try ")
            print(f"the fleet is up after {time.monotonic() - began:.0f} s", flush=True)
            return walk(sample, env, began)
        finally:
            for process in (fleet, model):
                if process is not None:
                    process.terminate()
                    process.wait(START_SECONDS)


def walk(sample: Path, env: Mapping[str, str], began: float) -> int:
    """Type the whole tour; how many commands failed, as an exit code."""
    failed, delivered = 0, 0.0
    for command in tour():
        code, said = typed(command, sample, env)
        failed += code != 0
        print(f"{code}  {command}", flush=True)
        if code:
            print(said, flush=True)
        branch = ["git", "rev-parse", "--verify", "--quiet", "fleet/hello"]
        if not delivered and subprocess.run(branch, cwd=sample, env=env, stdout=subprocess.DEVNULL).returncode == 0:
            delivered = time.monotonic() - began
    print(f"from git clone to the first delivered change: {delivered:.0f} s" if delivered else "nothing was delivered")
    return int(bool(failed or not delivered))


if __name__ == "__main__":
    sys.exit(main())
