"""A users' example run as what it is: a program of its own, which knows of the fleet what its environment says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.environments import home_at
from tests.fleet_command import Ran, Shell, ended

EXAMPLES = Path(__file__).with_name("users_examples")


async def run_example(
    name: str,
    *arguments: str,
    directory: Path,
    model_url: str = "",
    variables: Mapping[str, str] | None = None,
    warm: str = "",
) -> Ran:
    """Run `users_examples/<name>.py` (or what a path names) to its end; its home is `<directory>/home`."""
    path = Path(name) if "/" in name else EXAMPLES / f"{name}.py"
    more = {"PYTHONUNBUFFERED": "1", **(variables or {})}
    shell = Shell(home=home_at(directory / "home"), model_url=model_url, directory=directory, warm=warm, more=more)
    return await ended(await shell.start(str(path), *arguments))


def printed(program: Ran) -> str:
    """What a program printed that must have ended well and without a warning about itself."""
    assert program.code == 0, program.out + program.err
    assert "Traceback" not in program.err and "was never awaited" not in program.err, program.err
    return program.out
