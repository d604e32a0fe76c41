"""Languages inside of commands: what of sed's, awk's and printf's only reads and prints."""

from __future__ import annotations

import re

MAX_SCRIPT_CHARS = 2_000
"""Of sed's scripts that are looked at."""
_BRACKET = re.compile(r"\[\^?+\]?+(?>\[[:.=].*?[:.=]\]|[^\]])*+\]")
_NUMBER = re.compile(r"[0-9]+")
_SED_PLAIN = "pPdDhHgGxnNlqQ=zF"
_AWK_RUNS = re.compile(r"system|getline|sorted_in|asort|[|>@]")
_CONVERSION = re.compile(r"%(?:%|[-+ #0]*(?:\*|\d+)?(?:\.(?:\*|\d+)?)?[hlLjzt]*[diouxXfFeEgGaAcsbq]|\([^()]*\)T)")


def awk_prints(program: str) -> bool:
    """Whether a program of awk runs and writes nothing: all that could needs a sign or a name that it does not have."""
    return not _AWK_RUNS.search(program.replace(">=", "").replace("||", ""))


def printf_prints(form: str) -> bool:
    """Whether a format of printf has conversions that only print; `%n` would set a variable."""
    return "%" not in _CONVERSION.sub("", form)


def sed_edits(script: str) -> bool:
    """Whether a script of sed only edits what it reads: every command is known, none runs, reads or writes a file."""
    if len(script) > MAX_SCRIPT_CHARS:
        return False
    try:
        _Sed(script).whole()
    except ValueError:
        return False
    return True


class _Sed:
    """A place in a script. ValueError: what stands there is not known to be harmless."""

    def __init__(self, script: str) -> None:
        self._text = script
        self._at = 0

    def whole(self) -> None:
        while self._at < len(self._text):
            self._skip(" \t\n;}")
            if self._peek() == "#":
                self._line()
            elif self._at < len(self._text):
                self._addresses()
                self._command()

    def _addresses(self) -> None:
        if self._address():
            self._skip(" \t")
            if self._peek() == ",":
                self._at += 1
                self._skip(" \t")
                if self._peek() in ("+", "~"):
                    self._at += 1
                if not self._address():
                    raise ValueError
        self._skip(" \t!")

    def _address(self) -> bool:
        if number := _NUMBER.match(self._text, self._at):
            self._at = number.end()
            if self._peek() == "~":
                self._at += 1
                number = _NUMBER.match(self._text, self._at)
                self._at = number.end() if number else self._at
            return True
        if self._peek() == "$":
            self._at += 1
            return True
        if self._peek() not in ("/", "\\"):
            return False
        self._at += self._peek() == "\\"
        delimiter = self._next()
        self._section(delimiter)
        self._skip("IM")
        return True

    def _command(self) -> None:
        command = self._next()
        if command == "{":
            return
        if command == "s":
            delimiter = self._next()
            self._section(delimiter)
            self._section(delimiter, pattern=False)
            self._skip("gpiImM0123456789")
        elif command == "y":
            delimiter = self._next()
            self._section(delimiter, pattern=False)
            self._section(delimiter, pattern=False)
        elif command in "aic":
            # One line of text; a backslash at its end would take the next line, or the next script, along.
            if self._line().endswith("\\"):
                raise ValueError
            return
        elif command in ":btT":
            self._skip(" \t")
            label = re.compile(r"[\w.-]*", re.ASCII).match(self._text, self._at)
            self._at = label.end() if label else self._at
        elif command in _SED_PLAIN:
            self._skip(" \t")
            number = _NUMBER.match(self._text, self._at) if command in "lqQ" else None
            self._at = number.end() if number else self._at
        else:
            raise ValueError
        self._skip(" \t")
        if self._peek() not in ("", ";", "\n", "}", "#"):
            raise ValueError

    def _section(self, delimiter: str, *, pattern: bool = True) -> None:
        """A part between delimiters, which ends at the same place whether or not a sed looks into brackets."""
        if delimiter in ("", "\n", "\\", ";", "}", " ") or delimiter.isalnum():
            raise ValueError
        start = self._at
        while (char := self._next()) != delimiter:
            if char in ("", "\n"):
                raise ValueError
            if char == "\\" and self._next() in ("", "\n"):
                raise ValueError
        section = re.sub(r"\\.", "_", self._text[start : self._at - 1])
        if pattern and "[" in _BRACKET.sub("", section):
            raise ValueError

    def _line(self) -> str:
        end = self._text.find("\n", self._at)
        line = self._text[self._at :] if end < 0 else self._text[self._at : end]
        self._at += len(line)
        return line

    def _skip(self, chars: str) -> None:
        while self._peek() and self._peek() in chars:
            self._at += 1

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _next(self) -> str:
        char = self._peek()
        self._at += 1
        return char
