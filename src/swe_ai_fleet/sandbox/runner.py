"""The runner of a session: the shell text that runs commands inside, and the pipes for their output.

The runner is a POSIX shell that reads this text from a pipe. A shell that reads a pipe parses up to the next complete
command and then executes it, so quoting is all the framing there is: newlines inside quotes need no care. Captured
output is bounded.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
from collections.abc import Mapping
from enum import StrEnum
from pathlib import PurePosixPath
from types import MappingProxyType

from swe_ai_fleet.domain.command import Command, Output
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.sandbox import jail
from swe_ai_fleet.sandbox.images import PROGRAMS

# The launcher and the sandbox itself run outside: their environment holds nothing from a caller or a repository. The
# runner exports the variables of commands, inside (see `prologue`).
LAUNCHER_VARIABLES: Mapping[str, str] = MappingProxyType({"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"})
# Joins the control groups, opens the pipes at the descriptors that the runner expects, and becomes the sandbox. The
# pipes are opened by way of the parent's /proc entry: a shell can neither rename nor close descriptors above 9.
LAUNCHER = """\
exec 3>"$1" 4<"$2" 6>"$3" || exit 125
shift 3
while [ "$1" != -- ]; do echo 0 >"$1" || exit 125; shift; done
shift
exec "$@"
"""
# Descriptors of the runner: 1 and 5 are the command's output, 3 takes exit codes, 4 brings this text. The runner
# survives signals that a command sends to its own process group. Every process that a command leaves behind is killed
# before its exit code is reported; `kill` fails when none is left.
_PROLOGUE = """\
exec 5>&2 2>/dev/null 4<&- 6>&-
trap : HUP INT TERM
{limits}
{exports}
fleet_end() {{
  s=$?
  {sweep}
  echo "$s" >&3
}}
echo ready >&3
"""
# After some rounds all processes are dying and none can fork, but the last may take a while to free its memory and to
# be reaped. The runner cannot wait for that: `sleep` would be a fork, which a fork bomb makes fail. The host waits.
_SWEEP = """i=0
  while kill -s KILL -- -1; do
    i=$((i + 1))
    [ "$i" -lt 200 ] || { s="$s dying"; break; }
  done"""
# In a Landlock domain, where signals stay inside: one round reaches all processes, and the host kills later ones.
_SWEEP_DOMAIN = "kill -s KILL -- -1"
_OPEN_FILES = 8192
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


# Variables that name the certificates of authorities; their files are mounted anyway.
_CERTIFICATE_VARIABLES = (
    "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "NODE_EXTRA_CA_CERTS", "PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_DIR",
    "SSL_CERT_FILE",
)  # fmt: skip


_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Not taken from an image: the sandbox sets its own, and LD_* would be loaded into the fleet's programs too.
_OWN_VARIABLES = frozenset({"HOME", "LD_AUDIT", "LD_PRELOAD", "LOGNAME", "PATH", "TMPDIR", "USER"})


# Offline settings of package managers: without them, some retry for minutes.
_OFFLINE = {
    "CARGO_NET_OFFLINE": "true",
    "GOPROXY": "off",
    "GOSUMDB": "off",
    "PIP_RETRIES": "0",
    "UV_OFFLINE": "1",
    "npm_config_offline": "true",
}


class Capture:
    """Keeps the first and the last `limit` bytes of its input, and counts the rest."""

    __slots__ = ("_head", "_limit", "_tail", "total")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0
        """The number of bytes so far."""

    def feed(self, data: bytes) -> None:
        self.total += len(data)
        room = self._limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        # Cutting at twice the limit makes the copying linear in the input.
        if len(self._tail) > 2 * self._limit:
            self._cut()

    def output(self) -> Output:
        self._cut()
        return Output(head=bytes(self._head), tail=bytes(self._tail), total=self.total)

    def _cut(self) -> None:
        surplus = len(self._tail) - self._limit
        if surplus > 0:
            del self._tail[:surplus]


class Pipes:
    """The pipes of a session, as (read end, write end)."""

    def __init__(self) -> None:
        self._open: set[int] = set()
        try:
            self.output, self.errors, self.status, self.control, self.info = (self._pipe() for _ in range(5))
        except OSError:
            self.close()
            raise
        for descriptor in (self.output[0], self.errors[0], self.status[0], self.control[1], self.info[0]):
            os.set_blocking(descriptor, False)

    def _pipe(self) -> tuple[int, int]:
        ends = os.pipe()
        self._open.update(ends)
        return ends

    @property
    def paths(self) -> list[str]:
        """The paths of the launcher's pipe ends: status, control, report."""
        return [f"/proc/{os.getpid()}/fd/{end}" for end in (self.status[1], self.control[0], self.info[1])]

    @property
    def of_the_runner(self) -> tuple[int, ...]:
        """The launcher's descriptors 1, 2, 3, 4 and 6."""
        return (self.output[1], self.errors[1], self.status[1], self.control[0], self.info[1])

    def hand_over(self) -> None:
        """Close the ends that only the runner needs, once it has them; the output's write ends stay for their flags."""
        self._close({self.status[1], self.control[0], *self.info})

    def unblock_writers(self) -> None:
        """Undo changes of a command to the output pipes: O_NONBLOCK belongs to the pipe, not to its setter."""
        for _, write in (self.output, self.errors):
            os.set_blocking(write, True)

    def forget(self, loop: asyncio.AbstractEventLoop) -> None:
        for read in (self.output[0], self.errors[0], self.status[0]):
            loop.remove_reader(read)
        loop.remove_writer(self.control[1])

    @property
    def closed(self) -> bool:
        return not self._open

    def close(self) -> None:
        self._close(set(self._open))

    def _close(self, ends: set[int]) -> None:
        for end in ends & self._open:
            self._open.discard(end)
            os.close(end)


class Sweep(StrEnum):
    """The processes that a runner kills after each command: those of its process namespace, of its domain, or none."""

    NAMESPACE = _SWEEP
    DOMAIN = _SWEEP_DOMAIN
    NOTHING = ":"


def prologue(variables: Mapping[str, str], *, max_file_bytes: int, max_processes: int | None, sweep: Sweep) -> bytes:
    """The first text for a runner, including the variables of its commands; the runner answers `ready`.

    After each command a runner that sweeps kills every process it can signal: use it only inside a sandbox. Raises
    InvalidRequest for names and values that no variable can have.
    """
    limits = shell_limits(max_file_bytes=max_file_bytes, max_processes=max_processes)
    text = _PROLOGUE.format(limits=limits, exports=exports(variables), sweep=sweep.value)
    return os.fsencode(text)


def shell_limits(*, max_file_bytes: int, max_processes: int | None) -> str:
    """The lines by which a shell limits itself and its children; `max_processes` None: their number is not limited."""
    lines = ["umask 022", "ulimit -c 0", f"ulimit -f {max(1, max_file_bytes // 512)}", f"ulimit -n {_OPEN_FILES}"]
    if max_processes:
        # The number of processes is -u in some shells and -p in others.
        lines.append(f"ulimit -u {max_processes} 2>/dev/null || ulimit -p {max_processes}")
    return "\n".join(lines)


def render(command: Command, *, mount: str, before: tuple[str, ...] = (), writing: bool = True) -> bytes:
    """The text that makes a runner execute `command` and report its exit code.

    `before` is an argv to run to its end first; without `writing` no file can grow. Raises InvalidRequest for an empty
    argv, NUL bytes, an invalid variable name, or a working directory outside the workspace.
    """
    if not command.argv or not command.argv[0]:
        raise InvalidRequest("the command is empty", field="argv")
    if command.argv[0].startswith("-"):
        raise InvalidRequest("the name of a program cannot start with a dash", field="argv")
    steps = [f"cd -P {_quote(_directory(command.cwd, mount), 'cwd')} || exit 126"]
    if not writing:
        steps.append("ulimit -f 0")
    if assigned := exports(command.variables):
        steps.append(assigned)
    steps.append("exec " + " ".join(_quote(word, "argv") for word in command.argv))
    errors = "2>&1" if command.merge_stderr else "2>&5"
    text = f"({'; '.join(steps)}) {errors} 3>&- 5>&-\nfleet_end\n"
    if before:
        text = f"{' '.join(map(shlex.quote, before))} >/dev/null 2>&5 3>&- 5>&-\n{text}"
    return os.fsencode(text)


def _directory(cwd: str, mount: str) -> str:
    if cwd == ".":
        return mount
    path = PurePosixPath(cwd)
    if path.is_absolute() or ".." in path.parts:
        raise InvalidRequest(f"the working directory {cwd!r} is not inside the workspace", field="cwd")
    return str(PurePosixPath(mount) / path)


def exports(variables: Mapping[str, str]) -> str:
    """The shell line that exports variables. Raises InvalidRequest for an invalid name or a NUL byte."""
    for name in variables:
        if not _NAME.fullmatch(name):
            raise InvalidRequest(f"{name!r} is not a variable name", field="variables")
    words = [f"{name}={_quote(value, 'variables')}" for name, value in variables.items()]
    return f"export {' '.join(words)}" if words else ""


def _quote(text: str, field: str) -> str:
    if "\0" in text:
        raise InvalidRequest("a NUL byte cannot be passed to a process", field=field)
    return shlex.quote(text)


def session_variables(
    environment: Environment,
    host: Mapping[str, str],
    *,
    home: str = jail.HOME,
    tmp: str = jail.TMP,
    proxy: str = "",
    isolated: bool = True,
    interpreters: str = "",
) -> dict[str, str]:
    """The variables of a session: the fleet's, overridden by the environment's; of the host's only certificate paths.

    A session reaches the network through `proxy` (a URL), not at all (`isolated`), or as the host does (neither).
    `interpreters` is a directory with links to the fleet's Python; empty: the one where it is installed.
    """
    base = jail.toolchain()
    image = environment.image
    if image is not None:
        path = [*environment.path, image.variables.get("PATH", _DEFAULT_PATH), PROGRAMS]
    else:
        path = [*environment.path, "/usr/local/sbin", "/usr/local/bin"]
        path += [interpreters or str(base / "bin")] if base else []
        path += ["/usr/sbin", "/usr/bin", "/sbin", "/bin"]
    variables = {
        "CI": "1",
        "GIT_PAGER": "cat",
        "GIT_TERMINAL_PROMPT": "0",
        "HOME": home,
        "LANG": "C.UTF-8",
        "LOGNAME": "agent",
        "NO_COLOR": "1",
        "PAGER": "cat",
        "PATH": ":".join(path),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "SHELL": "/bin/sh",
        "TERM": "dumb",
        "TMPDIR": tmp,
        "USER": "agent",
    }
    if image is not None:
        # The user's name, home and temporary directory stay the sandbox's.
        variables |= {"LOGNAME": "root", "USER": "root"} if not image.user else {}
        variables |= {name: value for name, value in image.variables.items() if name not in _OWN_VARIABLES}
    for name in _CERTIFICATE_VARIABLES if image is None else ():
        if host.get(name, "").startswith(("/etc/ssl/cert", "/etc/pki/", "/usr/")):
            variables[name] = host[name]
    if isolated and not proxy:
        variables |= _OFFLINE
    if proxy:
        # Yarn from version 2 on reads only its own variables.
        own = ("PIP_PROXY", "YARN_HTTP_PROXY", "YARN_HTTPS_PROXY")
        names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", *own)
        variables |= dict.fromkeys(names, proxy) | dict.fromkeys(("no_proxy", "NO_PROXY"), "localhost,127.0.0.1,::1")
    return variables | dict(environment.variables)
