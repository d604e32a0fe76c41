"""Runs unittest and reports each test as it ends, stops tests that hang, and skips those that have ended before.

Executed by the repository's Python (3.6 or newer) with the standard library only. Variables as for `fleet_pytest.py`.
Arguments: those of `python -m unittest` (`discover` and its options, names); or `--paths`, then `-k=WORD` patterns and
names, where a name is a path of a file or directory, `file.py::Class::test`, or a dotted name; or `--django`, then
Python's arguments for running Django's tests.
"""

import hashlib
import hmac
import json
import os
import re
import runpy
import signal
import sys
import threading
import time
import traceback
import unittest

# As with `python -m`, modules are found from the working directory.
sys.path[0] = ""
_MESSAGE_CHARS = 600
_TRACEBACK_CHARS = 2400
_EVENTS = os.environ.get("FLEET_TEST_EVENTS")
_SECONDS = float(os.environ.get("FLEET_TEST_SECONDS") or 0)
_LONGER = int(os.environ.get("FLEET_TEST_LONGER") or 1)
_OPTIONS = json.loads(os.environ.get("FLEET_TEST_OPTIONS") or "{}")
_WORST = {"error": 3, "failed": 2, "skipped": 1, "passed": 0}


class HangError(AssertionError):
    pass


def sealing():
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


SEAL = sealing()


def write(**event):
    if _EVENTS:
        line = SEAL(json.dumps(event).encode("utf-8", "replace"))
        file = os.open(_EVENTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(file, line)
        os.close(file)


def ended():
    done, path = set(), os.environ.get("FLEET_TEST_DONE")
    if path and os.path.exists(path):
        with open(path, encoding="utf-8", errors="replace") as events:
            for line in events:
                try:
                    event = json.loads(line)
                except ValueError:
                    continue
                if event.get("e") == "end":
                    done.add(event["id"])
    return done


DONE = ended() | set(_OPTIONS.get("deselect", []))


class EventResult(unittest.TextTestResult):
    cases = 0
    _own = None

    def startTest(self, test):
        self._own = [time.time(), "passed", "", ""]
        write(e="start", id=test.id())
        self._alarm(test.id())
        super().startTest(test)

    def stopTest(self, test):
        super().stopTest(test)
        self._disarm()
        began, outcome, message, trace = self._own
        if outcome:
            self._write(test.id(), outcome, message, trace, began)
        else:
            write(e="collected", id=test.id())

    def _alarm(self, name):
        seconds = max(_SECONDS, _OPTIONS.get("limits", {}).get(name, 0)) * _LONGER
        self._armed = (
            bool(seconds)
            and threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
        )
        if self._armed:

            def stop(number, frame):
                raise HangError("not finished within %g s" % seconds)

            self._stop = stop
            signal.signal(signal.SIGALRM, stop)
            signal.setitimer(signal.ITIMER_REAL, seconds)

    def _disarm(self):
        if self._armed and signal.getsignal(signal.SIGALRM) is self._stop:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def _write(self, name, outcome, message, trace, began):
        event = {"e": "end", "id": name, "o": outcome, "ms": round((time.time() - began) * 1000)}
        if message:
            event["m"] = message[:_MESSAGE_CHARS]
        if trace:
            event["t"] = trace[-_TRACEBACK_CHARS:]
        write(**event)
        EventResult.cases += 1

    def _note(self, test, outcome, message="", trace=""):
        own = self._own
        if own is None or not isinstance(test, unittest.TestCase):
            # The set-up of a class or module, not a test that has started.
            self._write(_plain(test.id()), outcome, message, trace, time.time())
        elif _WORST[outcome] >= _WORST[own[1]] and (not own[2] or _WORST[outcome] > _WORST[own[1]]):
            own[1:] = [outcome, message, trace]

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self._note(test, "failed", _exception_text(error), self.failures[-1][1])

    def addError(self, test, error):
        super().addError(test, error)
        message, trace = _exception_text(error), self.errors[-1][1]
        if type(test).__name__ == "_FailedTest":
            self._own[1] = ""
            self._write(_plain(test.id()), "error", _where(trace) + _last(message), trace, self._own[0])
            return
        self._note(test, "error", message, trace)

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error is not None:
            failed = issubclass(error[0], test.failureException)
            trace = (self.failures if failed else self.errors)[-1][1]
            outcome = "failed" if failed else "error"
            self._write(subtest.id(), outcome, _exception_text(error), trace, self._own[0])
            # The subtests are reported, not the test itself.
            self._own[1] = ""

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self._note(test, "skipped", reason)

    def addExpectedFailure(self, test, error):
        super().addExpectedFailure(test, error)
        self._note(test, "skipped", "expected failure")

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self._note(test, "failed", "passed, though a failure was expected")


def _plain(name):
    """The plain name in `setUpClass (module.Class)`, or in the loader's name for a module that cannot be imported."""
    match = re.match(r"(?:setUp|tearDown)(?:Class|Module) \((.+)\)$", name)
    if match:
        return match.group(1)
    return name.partition("_FailedTest.")[2] or name


def _exception_text(error):
    return "".join(traceback.format_exception_only(error[0], error[1])).strip()


def _last(message):
    return (message.strip().splitlines() or [""])[-1]


def _where(trace):
    """The position in the repository, rather than in unittest's own frames, where an import failed."""
    own = os.path.dirname(unittest.__file__)
    frames = [frame for frame in re.findall('File "([^"]+)", line ([0-9]+)', trace) if not frame[0].startswith(own)]
    return "%s:%s: " % (os.path.relpath(frames[-1][0]), frames[-1][1]) if frames else ""


def left(suite):
    """The suite without the tests that have ended before."""
    if not isinstance(suite, unittest.TestSuite):
        return suite
    rest = type(suite)()
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            rest.addTest(left(test))
        elif test.id() not in DONE and _plain(test.id()) not in DONE:
            rest.addTest(test)
    return rest


class EventRunner(unittest.TextTestRunner):
    resultclass = EventResult

    def run(self, test):
        result = super().run(left(test) if DONE else test)
        write(e="finish", code=0 if result.wasSuccessful() else 1)
        return result


def top_of(directory):
    while directory and os.path.isfile(os.path.join(directory, "__init__.py")):
        directory = os.path.dirname(directory)
    return directory or "."


def selected(names, patterns):
    suite = unittest.TestSuite()
    for name in names:
        path, _, inside = name.partition("::")
        loader = unittest.TestLoader()
        loader.testNamePatterns = patterns or None
        if inside:
            loader.testNamePatterns = ["*." + inside.replace("::", ".").replace("[", "[[]")]
        if os.path.isdir(path):
            for pattern in ("test*.py", "*_test.py"):
                loader._top_level_dir = None
                suite.addTests(loader.discover(path, pattern, top_of(path)))
        elif os.path.isfile(path):
            directory, file = os.path.split(path)
            # Character classes keep brackets and stars in the name from acting as a pattern.
            pattern = "".join("[" + c + "]" if c in "*?[" else c for c in file)
            suite.addTests(loader.discover(directory or ".", pattern, top_of(directory or "")))
        else:
            suite.addTests(loader.loadTestsFromName(name))
    return suite


def django(arguments):
    from django.test.runner import DiscoverRunner

    DiscoverRunner.test_runner = EventRunner
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")


def main(arguments):
    if arguments[:1] == ["--django"]:
        return django(arguments[1:])
    if arguments[:1] == ["--paths"]:
        patterns, names = [], []
        for argument in arguments[1:]:
            if argument.startswith("-k="):
                word = argument[3:]
                patterns.append(word if "*" in word else "*" + word + "*")
            else:
                names.append(argument)
        done = EventRunner(verbosity=1).run(selected(names, patterns))
        return not done.wasSuccessful() or (0 if EventResult.cases else 5)
    unittest.main(module=None, argv=["python3 -m unittest"] + arguments, testRunner=EventRunner)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
