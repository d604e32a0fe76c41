"""unittest: the text that it prints, where nothing better was written."""

from __future__ import annotations

import re

from swe_ai_fleet.domain.test_run import TestRun
from swe_ai_fleet.tools.tests.lines import lines, seconds
from swe_ai_fleet.tools.tests.runners.tally import End, Tally

_MAX_KEPT_LINES = 60
_RAN = re.compile(r"Ran (\d{1,9}) tests? in (\d{1,9}(?:\.\d{1,9})?)s")
_END = re.compile(r"(?:OK|FAILED|NO TESTS RAN)(?: \((.{1,200})\))?")
_COUNT = re.compile(r"(failures|errors|skipped|expected failures|unexpected successes)=(\d{1,9})")
_TITLE = re.compile(r"(FAIL|ERROR): (\S{1,300})(?: \(([^()]{1,400})\))?( .{1,200})?")
_RULE = "=" * 70


def parse_unittest_output(text: str) -> TestRun | None:
    """The report in what unittest printed; None without its line of counts."""
    found = lines(text)
    position = next((place for place in range(len(found) - 1, -1, -1) if _RAN.fullmatch(found[place])), None)
    if position is None:
        return None
    ran = _RAN.fullmatch(found[position])
    ended = next((end for line in found[position + 1 : position + 4] if (end := _END.fullmatch(line))), None)
    if ran is None or ended is None:
        return None
    numbers = {what: int(number) for what, number in _COUNT.findall(ended[1] or "")}
    failed = numbers.get("failures", 0) + numbers.get("unexpected successes", 0)
    errors = numbers.get("errors", 0)
    skipped = numbers.get("skipped", 0) + numbers.get("expected failures", 0)
    tally = Tally()
    kept: dict[End, int] = {"failure": 0, "error": 0}
    for identifier, end, said in _failing(found[:position]):
        if kept[end] < (failed if end == "failure" else errors):
            kept[end] += 1
            tally.add(identifier, end, said[-1] if said else "", "\n".join(said))
    tally.count("failure", failed - kept["failure"])
    tally.count("error", errors - kept["error"])
    tally.count("skipped", skipped)
    tally.count("passed", int(ran[1]) - failed - errors - skipped)
    return tally.report(seconds(ran[2]))


def _failing(found: list[str]) -> list[tuple[str, End, list[str]]]:
    failing: list[tuple[str, End, list[str]]] = []
    collecting = False
    for before, line in zip(["", *found], found, strict=False):
        match = _TITLE.fullmatch(line) if before == _RULE else None
        if match:
            identifier = _identifier(match[2], match[3] or "") + (match[4] or "")
            failing.append((identifier, "failure" if match[1] == "FAIL" else "error", []))
            collecting = True
        elif line == _RULE:
            collecting = False
        elif collecting and line.strip("-") and len(failing[-1][2]) < _MAX_KEPT_LINES:
            failing[-1][2].append(line)
    return failing


def _identifier(name: str, place: str) -> str:
    """Python 3.11 prints `name (module.Class.name)`, older ones `name (module.Class)`."""
    if not place or "." not in place:
        return f"{place}.{name}" if place else name
    return place if place.endswith(f".{name}") else f"{place}.{name}"
