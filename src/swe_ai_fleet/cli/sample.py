"""The repository that the demonstration works on: a small module, its tests, and a fault that they show."""

from __future__ import annotations

import subprocess
from pathlib import Path

TASK = (
    "parse_duration accepts text that is no duration.\n\n"
    'For "90", "1h30", "5x" or an empty text it gives some number instead of raising ValueError. A duration is one or '
    "more whole numbers, each with its unit (d, h, m, s), the units in descending order and each at most once; nothing "
    "else may pass. The tests in tests/test_durations.py say what must hold, and some of them fail."
)

FILES = {
    "README.md": "# durations\n\nReads and writes durations such as `1h30m`. `python3 -m pytest` runs the tests.\n",
    ".gitignore": "__pycache__/\n.pytest_cache/\n",
    "ruff.toml": "line-length = 120\n",
    "durations.py": '''\
"""Durations as people write them: "90s", "1h30m", "2d"."""

UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}


def parse_duration(text):
    """The seconds in a duration. Raises ValueError for text that is none."""
    seconds = 0
    digits = ""
    for character in text:
        if character.isdigit():
            digits += character
        elif character in UNITS:
            seconds += int(digits) * UNITS[character]
            digits = ""
    return seconds


def format_duration(seconds):
    """The shortest way to write a number of seconds: 5400 is "1h30m"."""
    parts = []
    for unit, length in UNITS.items():
        count, seconds = divmod(seconds, length)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"
''',
    "tests/test_durations.py": """\
import pytest

from durations import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("5m", 300), ("1h30m", 5400), ("2d", 172800), ("1d1h1m1s", 90061), ("0s", 0)],
)
def test_reads_durations(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("seconds", [0, 1, 90, 5400, 90061])
def test_reads_what_it_writes(seconds):
    assert parse_duration(format_duration(seconds)) == seconds


@pytest.mark.parametrize("text", ["", "h", "90", "1h30", "5x", "1.5h", "-5m", "5 m", "30m1h", "1h1h"])
def test_refuses_what_is_no_duration(text):
    with pytest.raises(ValueError):
        parse_duration(text)
""",
}


def make_sample(directory: Path) -> str:
    """Write the repository and commit it; the commit. Raises CalledProcessError."""
    for name, content in FILES.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    git(directory, "init", "--quiet", "--initial-branch=main")
    git(directory, "add", "--all")
    git(directory, "commit", "--quiet", "--message=Read and write durations")
    return git(directory, "rev-parse", "HEAD").strip()


def git(directory: Path, *arguments: str) -> str:
    """What git prints in a directory, whatever the user's configuration says. Raises CalledProcessError."""
    identity = ("-c", "user.name=Sample", "-c", "user.email=sample@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ("git", *identity, "-c", "core.hooksPath=", *arguments),
        cwd=directory,
        check=True,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    return done.stdout
