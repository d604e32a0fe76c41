"""Commands that the fleet prints for people to paste, made of words that models, repositories and callers chose."""

from __future__ import annotations

import io
import json
import shlex
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from swe_ai_fleet.agents.preparation import read_proposal
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.watching import clean, command_line

RUN = "touch pwned #"
# An escape sequence that nobody has ended swallows the quotes behind it, once a terminal's are taken out.
HOSTILE = [
    ("--setup", "x\x1b[", "--setup", f"; {RUN}"), ("--setup", "x\x9b", "--setup", f"; {RUN}"),
    ("git", "-C", "/p\x9b", "merge", f"x;{RUN}"), ("--setup", "x\x1b]", f"\x07; {RUN}"),
    ("--setup", "x'\x1b[", f"'; {RUN}"), ("--setup", f"x\x1b[';{RUN}"),
    ("--setup", f"it's $({RUN})", f"`{RUN}`\r\n; {RUN}"),
]  # fmt: skip


def printed(words: tuple[str, ...]) -> str:
    """What stands on a terminal after a command of the fleet has printed it."""
    out = io.StringIO()
    console = Console(file=out, markup=False, highlight=False, emoji=False, width=160)
    Screen(json=False, out=console, err=console).line(command_line(words))
    return out.getvalue()


def pasted(shell: str, text: str, directory: Path) -> list[str]:
    """The words that a program gets whose command line somebody pastes behind its name."""
    line = f"printf '%s\\0' {text}"
    done = subprocess.run([shell, "-c", line], cwd=directory, check=False, capture_output=True)
    return done.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]


@pytest.mark.parametrize("words", HOSTILE)
def test_what_is_pasted_is_the_words_and_nothing_runs(words: tuple[str, ...], tmp_path: Path) -> None:
    text = printed(words)
    assert clean(text) == text
    assert pasted("bash", text, tmp_path) == list(words)
    # A shell that writes bytes in another way gets other words, and runs nothing either.
    pasted("sh", text, tmp_path)
    assert not list(tmp_path.iterdir())
    if words in HOSTILE[:3]:
        # The control: quoted before it is made fit for a terminal it runs.
        pasted("bash", clean(shlex.join(words)), tmp_path)
        assert (tmp_path / "pwned").exists()


def test_no_model_proposes_a_command_that_people_do_not_see() -> None:
    assert read_proposal(json.dumps({"setup": ["pip install a\tb"]}), source="m").setup == ("pip install a\tb",)
    for line in ("pip install a\x1b[", "pip install a\rb", "pip install a\u202e", "a\nb"):
        with pytest.raises(ValueError, match="no line"):
            read_proposal(json.dumps({"setup": [line]}), source="m")
