"""Reads a command line and judges each command in it; what is not proven to be harmless is risky."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from swe_ai_fleet.tools.shell_risk.commands import SHELLS, command_risks, conditional_risks, moves, places
from swe_ai_fleet.tools.shell_risk.reader import Command, Redirection, read
from swe_ai_fleet.tools.shell_risk.text import Unreadable
from swe_ai_fleet.tools.shell_risk.words import Scope, harmless_variable, opens_network, write_risk

MAX_CHARS = 16_384
MAX_DEPTH = 4
"""How deep `sh -c '…'` and its like are followed."""
_WRITING = frozenset({">", ">>", ">|", "&>", "&>>", ">&", "<>"})
_DOWNLOADERS = ("curl", "wget", "fetch", "http", "nc", "ncat")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Why a command line should be looked at by a person, nothing where it is harmless; and the programs it names."""

    reasons: tuple[str, ...]
    programs: frozenset[str] = frozenset()


def shell_risks(command: str) -> tuple[str, ...]:
    """Why a command line should be looked at by a person; empty where all of it is known to be harmless."""
    return judge(command).reasons


def judge(command: str, *, depth: int = 0, moved: bool = False) -> Verdict:
    """Judge a command line by what can be proven of it, in bash and in any POSIX shell.

    Judged are the commands as they are written, in whatever list, pipeline, loop, function or substitution they stand,
    and those given to `sh -c`, `xargs`, `env` and their like. A name, an option or a construct that is not known counts
    as a risk: the answer may be too careful, but a harmless verdict needs every part to be on a list. `moved` says that
    it may run in another directory than the clone's own.
    """
    if depth > MAX_DEPTH:
        return Verdict(reasons=("unknown: shells are nested too deeply",))
    if len(command) > MAX_CHARS or "\0" in command:
        return Verdict(reasons=("unknown: it is too long to judge, or holds a NUL",))
    try:
        script = read(command)
    except Unreadable as error:
        return Verdict(reasons=(f"unknown: it is not in the part of a shell's language that can be judged: {error}",))
    moved = moved or any(moves(each.words) for each in script.commands)
    programs: set[str] = set()

    def nested(line: str) -> tuple[str, ...]:
        verdict = judge(line, depth=depth + 1, moved=moved)
        programs.update(verdict.programs)
        return verdict.reasons

    scope = Scope(command=command_risks, nested=nested, programs=programs, moved=moved)
    reasons: dict[str, None] = {}
    if script.functions:
        reasons["unknown: it defines a function"] = None
    for each in script.commands:
        reasons.update(dict.fromkeys(_risks(each, scope)))
    for pipeline in script.pipelines:
        reasons.update(dict.fromkeys(_pipeline_risks(pipeline)))
    return Verdict(reasons=tuple(reasons), programs=frozenset(programs))


def _risks(command: Command, scope: Scope) -> Iterator[str]:
    for name in command.assigned:
        if not harmless_variable(name):
            yield f"environment: it sets {name[:64]}"
    for redirection in command.redirections:
        yield from _redirection_risks(redirection)
    if any(opens_network(word.text or word.head) for word in command.words):
        yield "exfiltration: it opens a network connection"
    if command.words and command.words[0].text == "[[":
        if command.redirections or command.assigned:
            yield "unknown: a test with a redirection in it"
        yield from conditional_risks(command.words)
    elif command.words:
        yield from command_risks(command.words, scope)


def _redirection_risks(redirection: Redirection) -> Iterator[str]:
    target = redirection.target
    if opens_network(target.text or target.head):
        yield "exfiltration: it opens a network connection"
    elif redirection.sign in _WRITING:
        if target.text is None:
            yield "unknown: where it writes to is computed"
        else:
            yield from write_risk(target)
    elif target.text is None and (not target.operand or target.head.startswith("/")) and target.head != "/dev/fd/":
        yield "unknown: what it reads from is computed, and may be a network connection"


def _pipeline_risks(pipeline: list[Command]) -> Iterator[str]:
    """What is fetched and goes straight into an interpreter."""
    names = [places(command.words[0].text or "") for command in pipeline if command.words]
    fetches = [index for index, name in enumerate(names) if name in _DOWNLOADERS]
    if fetches and any(name in SHELLS for name in names[fetches[0] + 1 :]):
        yield "fetch-and-execute: what it downloads is run"
