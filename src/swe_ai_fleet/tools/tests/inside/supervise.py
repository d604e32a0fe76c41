"""Runs a test runner in the sandbox, watches each test, and continues without tests that hang or crash the runner.

Executed by the fleet's Python with the standard library only; `supervise.py SPEC`, a JSON object:

    argv           the runner's command
    before         the argv prefix of that command, such as a shell that runs something first
    stream         where results come from, a name in `streams.py`: `file` (the runner's plug-in appends them to
                   `events`), or another that parses the runner's output
    events         the path of the events, one JSON object per line with its seal (see `running.py`)
    key            the path of the key of the seals, which is read and removed before anything else runs
    shown_key      whether the runner gets the key in a variable: a runner that starts others passes on no descriptors
    unset          variables that the runner does not get
    seconds        limit of the whole run, after which the remaining tests are not run
    start_seconds  limit until the first test begins, and between two tests
    test_seconds   limit of one test
    limits         {id: seconds} of tests that are known to take longer

All limits except `seconds` are for a machine with a CPU for each running process; on a machine with more load they are
multiplied by the load per CPU, tenfold at most.

The runner gets FLEET_TEST_EVENTS (the file to append to), FLEET_TEST_KEY_FD (a pipe that holds the key; or
FLEET_TEST_KEY, the key itself), FLEET_TEST_DONE (a file with the events of earlier attempts, whose tests are not run
again), FLEET_TEST_SECONDS, and under load FLEET_TEST_LONGER (an integer factor for the limit of a test, and for the
runner's own limits). Events without a valid seal are ignored, because tests can write to the file too. Exit code: the
runner's own (1 in place of 0 if a test was killed), 124 after a timeout.
"""

from __future__ import annotations

import ctypes
import hashlib
import hmac
import json
import math
import os
import select
import selectors
import signal
import subprocess
import sys
import time
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from streams import STREAMS, Stream

TIME_IS_UP = 124
_RESTARTS = 12
_TICK_SECONDS = 0.1
_GRACE_SECONDS = 3.0
# Runners stop tests that take too long themselves, if they can; only after this margin is the runner killed.
_MARGIN_SECONDS = 5.0
_MAX_FACTOR = 10
# The last bytes read must still be in the file at the next read: events are only appended.
_CHECKED_BYTES = 200
_OVERWRITTEN = "a test wrote over the report of the run"


def slowdown(load: float, cpus: int) -> int:
    """The factor by which a command takes longer at this load (runnable processes) than on an idle machine.

    A test that waits for a CPU does not hang. An integer, so that shells can multiply by it.
    """
    return min(max(math.ceil(load / cpus), 1), _MAX_FACTOR)


class EventsProgress:
    """The state of the run according to the events file."""

    def __init__(self, path: str, key: str) -> None:
        self.path = path
        self.key = key
        self.sealed: list[bytes] = []
        self.running: dict[str, float] = {}
        self.ended: set[str] = set()
        self.finished = False
        self.last_event_at = time.monotonic()
        self._file = open(path, "ab+")  # noqa: SIM115 - open for as long as the process lives
        self._position = 0
        self._rest = self._last = b""
        self.overwritten = False

    def read(self) -> None:
        self._file.seek(self._position - len(self._last))
        data = self._file.read()
        if self.overwritten or not data.startswith(self._last):
            self.overwritten = True
            return
        data = data[len(self._last) :]
        self._position += len(data)
        self._last = (self._last + data)[-_CHECKED_BYTES:]
        if data:
            self.last_event_at = time.monotonic()
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            text, _, seal = line.rpartition(b"\t")
            if not hmac.compare_digest(_seal(self.key, text), seal):
                continue
            self.sealed.append(text)
            try:
                event = json.loads(text)
                kind, name = event["e"], str(event.get("id", ""))
            except (ValueError, KeyError, TypeError, AttributeError):
                continue
            if kind == "start":
                self.running[name] = time.monotonic()
                self.finished = False
            elif kind == "end":
                self.running.pop(name, None)
                self.ended.add(name)
            elif kind in ("collected", "done"):
                self.running.pop(name, None)
            elif kind == "finish":
                self.finished = True
        try:
            self.overwritten = not os.path.samestat(os.lstat(self.path), os.fstat(self._file.fileno()))
        except OSError:
            self.overwritten = True

    def append(self, **event: Any) -> None:
        text = json.dumps(event).encode()
        self._file.write(text + b"\t" + _seal(self.key, text) + b"\n")
        self._file.flush()
        self.read()

    def restore(self) -> None:
        """Replace a file that tests have overwritten by the events that were read before."""
        self.sealed.append(json.dumps({"e": "stop", "why": "overwritten", "m": _OVERWRITTEN}).encode())
        with open(f"{self.path}.restored", "xb") as restored:
            restored.writelines(line + b"\t" + _seal(self.key, line) + b"\n" for line in self.sealed)
        os.replace(restored.name, self.path)

    def restart(self) -> None:
        self.running.clear()
        self.finished = False
        self.last_event_at = time.monotonic()


def _slowdown() -> int:
    return slowdown(os.getloadavg()[0], os.cpu_count() or 1)


class RunnerProcess:
    """One process of the runner."""

    def __init__(self, spec: dict[str, Any], argv: list[str], stream: Stream, progress: EventsProgress) -> None:
        done = spec["events"] + ".done"
        with open(done, "wb") as earlier:
            earlier.write(b"".join(line + b"\n" for line in progress.sealed))
        longer = _slowdown()
        reading, writing = os.pipe()
        os.write(writing, progress.key.encode())
        os.close(writing)
        variables = dict(
            {name: value for name, value in os.environ.items() if name not in spec["unset"]},
            FLEET_TEST_EVENTS=spec["events"],
            FLEET_TEST_DONE=done,
            FLEET_TEST_SECONDS=str(spec["test_seconds"]),
            **({"FLEET_TEST_LONGER": str(longer)} if longer > 1 else {}),
            **({"FLEET_TEST_KEY": progress.key} if spec["shown_key"] else {"FLEET_TEST_KEY_FD": str(reading)}),
        )
        self._spec, self._stream, self._progress = spec, stream, progress
        self.overdue: list[str] = []
        self._stopped = False
        self._pipe = stream.reads_output
        self.process = subprocess.Popen(
            [*spec.get("before", ()), *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if self._pipe else None,
            stderr=subprocess.STDOUT,
            env=variables,
            start_new_session=True,
            pass_fds=(reading,),
        )
        os.close(reading)
        self._exit = os.pidfd_open(self.process.pid)
        self._selector = selectors.DefaultSelector()
        if self.process.stdout is not None:
            os.set_blocking(self.process.stdout.fileno(), False)
            self._selector.register(self.process.stdout, selectors.EVENT_READ)

    def watch(self, deadline: float) -> str:
        """Wait for the end: `ended`, `hung`, `overwritten` or `time`; all its processes are gone afterwards."""
        while True:
            closed = self._read_output()
            self._progress.read()
            if self.process.poll() is not None and (closed or not self._pipe):
                break
            now = time.monotonic()
            if now > deadline:
                return self._stop("time")
            if self._progress.overwritten:
                return self._stop("overwritten")
            if self._is_overdue(now):
                return self._stop("hung")
            if self.process.poll() is not None:
                # A child that it left behind holds the pipe open.
                self._kill(signal.SIGKILL)
        self._kill(signal.SIGKILL)
        self._read_output()
        self._progress.read()
        return "ended"

    def _read_output(self) -> bool:
        """Pass the runner's output to the stream; True at its end."""
        if self.process.stdout is None:
            select.select([self._exit], [], [], 0.02 if self._progress.running else 0.05)
            return True
        if not self._selector.get_map():
            time.sleep(0.02)
            return True
        for _ in self._selector.select(_TICK_SECONDS):
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            if not data:
                self._selector.unregister(self.process.stdout)
                return True
            if not self._stopped:  # results that a killed runner prints do not count
                self._stream.feed(data, self._progress.append)
        return False

    def _is_overdue(self, now: float) -> bool:
        limits, usual, longer = self._spec.get("limits", {}), self._spec["test_seconds"], _slowdown()
        if not self._progress.running:
            return now - self._progress.last_event_at > self._spec["start_seconds"] * longer
        self.overdue = [
            name
            for name, began in self._progress.running.items()
            if now - began > max(limits.get(name, usual), usual) * longer + _MARGIN_SECONDS
        ]
        return bool(self.overdue)

    def _stop(self, why: str) -> str:
        self._stopped = True
        self._kill(signal.SIGTERM)
        give_up = time.monotonic() + _GRACE_SECONDS
        while self.process.poll() is None and time.monotonic() < give_up:
            self._read_output()
        self._kill(signal.SIGKILL)
        self.process.wait()
        self._read_output()
        self._progress.read()
        return why

    def _kill(self, number: int) -> None:
        try:
            os.killpg(self.process.pid, number)
        except (ProcessLookupError, PermissionError):
            return


def _seal(key: str, text: bytes) -> bytes:
    return hmac.new(key.encode(), text, hashlib.sha256).hexdigest().encode()


def _how(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _hide_memory() -> None:
    """Keep other processes of the same user from reading this process's memory, which holds the key."""
    set_dumpable = 4
    ctypes.CDLL(None, use_errno=True).prctl(set_dumpable, 0, 0, 0, 0)


def main(spec: dict[str, Any]) -> int:
    _hide_memory()
    deadline = time.monotonic() + spec["seconds"]
    with open(spec["key"]) as file:
        key = file.read()
    os.unlink(spec["key"])
    progress = EventsProgress(spec["events"], key)
    argv = list(spec["argv"])
    results = STREAMS[spec["stream"]]()
    killed = False
    for _ in range(_RESTARTS + 1):
        before = len(progress.ended)
        attempt = RunnerProcess(spec, argv, results, progress)
        how = attempt.watch(deadline)
        if how == "ended":
            results.close(progress.append)
        code = attempt.process.returncode
        if progress.overwritten:
            progress.restore()
            return max(code, 1)
        if how == "time":
            for name in list(progress.running):
                progress.append(e="cut", id=name)
            progress.append(e="stop", why="time")
            return TIME_IS_UP
        # Tests that ran in parallel with a hanging one are run again.
        culprits = attempt.overdue if how == "hung" else list(progress.running)
        if how == "ended" and (progress.finished or (results.complete() and not culprits)):
            return (code if code >= 0 else 128 - code) or int(killed)
        if how == "hung" and not culprits:
            progress.append(e="stop", why="silent")
            return TIME_IS_UP
        for name in culprits:
            seconds = max(spec.get("limits", {}).get(name, 0), spec["test_seconds"])
            message = f"not finished within {seconds:g} s" if how == "hung" else f"the test run died here: {_how(code)}"
            kind = "hung" if how == "hung" else "crashed"
            progress.append(e="end", id=name, o="error", m=message, t=results.output_of(name), k=kind)
        retry = results.retry(list(spec["argv"]), culprits)
        if retry is None or len(progress.ended) == before:
            progress.append(e="stop", why="died" if how == "ended" else "hung", m=_how(code))
            return code if code >= 0 else 128 - code
        argv, killed = retry, True
        progress.restart()
    progress.append(e="stop", why="died")
    return 1


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
