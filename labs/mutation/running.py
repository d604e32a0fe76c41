"""Mutants, each in a fork of a process that has the tests loaded: there the function gets other code."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import resource
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any, TypeVar

import hypothesis
import pytest

from labs.mutation.mutants import Mutant, mutants

T = TypeVar("T")

_TIMEOUT = 10.0
"""Seconds that a mutant's tests get on top of ten times what they take."""
_BASELINE_SECONDS = 1800.0
_MOST_BYTES = 4 * 1024**3
"""Of data, so that a mutant that gathers without an end dies of it."""
_OURS = tuple(str(Path(place).resolve()) for place in ("src", "services", "workers"))


@dataclass(kw_only=True)
class Survey:
    """What came of a module's mutants. One in a function that no test calls survives, too."""

    killed: int = 0
    survivors: list[Mutant] = field(default_factory=list[Mutant])


class Mutating:
    """A pytest plugin that runs mutants in place of the tests that were collected.

    Args:
        targets: By the module's path the tests that should catch its mutants.
        heard: Hears of each survey, once it is done.
    """

    def __init__(self, targets: Mapping[str, Sequence[str]], heard: Callable[[str, Survey], None]) -> None:
        self._targets = targets
        self._heard = heard

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise pytest.UsageError("the tests cannot be collected")
        tested = _in_fork(lambda: _ran(session.items), limit=_BASELINE_SECONDS)
        failed = [session.items[one["at"]].nodeid for one in tested or () if not one["passed"]]
        if tested is None or failed:
            raise pytest.UsageError(f"the tests fail as they are: {failed}")
        for module, tests in self._targets.items():
            chosen = [one for one in tested if session.items[one["at"]].nodeid.startswith(tuple(tests))]
            self._heard(module, self._survey(session, Path(module), chosen))
        return True

    def _survey(self, session: pytest.Session, module: Path, tested: list[dict[str, Any]]) -> Survey:
        loaded = importlib.import_module(".".join(module.with_suffix("").parts).removeprefix("src."))
        source = str(module.resolve())
        survey = Survey()
        for mutant in mutants(module.read_text(), source):
            touching = [one for one in tested if f"{source}:{mutant.function}" in one["functions"]]
            touching.sort(key=lambda one: one["seconds"])
            items = [session.items[one["at"]] for one in touching]
            limit = _TIMEOUT + 10 * sum(one["seconds"] for one in touching)
            if _in_fork(lambda items=items, mutant=mutant: _survives(loaded, mutant, items), limit=limit):
                survey.survivors.append(mutant)
                print(f"{module}:{mutant.line}: {mutant.function}: {mutant.change}", flush=True)
            else:
                survey.killed += 1
        return survey


def run(targets: Mapping[str, Sequence[str]], heard: Callable[[str, Survey], None]) -> int:
    """Run the mutants of each module, each against those of its tests that call the changed function."""
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile("mutants", phases=phases, max_examples=50, database=None, deadline=None)
    hypothesis.settings.load_profile("mutants")
    tests = sorted({test for tests in targets.values() for test in tests})
    return pytest.main(["-q", "-s", "-p", "no:cacheprovider", *tests], plugins=[Mutating(targets, heard)])


def _ran(items: list[pytest.Item]) -> list[dict[str, Any]]:
    """Each test as it is: whether it passes, how long it takes, which functions of ours it calls."""
    told: list[dict[str, Any]] = []
    called: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(_OURS):
            called.add(f"{frame.f_code.co_filename}:{frame.f_code.co_qualname.split('.<locals>')[0]}")

    for at, item in enumerate(items):
        called.clear()
        threading.setprofile(note)
        sys.setprofile(note)
        begun = time.monotonic()
        passed = _passes(item, items[at + 1] if at + 1 < len(items) else None)
        sys.setprofile(None)
        seconds = time.monotonic() - begun
        told.append({"at": at, "passed": passed, "seconds": seconds, "functions": sorted(called)})
    return told


def _passes(item: pytest.Item, following: pytest.Item | None) -> bool:
    before = item.session.testsfailed
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    return item.session.testsfailed == before


def _survives(loaded: object, mutant: Mutant, items: list[pytest.Item]) -> bool:
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_BYTES, _MOST_BYTES))
    _function(loaded, mutant.function).__code__ = mutant.code
    # Where no test calls the function, nothing fails.
    return all(_passes(one, after) for one, after in pairwise([*items, None]))


def _function(within: object, path: str) -> FunctionType:
    """The function behind a qualified name, without its decorators."""
    for name in path.split("."):
        within = inspect.getattr_static(within, name)
    while not isinstance(within, FunctionType):
        within = getattr(within, "fget", None) or getattr(within, "__func__", None) or within.__wrapped__
    return inspect.unwrap(within)


def _in_fork(work: Callable[[], T], *, limit: float) -> T | None:
    """What work gives in a copy of this process; None where it dies or takes longer than `limit` seconds."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(nothing, fd)
        try:
            os.write(writer, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    told, ends = b"", time.monotonic() + limit
    while select.select([reader], [], [], max(0.0, ends - time.monotonic()))[0]:
        chunk = os.read(reader, 1 << 16)
        if not chunk:
            break
        told += chunk
    os.close(reader)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    try:
        return json.loads(told)
    except ValueError:
        return None
