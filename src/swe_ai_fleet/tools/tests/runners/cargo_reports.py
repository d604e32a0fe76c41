"""Cargo: the text of `cargo test`, since the machine format is not stable."""

from __future__ import annotations

import re

from swe_ai_fleet.domain.test_run import TestRun
from swe_ai_fleet.tools.tests.lines import lines, seconds
from swe_ai_fleet.tools.tests.runners.tally import Tally

_MAX_KEPT_LINES = 60
_RUNNING = re.compile(r" +Running (?:unittests )?(\S{1,300}) \(.{1,600}\)")
_DOC_TESTS = re.compile(r" +Doc-tests (\S{1,200})")
_RESULT = re.compile(
    r"test result: (?:ok|FAILED)\. (\d{1,9}) passed; (\d{1,9}) failed; (\d{1,9}) ignored; .{0,100}?"
    r"(?:finished in (\d{1,9}(?:\.\d{1,9})?)s)?"
)
_FAILED = re.compile(r"test (.{1,400}?)(?: - should panic)? \.\.\. FAILED")
_SECTION = re.compile(r"---- (.{1,400}) stdout ----")
_NAMED = re.compile(r" {4}(\S.{0,400})")
_PANIC = re.compile(r"thread '.{0,400}' (?:\(\d{1,20}\) )?panicked at (.{1,400}):")
_ERROR = re.compile(r"(error(?:\[E\d{1,6}\])?): (.+)")
_ARROW = re.compile(r" *--> (\S{1,300}:\d{1,9}:\d{1,9})")
_NOT_ERRORS = ("could not compile", "test failed, to rerun", "aborting due to", "doctest failed")


def parse_cargo_output(text: str) -> TestRun | None:
    """The report in what `cargo test` printed; None where it ran no test and reports no error of the compiler.

    Ids are `file::name` with the file of the test target (`src/lib.rs::tests::adds`). What does not compile is an
    error named `file:line:column`.
    """
    tally, target, elapsed, ran = Tally(), "", 0.0, False
    sections: dict[str, list[str]] = {}
    names: list[str] = []
    section: list[str] | None = None
    failed_names: set[str] = set()  # a test's own output may look like the start of a section, but not of one of these
    listing = False
    for line in lines(text):
        if match := _RUNNING.fullmatch(line) or _DOC_TESTS.fullmatch(line):
            target, sections, names, section, listing = match[1], {}, [], None, False
            failed_names.clear()
        elif match := _FAILED.fullmatch(line):
            failed_names.add(match[1])
        elif match := _RESULT.fullmatch(line):
            ran = True
            passed, failed, ignored = (int(match[number]) for number in (1, 2, 3))
            tally.count("passed", passed)
            tally.count("skipped", ignored)
            for name in names[:failed]:
                said = sections.get(name, [])
                tally.add(f"{target}::{name}" if target else name, "failure", _message(said), "\n".join(said))
            tally.count("failure", failed - len(names))
            elapsed += seconds(match[4] or "0")
            sections, names, section, listing = {}, [], None, False
            failed_names.clear()
        elif (match := _SECTION.fullmatch(line)) and match[1] in failed_names and match[1] not in sections:
            section = sections.setdefault(match[1], [])
        elif line == "failures:":
            names, listing, section = [], True, None
        elif listing and (match := _NAMED.fullmatch(line)):
            names.append(match[1])
        elif section is not None and line.strip() and len(section) < _MAX_KEPT_LINES:
            section.append(line)
    errors = _compile_errors(text)
    for place, message, said in errors:
        tally.add(place, "error", message, said)
    return tally.report(elapsed) if ran or errors else None


def _compile_errors(text: str) -> list[tuple[str, str, str]]:
    """(place, message, the compiler's words) of each error; the same one for two targets counts once."""
    found: dict[tuple[str, str], str] = {}
    message, place, said = "", "", list[str]()
    for line in [*lines(text), "error: end"]:
        if match := _ERROR.fullmatch(line):
            if message and place:
                found.setdefault((place, message), "\n".join(said))
            message, place, said = "", "", []
            if not match[2].startswith(_NOT_ERRORS):
                message, said = f"{match[1]}: {match[2]}", [line]
        elif line.startswith("warning"):
            if message and place:
                found.setdefault((place, message), "\n".join(said))
            message, place, said = "", "", []
        elif message and len(said) < _MAX_KEPT_LINES:
            if not place and (match := _ARROW.fullmatch(line)):
                place = match[1]
            said.append(line)
    return [(place, message, said) for (place, message), said in found.items()]


def _message(said: list[str]) -> str:
    for position, line in enumerate(said):
        if match := _PANIC.fullmatch(line):
            rest = [part for part in said[position + 1 : position + 4] if not part.startswith(("note:", "stack "))]
            return f"{match[1]}: {' '.join(part.strip() for part in rest)}"
    return said[-1] if said else ""
