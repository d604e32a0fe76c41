"""Whatever a command printed: the reports of all runners whose form can be recognised in it."""

from __future__ import annotations

import re

from swe_ai_fleet.domain.test_run import TestRun
from swe_ai_fleet.tools.tests.lines import lines, seconds
from swe_ai_fleet.tools.tests.reports import parse_pytest_output
from swe_ai_fleet.tools.tests.runners.cargo_reports import parse_cargo_output
from swe_ai_fleet.tools.tests.runners.go_reports import parse_go
from swe_ai_fleet.tools.tests.runners.javascript_reports import (
    parse_jest_output,
    parse_mocha_output,
    parse_node_output,
    parse_vitest_output,
)
from swe_ai_fleet.tools.tests.runners.tally import Tally, merged
from swe_ai_fleet.tools.tests.runners.tap_reports import parse_tap
from swe_ai_fleet.tools.tests.runners.unittest_reports import parse_unittest_output

_DIAGNOSTIC = re.compile(r"([^\s:][^:]{0,300}:\d{1,9}(?::\d{1,9})?): (?:fatal )?error: (.+)")
_CTEST = re.compile(r"\d{1,3}% tests passed, (\d{1,9}) tests failed out of (\d{1,9})")
_CTEST_FAILING = re.compile(r"\s+\d{1,9} - (\S.{0,300}) \((.{1,60})\)")
_CTEST_TIME = re.compile(r"Total Test time \(real\) = +(\d{1,9}(?:\.\d{1,9})?) sec")
_PARSERS = (
    parse_pytest_output,
    parse_unittest_output,
    parse_cargo_output,
    parse_jest_output,
    parse_vitest_output,
    parse_mocha_output,
)


def recognise(text: str) -> TestRun | None:
    """The report in any runner's output, several runners' reports added up; None where none is recognised.

    What a C compiler could not compile is an error named `file:line:column`.
    """
    found = [report for parser in _PARSERS if (report := parser(text)) is not None]
    # One runner prints only one of these: node writes TAP and, behind it, its counts.
    found += [
        report
        for report in (
            parse_go(text),
            parse_tap(text) or parse_node_output(text),
            _ctest(text),
            _diagnostics(text),
        )
        if report is not None
    ]
    return merged(found)


def _ctest(text: str) -> TestRun | None:
    found = lines(text)
    match = next((match for line in reversed(found) if (match := _CTEST.fullmatch(line))), None)
    if match is None:
        return None
    failed, total = int(match[1]), int(match[2])
    timed = next((end for line in reversed(found) if (end := _CTEST_TIME.fullmatch(line))), None)
    tally = Tally()
    names = [(name[1], name[2]) for line in found if (name := _CTEST_FAILING.fullmatch(line))][:failed]
    for name, why in names:
        tally.add(name, "failure", why)
    tally.count("failure", failed - len(names))
    tally.count("passed", total - failed)
    return tally.report(seconds(timed[1]) if timed else 0.0)


def _diagnostics(text: str) -> TestRun | None:
    found = dict.fromkeys((match[1], match[2]) for line in lines(text) if (match := _DIAGNOSTIC.fullmatch(line)))
    if not found:
        return None
    tally = Tally()
    for place, message in found:
        tally.add(place, "error", message)
    return tally.report()
