"""A users' example run as what it is: a program of its own, which knows of the fleet what its environment says."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tests.fleet_command import Ran, Shell

EXAMPLES = Path(__file__).with_name("users_examples")
SECONDS = 60.0


async def run_example(
    name: str,
    *arguments: str,
    directory: Path,
    model_url: str = "",
    model: str = "scripted",
    variables: Mapping[str, str] | None = None,
    seconds: float = SECONDS,
) -> Ran:
    """Run `users_examples/<name>.py` to its end, and say how that was and what it printed.

    Args:
        name: The file without its ending. A path with a slash is taken as it is.
        arguments: What stands behind the program on its command line.
        directory: Where it runs; its home is `<directory>/home`.
        model_url: The base URL of the model server, as `FLEET_MODEL_URL`; none where empty.
        model: The model, as `FLEET_MODEL`.
        variables: What its environment has beside that. Nothing of ours goes there but paths and the language.
        seconds: A program that takes longer is killed, with what it started, and the test fails with what it printed.

    Returns:
        Exit status (negative: the signal that ended it), standard output, standard error.
    """
    path = Path(name) if "/" in name else EXAMPLES / f"{name}.py"
    of_model = {"FLEET_MODEL_URL": model_url, "FLEET_MODEL": model} if model_url else {}
    environment = {**Shell(home=directory / "home").variables, "PYTHONUNBUFFERED": "1", **of_model, **(variables or {})}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(path), *arguments),
        cwd=directory,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    reading = asyncio.ensure_future(process.communicate())
    try:
        done, _ = await asyncio.wait([reading], timeout=seconds)
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    out, err = (part.decode(errors="replace") for part in await reading)
    assert done, f"{path.name} did not end within {seconds:g} seconds\n{out}\n{err}"
    assert process.returncode is not None
    return Ran(code=process.returncode, out=out, err=err)


def printed(program: Ran) -> str:
    """What a program printed that must have ended well and without a warning about itself."""
    assert program.code == 0, program.out + program.err
    assert "Traceback" not in program.err and "was never awaited" not in program.err, program.err
    return program.out
