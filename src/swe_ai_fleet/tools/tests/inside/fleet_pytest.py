"""A pytest plug-in that reports each test as it ends, stops tests that hang, and skips those that have ended before.

Loaded by `-p fleet_pytest` into the repository's pytest (3.7 or newer) and Python (3.6 or newer); standard library and
pytest only. Variables: FLEET_TEST_EVENTS (a file to append events to), FLEET_TEST_DONE (events of earlier attempts),
FLEET_TEST_KEY_FD (a pipe with the key that seals events; it is read before anything of the repository is imported),
FLEET_TEST_SECONDS (limit of one test), FLEET_TEST_LONGER (a factor for it), FLEET_TEST_OPTIONS (JSON: `limits`, seconds
by id; `first`, groups of path prefixes and ids to run first, in this order).
"""

import hashlib
import hmac
import json
import os
import signal
import threading
import time

import pytest

EXPECTED = "expected to fail: "
_MESSAGE_CHARS = 600
_TRACEBACK_CHARS = 2400
_SEVERITY = {"passed": 0, "skipped": 1, "failed": 2, "error": 3}


def _sealing():
    """A function that seals a line; only it holds the key."""
    try:
        file = int(os.environ.pop("FLEET_TEST_KEY_FD"))
        key = os.read(file, 1000)
        os.close(file)
    except (KeyError, ValueError, OSError):
        key = b""
    start = hmac.new(key, b"", hashlib.sha256)

    def seal(line):
        sealed = start.copy()
        sealed.update(line)
        return line + b"\t" + sealed.hexdigest().encode() + b"\n"

    return seal


_seal = _sealing()


def pytest_configure(config):
    global _seal
    if os.environ.get("FLEET_TEST_EVENTS") and _seal is not None:
        config.pluginmanager.register(Reporter(config, _seal), "fleet-reporter")
        _seal = None


class Reporter:
    def __init__(self, config, seal):
        self._seal = seal
        options = json.loads(os.environ.get("FLEET_TEST_OPTIONS") or "{}")
        self._seconds = float(os.environ.get("FLEET_TEST_SECONDS") or 0)
        self._longer = int(os.environ.get("FLEET_TEST_LONGER") or 1)
        self._limits = options.get("limits", {})
        self._first = options.get("first", [])
        self._done, self._hung_files = _ended(os.environ.get("FLEET_TEST_DONE"))
        # With xdist the controller reports every test; workers only run them.
        self._writes = not hasattr(config, "workerinput")
        self._file = os.open(os.environ["FLEET_TEST_EVENTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._open = {}
        self._main = threading.main_thread()

    def write(self, **event):
        if self._writes:
            os.write(self._file, self._seal(json.dumps(event).encode("utf-8", "replace")))

    def pytest_sessionstart(self, session):
        # pytest-timeout does not allow for a loaded machine.
        if getattr(session.config, "_env_timeout", None):
            session.config._env_timeout *= self._longer

    # Collection

    def pytest_collectstart(self, collector):
        if isinstance(collector, pytest.File):
            self.write(e="start", id=collector.nodeid)

    def pytest_collectreport(self, report):
        if report.failed:
            message, trace = _message_and_trace(report)
            self.write(e="end", id=report.nodeid, o="error", m=message, t=trace)
        elif report.skipped and report.nodeid:
            self.write(e="end", id=report.nodeid, o="skipped", m=_message_and_trace(report)[0])
        elif report.nodeid:
            self.write(e="collected", id=report.nodeid)

    # pluggy passes only the arguments that a hook names.
    if int(pytest.__version__.split(".")[0]) >= 7:

        @pytest.hookimpl(tryfirst=True)
        def pytest_ignore_collect(self, collection_path):
            return self._ignored(collection_path)

    else:

        @pytest.hookimpl(tryfirst=True)
        def pytest_ignore_collect(self, path):
            return self._ignored(path)

    def _ignored(self, path):
        name = str(path).replace(os.sep, "/")
        return True if any(name.endswith("/" + file) for file in self._hung_files) else None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config, items):
        if self._done:
            deselected = [item for item in items if item.nodeid in self._done]
            if deselected:
                items[:] = [item for item in items if item.nodeid not in self._done]
                config.hook.pytest_deselected(items=deselected)
        if self._first:
            items.sort(key=self._turn)

    def _turn(self, item):
        name = item.nodeid
        for turn, group in enumerate(self._first):
            if any(name == wanted or name.startswith((wanted + "::", wanted + "/", wanted + "[")) for wanted in group):
                return turn
        return len(self._first)

    # Tests

    def pytest_runtest_logstart(self, nodeid, location):
        self._open[nodeid] = [time.time(), "passed", "", ""]
        self.write(e="start", id=nodeid)

    def pytest_runtest_logreport(self, report):
        entry = self._open.get(report.nodeid)
        if entry is None or report.outcome == "rerun":
            return
        outcome = report.outcome
        if report.failed and report.when != "call":
            outcome = "error"
        if hasattr(report, "wasxfail") and report.skipped:
            outcome = "skipped"
        if _SEVERITY[outcome] > _SEVERITY[entry[1]]:
            entry[1:] = [outcome, *_message_and_trace(report)]
            if hasattr(report, "wasxfail") and report.skipped:
                entry[2:] = [f"{EXPECTED}{report.wasxfail}"[:_MESSAGE_CHARS], ""]

    def pytest_runtest_logfinish(self, nodeid, location):
        began, outcome, message, trace = self._open.pop(nodeid, (time.time(), "passed", "", ""))
        event = {"e": "end", "id": nodeid, "o": outcome, "ms": round((time.time() - began) * 1000)}
        if message:
            event["m"] = message
        if trace:
            event["t"] = trace
        self.write(**event)

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item):
        seconds = max(self._seconds, self._limits.get(item.nodeid, 0)) * self._longer
        # An alarm that the repository uses (pytest-timeout, a test of signals) is not replaced.
        ours = (
            seconds
            and threading.current_thread() is self._main
            and hasattr(signal, "SIGALRM")
            and signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
        )
        if not ours:
            yield
            return

        def stop(number, frame):
            pytest.fail("not finished within %g s" % seconds)

        signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield
        finally:
            if signal.getsignal(signal.SIGALRM) is stop:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, signal.SIG_DFL)

    # The end

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session, exitstatus):
        self.write(e="finish", code=int(exitstatus))

    def pytest_internalerror(self, excrepr):
        self.write(e="fault", m=str(excrepr)[-_TRACEBACK_CHARS:])


def _ended(path):
    """(ids that have ended, files whose collection hung or crashed), from the events of earlier attempts."""
    done, files = set(), set()
    if not path or not os.path.exists(path):
        return done, files
    with open(path, encoding="utf-8", errors="replace") as events:
        for line in events:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if event.get("e") == "end":
                done.add(event["id"])
                if event.get("k") and "::" not in event["id"]:
                    files.add(event["id"])
    return done, files


def _message_and_trace(report):
    """(message, traceback) of a report other than a pass."""
    longrepr = report.longrepr
    if isinstance(longrepr, tuple):  # a skip: file, line, reason
        return str(longrepr[2])[:_MESSAGE_CHARS], ""
    text = str(longrepr or "")
    crash = getattr(longrepr, "reprcrash", None)
    message = getattr(crash, "message", "") or ""
    if not message:
        lines = [line for line in text.strip().splitlines() if line.strip()]
        message = lines[-1].lstrip("E ").strip() if lines else ""
    return message[:_MESSAGE_CHARS], text[-_TRACEBACK_CHARS:]
