"""The events that a supervised test run leaves, read as results.

One JSON object a line, a tab, and its seal (HMAC-SHA256 in hexadecimal), written by the runner's plug-in or by the
supervisor (`inside/`):

    {"e": "start", "id": ID}                                      a test begins
    {"e": "collected", "id": ID}                                  it needs no end (a file was collected)
    {"e": "end", "id": ID, "o": OUTCOME, "ms": N, "m": TEXT, "t": TEXT, "k": "hung" | "crashed"}
    {"e": "cut", "id": ID}                                        it was running when the time of the whole was up
    {"e": "finish", "code": N}                                    the runner got to its end
    {"e": "fault", "m": TEXT}                                     the runner failed on its own
    {"e": "stop", "why": "time" | "silent" | "died" | "hung" | "overwritten", "m": TEXT}

Tests can write to the file too, but have no key: a line without its seal is passed over. Who looks for the key in the
runner's own process can still find it (docs/evidence.md, "What a candidate can still forge").
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass

from swe_ai_fleet.domain.test_run import TestOutcome, TestResult
from swe_ai_fleet.tools.tests.reports import bounded, test_result
from swe_ai_fleet.tools.tests.runners.values import json_object, string

MAX_TESTS = 200_000
_MAX_MILLISECONDS = 10**10
_OUTCOMES = {str(outcome): outcome for outcome in TestOutcome}


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """What was read. `stop` is why the supervisor gave up, `fault` the runner's own failure; both may be empty."""

    results: Mapping[str, TestResult]
    hung: tuple[str, ...] = ()
    crashed: tuple[str, ...] = ()
    finished: bool = False
    stop: str = ""
    how: str = ""
    fault: str = ""


def read_events(data: bytes, key: str) -> Events:
    """The results in a file of events that are sealed with the key; a line that is none is passed over.

    The first end of a test counts, unless a later one says that it failed.
    """
    results: dict[str, TestResult] = {}
    killed: dict[str, list[str]] = {"hung": [], "crashed": []}
    finished, stop, how, fault = False, "", "", ""
    for line in data.split(b"\n"):
        text = line.rpartition(b"\t")[0]
        if not hmac.compare_digest(sealed(text, key), line):
            continue
        event = json_object(text)
        match string(event.get("e")):
            case "end":
                name, outcome = bounded(string(event.get("id"))), _OUTCOMES.get(string(event.get("o")))
                if not name or outcome is None or len(results) >= MAX_TESTS:
                    continue
                if name in results and (results[name].outcome.bad or not outcome.bad):
                    continue
                message, trace = string(event.get("m")), string(event.get("t"))
                results[name] = test_result(outcome, message, trace, _milliseconds(event.get("ms")))
                if (kind := string(event.get("k"))) in killed:
                    killed[kind].append(name)
            case "finish":
                finished = True
            case "stop":
                stop, how = string(event.get("why"))[:40], string(event.get("m"))[:100]
            case "fault":
                fault = string(event.get("m"))[-2_400:]
            case _:
                continue
    return Events(
        results=results,
        hung=tuple(killed["hung"]),
        crashed=tuple(killed["crashed"]),
        finished=finished,
        stop=stop,
        how=how,
        fault=fault,
    )


def sealed(text: bytes, key: str) -> bytes:
    """An event with its seal: a line without its end."""
    return text + b"\t" + hmac.digest(key.encode(), text, "sha256").hex().encode()


def _milliseconds(value: object) -> int:
    return int(value) if isinstance(value, int | float) and 0 <= value < _MAX_MILLISECONDS else 0
