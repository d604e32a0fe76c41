"""Ends every process of a run once the run itself is gone, however it went: `python -m labs.soak.keeper`.

Its standard input has the mark and the directory of the run, a line each, and stays open as long as the run lives.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from labs.children import ROOT
from tests.processes import MARK, kill, marked

_SECONDS = 20.0
_LOOK_SECONDS = 0.25


@contextmanager
def keeper(mark: str, directory: Path) -> Generator[None]:
    """Nothing that bears the mark outlives the context, nor this process where it is killed inside."""
    variables = {name: value for name, value in os.environ.items() if name != MARK}
    process = subprocess.Popen(
        [sys.executable, "-m", "labs.soak.keeper"],
        stdin=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=variables,
        start_new_session=True,  # Ctrl-C in a terminal is not for it
    )
    assert process.stdin is not None
    try:
        process.stdin.write(f"{mark}\n{directory}\n")
        process.stdin.flush()
        yield
    finally:
        process.stdin.close()
        process.wait()


def main() -> None:
    mark, directory = sys.stdin.readline().strip(), sys.stdin.readline().strip()
    sys.stdin.read()
    until = time.monotonic() + _SECONDS
    while mark and directory and (left := marked(mark, Path(directory))) and time.monotonic() < until:
        for process in left:
            kill(process)
        time.sleep(_LOOK_SECONDS)


if __name__ == "__main__":
    main()
