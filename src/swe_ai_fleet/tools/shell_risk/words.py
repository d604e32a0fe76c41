"""Words of a command as far as they are known before it runs, and the checks of its options and paths.

Options are those with which a command is known to be harmless; paths decide where it may write and what it should not
read.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

_HIDDEN = re.compile(r"[/{,]\.|\.\.")
_HARMLESS_VARIABLE = re.compile(
    r"(?!npm_config|.*_proxy)[a-z_][a-z0-9_]*|CI|DEBUG|LANG|LC_[A-Z]+|TZ|TERM|NO_COLOR|FORCE_COLOR|COLUMNS"
)
_SECRET = re.compile(
    r"(^|/)(\.ssh|\.aws|\.gnupg|\.kube|\.docker|\.netrc|\.git-credentials|\.env(\.|$)|id_[a-z0-9]+$|credentials$)"
    r"|^/etc/(shadow|gshadow|sudoers)|^/proc/|^/sys/|^/root"
)
_WORKSPACE = ("/workspace", "/tmp", "/dev/null", "/dev/stdout", "/dev/stderr", "/dev/fd")  # noqa: S108 - of the sandbox
_NETWORK = re.compile(r"/(dev|inet[46]?)/+(tcp|udp)/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One word of a command.

    `text` is its value after the shell's processing, None if that is known only at run time. `head` is the known
    beginning of its value. `many` says that it may become several words or none. `shape` is a file name pattern
    (`src/*.py`, `a/{b,c}`) in an otherwise literal word. `number` says that its value is certainly digits. `written` is
    its source without quotes.
    """

    text: str | None
    head: str
    many: bool = False
    shape: str | None = None
    quoted: bool = False
    number: bool = False
    written: str = ""

    @property
    def operand(self) -> bool:
        """Whether it can never be an option, nor an operator such as `!` or `(`."""
        if self.shape is None and self.many:
            return False
        start = self.head if self.text is None else self.text
        return bool(start) and start[0] not in "-+(!,="

    @property
    def path(self) -> str | None:
        """A path or pattern that covers all values of the word; None if there is none."""
        if self.text is not None:
            return self.text
        if self.shape is None or not self.operand:
            return None
        patterns = [part for part in self.shape.split("/") if re.search(r"[*?\[{]", part)]
        # A pattern does not match names that begin with a dot unless it begins with one itself.
        if _HIDDEN.search(self.shape.removeprefix("./")) or any(part.startswith(".") for part in patterns):
            return None
        return self.shape


def literal(text: str) -> Word:
    return Word(text=text, head=text, number=text.isdigit() and text.isascii())


def computed(head: str = "", *, many: bool = False) -> Word:
    """A word whose value is known only at run time, except its beginning."""
    return Word(text=None, head=head, many=many)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """A command's options (without dashes, each with its value if it takes one) and operands."""

    options: tuple[tuple[str, Word | None], ...]
    operands: tuple[Word, ...]

    def values(self, *names: str) -> list[Word]:
        return [value for name, value in self.options if name in names and value is not None]

    def has(self, *names: str) -> bool:
        return any(name in names for name, _ in self.options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The known options of a command.

    Args:
        flags: Letters without a value.
        valued: Letters with a value, attached or in the next word.
        attached: Letters whose value, if any, is in the same word.
        long: Names without dashes; a name that ends in `=` takes a value, in the same word or the next, but only in
            the same if the name is also listed without `=`.
        numbers: Whether `-5` is an option.
        permuted: Whether options may follow operands.
    """

    flags: str = ""
    valued: str = ""
    attached: str = ""
    long: frozenset[str] = field(default_factory=frozenset[str])
    numbers: bool = False
    permuted: bool = True

    def parse(self, words: Sequence[Word]) -> Parsed | None:
        """Parse words into options and operands; None if a word is, or may be, an unknown option."""
        options: list[tuple[str, Word | None]] = []
        operands: list[Word] = []
        rest = list(words)
        while rest:
            word = rest.pop(0)
            if word.text is None and not word.operand:
                return None
            text = word.text
            if text == "--":
                operands += rest
                break
            if text is None or text == "-" or not text.startswith("-"):
                operands.append(word)
                if not self.permuted:
                    operands += rest
                    break
            elif text.startswith("--"):
                if not self._long(text[2:], rest, options):
                    return None
            elif not (self.numbers and text[1:].isdigit()) and not self._short(text[1:], rest, options):
                return None
        return Parsed(options=tuple(options), operands=tuple(operands))

    def _long(self, text: str, rest: list[Word], options: list[tuple[str, Word | None]]) -> bool:
        name, sign, value = text.partition("=")
        if f"{name}=" in self.long and (sign or name not in self.long):
            if not sign and (not rest or rest[0].many):
                return False
            options.append((name, Word(text=value, head=value) if sign else rest.pop(0)))
            return True
        options.append((name, None))
        return name in self.long and not sign

    def _short(self, text: str, rest: list[Word], options: list[tuple[str, Word | None]]) -> bool:
        for at, letter in enumerate(text, start=1):
            value = text[at:]
            if letter in self.valued:
                if not value and (not rest or rest[0].many):
                    return False
                options.append((letter, Word(text=value, head=value) if value else rest.pop(0)))
                return True
            if letter in self.attached:
                options.append((letter, Word(text=value, head=value)))
                return True
            if letter not in self.flags:
                return False
            options.append((letter, None))
        return True


def names(text: str) -> frozenset[str]:
    return frozenset(text.split())


Words = Sequence[Word]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandScope:
    """The context in which a command is assessed.

    `command` assesses another command that it starts, `nested` a command line inside it; `programs` collects the names
    of programs; `moved` says that it may run in another directory than the clone's root.
    """

    command: Callable[[Words, CommandScope], Iterator[str]]
    nested: Callable[[str], tuple[str, ...]]
    programs: set[str] = field(default_factory=set[str])
    moved: bool = False


def harmless_variable(name: str) -> bool:
    """Whether no command changes what it runs because of a variable of this name."""
    return bool(_HARMLESS_VARIABLE.fullmatch(name))


def reads_secrets(path: str) -> bool:
    """Whether the file at a path may be secret."""
    return bool(_SECRET.search(path))


def opens_network(path: str) -> bool:
    """Whether shells or awk open a network connection for a path."""
    return bool(_NETWORK.search(path))


def path_risk(path: str, *, writes: bool) -> str:
    """The risk of reading or writing a path; empty for paths of the workspace."""
    if _SECRET.search(path):
        return "exfiltration: it touches what may be secret"
    normal = posixpath.normpath(path)
    parts = normal.split("/")
    inside = not normal.startswith(("/", "~", "..")) or any(
        normal == root or normal.startswith(root + "/") for root in _WORKSPACE
    )
    if writes and (".git" in parts or (normal.startswith("/") and any(part.startswith(".") for part in parts[3:]))):
        return "privilege: it writes into git's own files, or into a program's settings"
    if writes and ".bin" in parts:
        return "privilege: it writes where programs are looked for"
    return "" if inside else "destructive: it writes outside the workspace"


def write_risk(word: Word) -> Iterator[str]:
    """The risk of writing to the file that a word names."""
    path = word.path
    if path is None:
        yield "unknown: where it writes to is computed"
    elif risk := path_risk(path, writes=True):
        yield risk
