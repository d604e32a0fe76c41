"""The program that runs unittest in the sandbox and writes a JUnit report; its text is handed to `python3 -c`.

It stands on the standard library alone and works on every Python 3 that a repository may bring. `{report}` is where it
writes. Arguments that are paths of existing files or directories select those tests, others are names as unittest
takes them, `-k` patterns and the options of `discover` keep their meaning.
"""

from __future__ import annotations

PROGRAM = r"""
import io, os, re, sys, time, traceback, unittest
from xml.sax.saxutils import escape, quoteattr

REPORT, ARGUMENTS = sys.argv[1], sys.argv[2:]


def clean(text):
    return "".join(c if c in "\t\n" or 32 <= ord(c) < 0xD800 or 0xDFFF < ord(c) < 0xFFFE else "?" for c in str(text))


class Result(unittest.TextTestResult):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.cases, self.started = [], {}

    def startTest(self, test):
        self.started[test.id()] = time.time()
        super().startTest(test)

    def note(self, test, end, message="", details=""):
        seconds = time.time() - self.started.get(test.id(), time.time())
        name = test.id()
        if type(test).__name__ == "_FailedTest":
            # A module that cannot be imported: what matters is where and why, not unittest's own frames.
            name = name.partition("_FailedTest.")[2] or name
            own = os.path.dirname(unittest.__file__)
            frames = re.findall('File "([^"]+)", line ([0-9]+)', details)
            frames = [frame for frame in frames if not frame[0].startswith(own)]
            place = "%s:%s: " % (os.path.relpath(frames[-1][0]), frames[-1][1]) if frames else ""
            message = place + ((message.strip().splitlines() or [""])[-1])
        self.cases.append((name, end, message, details, seconds))

    def told(self, error):
        return "".join(traceback.format_exception_only(error[0], error[1])).strip()

    def addSuccess(self, test):
        super().addSuccess(test)
        self.note(test, "")

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.note(test, "failure", self.told(error), self.failures[-1][1])

    def addError(self, test, error):
        super().addError(test, error)
        self.note(test, "error", self.told(error), self.errors[-1][1])

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error is not None:
            failed = issubclass(error[0], test.failureException)
            details = (self.failures if failed else self.errors)[-1][1]
            self.note(subtest, "failure" if failed else "error", self.told(error), details)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.note(test, "skipped", reason)

    def addExpectedFailure(self, test, error):
        super().addExpectedFailure(test, error)
        self.note(test, "skipped", "expected failure")

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.note(test, "failure", "passed, though a failure was expected")


def top_of(directory):
    while os.path.isfile(os.path.join(directory, "__init__.py")) and os.path.dirname(directory):
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
            # A first character class keeps a name's own brackets and stars from being a pattern.
            pattern = "".join("[" + c + "]" if c in "*?[" else c for c in file)
            suite.addTests(loader.discover(directory or ".", pattern, top_of(directory or "")))
        else:
            suite.addTests(loader.loadTestsFromName(name))
    return suite


def write(result, seconds):
    text = io.StringIO()
    text.write('<?xml version="1.0" encoding="utf-8"?>\n<testsuite time="%.6f">\n' % seconds)
    for name, end, message, details, took in result.cases:
        text.write('<testcase name=%s time="%.6f">' % (quoteattr(clean(name)), took))
        if end:
            text.write("<%s message=%s>%s</%s>" % (end, quoteattr(clean(message)), escape(clean(details)), end))
        text.write("</testcase>\n")
    text.write("</testsuite>\n")
    with open(REPORT, "w", encoding="utf-8") as file:
        file.write(text.getvalue())


class Runner(unittest.TextTestRunner):
    resultclass = Result

    def run(self, test):
        started = time.time()
        result = super().run(test)
        write(result, time.time() - started)
        return result


if ARGUMENTS[:1] == ["--paths"]:
    patterns, names = [], []
    for argument in ARGUMENTS[1:]:
        if argument.startswith("-k="):
            word = argument[3:]
            patterns.append(word if "*" in word else "*" + word + "*")
        else:
            names.append(argument)
    done = Runner(verbosity=1).run(selected(names, patterns))
    sys.exit(not done.wasSuccessful() or (5 if not done.cases else 0))
unittest.main(module=None, argv=["python3 -m unittest"] + ARGUMENTS, testRunner=Runner)
"""
