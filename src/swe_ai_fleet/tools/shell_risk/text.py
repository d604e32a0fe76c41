"""Words as a shell parses them: quotes, expansions, patterns, blanks and comments; unknown syntax is refused."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod

from swe_ai_fleet.tools.shell_risk.words import Word

MAX_DEPTH = 40
ENDS = " \t\n;&|<>()"
"""The characters that end a word."""
_BLANK = " \t"
_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-]")
_PLAIN = r"[\w./:, *?%+=~-]*"
_BRACED = re.compile(
    r"\{(?:#(?:[A-Za-z_]\w*|[0-9@*])|(?:[A-Za-z_]\w*|[0-9]+|[@*#?$-])"
    rf"(?:(?::?[-+]|##?|%%?|//?){_PLAIN}|:\d+(?::\d+)?|\^\^?|,,?)?)\}}",
    re.ASCII,
)
"""The allowed forms of `${…}`: no indirection, subscript, `@` operator, computed offset or nesting."""
_NUMBERS = re.compile(r"\(\(([\d\s+\-*/%()<>=!&|^~?:,]*?)\)\)")
_ANSI = re.compile(r"'((?:[^'\\]|\\[^'])*)'")
_NUMBER = re.compile(r"\"?(\$[?#]|\$\(\([^$]*\)\))\"?|[0-9]+")
_TEST = re.compile(r"\[\[?(?=[\s;&|<>()]|$)")


class UnreadableShell(Exception):
    """The text has syntax that this reader does not support; its argument says which."""


class ShellText(ABC):
    """A text and a position in it. `nesting` is the number of substitutions around the text."""

    def __init__(self, text: str, *, nesting: int) -> None:
        if nesting > MAX_DEPTH:
            raise UnreadableShell("it is nested too deeply")
        self._text = text
        self._nesting = nesting
        self._at = 0
        self._documents: list[tuple[str, bool, bool]] = []

    def quoted_text(self) -> None:
        """Read all of the text as if it were in double quotes or a here-document."""
        while self._at < len(self._text):
            self._quoted_part()

    @abstractmethod
    def _commands(self) -> None:
        """Read the commands of a substitution that begins here, up to its end."""

    @abstractmethod
    def _inner(self, text: str) -> ShellText:
        """A text inside this one, such as the content of backquotes."""

    @abstractmethod
    def whole(self) -> None:
        """Read all of the text as commands."""

    @abstractmethod
    def _read_documents(self) -> None:
        """Read the bodies of the here-documents that began in the line before."""

    def _word(self) -> Word:
        """The word at this position. Raises UnreadableShell if there is none."""
        start, text, head = self._at, "", ""
        literal, many, quoted, pattern = True, False, False, False
        if self._peek("<(") or self._peek(">("):
            self._at += 2
            self._substituted(")")
            literal, head = False, "/dev/fd/"
        while self._at < len(self._text) and (char := self._text[self._at]) not in ENDS:
            if char == '"':
                piece, several = self._double()
                quoted, many = True, many or several
            elif char in "'\\":
                piece, quoted = self._quote(char), True
            elif char in "$`":
                before = self._at
                piece = self._expanded(in_quotes=False)
                source = self._text[before : self._at]
                many = many or (piece is None and source[:2] not in ("$?", "$#", "$$", "$'") and source[:3] != "$((")
            else:
                self._plain(char)
                pattern = pattern or self._is_pattern(char, start)
                piece = char
                self._at += 1
            if piece is None:
                literal = False
            elif literal:
                text += piece
                head = head if pattern else text
        source = self._text[start : self._at]
        if not source:
            raise UnreadableShell("a sign out of place")
        if self._peek("<(") or self._peek(">(") or (self._peek_any("<>") and (source.isdigit() or source[-1] == "}")):
            raise UnreadableShell("a redirection within a word")
        is_literal = literal and not pattern
        return Word(
            text=text if is_literal else None,
            head=head,
            many=many or pattern,
            shape=text if literal and pattern else None,
            quoted=quoted,
            number=bool(_NUMBER.fullmatch(source)),
            written=re.sub(r"[\"'\\]", "", source),
        )

    def _quote(self, sign: str) -> str:
        """The character after a backslash, or the content of single quotes."""
        if sign == "\\":
            piece = self._text[self._at + 1 : self._at + 2]
            if piece in ("", "\n"):
                raise UnreadableShell("a line that goes on within a word")
            self._plain(piece)
            self._at += 2
            return piece
        end = self._text.find("'", self._at + 1)
        piece = self._text[self._at + 1 : end]
        if end < 0:
            raise UnreadableShell("a quote that is not closed")
        self._no_document_over("\n" in piece)
        self._at = end + 1
        return piece

    def _is_pattern(self, char: str, start: int) -> bool:
        """Whether an unquoted character may expand its word to file names or to several words."""
        if char == "[":
            return not (_TEST.match(self._text, start) and self._at - start < 2)
        return char in "*?" or (char == "{" and self._text[self._at + 1 : self._at + 2] != "}")

    def _double(self) -> tuple[str | None, bool]:
        """The content of double quotes (None if computed), and whether it may become several words."""
        self._at += 1
        text: str | None = ""
        several = False
        while not self._peek('"'):
            if self._at >= len(self._text):
                raise UnreadableShell("a quote that is not closed")
            several = several or bool(re.match(r"\$(\{?@|\{[A-Za-z_]\w*\[)", self._text[self._at : self._at + 99]))
            piece = self._quoted_part()
            text = None if text is None or piece is None else text + piece
        self._at += 1
        return text, several

    def _quoted_part(self) -> str | None:
        char = self._text[self._at]
        if char in "$`":
            return self._expanded(in_quotes=True)
        if char == "\\":
            following = self._text[self._at + 1 : self._at + 2]
            if following in ("$", "`", '"', "\\"):
                self._at += 2
                return following
            if following == "\n":
                raise UnreadableShell("a line that goes on within quotes")
        self._no_document_over(char == "\n")
        if char in "\t\n":
            self._at += 1
            return char
        self._plain(char, in_quotes=True)
        self._at += 1
        return char

    def _expanded(self, *, in_quotes: bool) -> str | None:
        """Read an expansion at this position: None, or the `$` itself if it begins no expansion."""
        if self._peek("`"):
            self._backquoted(in_quotes=in_quotes)
            return None
        self._at += 1
        if match := self._take(_NUMBERS):
            if _unbalanced(match[1]) or not match[1].strip():
                raise UnreadableShell("arithmetic")
            return None
        if self._peek("((") or self._peek("["):
            raise UnreadableShell("arithmetic")
        if self._peek("("):
            self._at += 1
            self._substituted(")")
            return None
        if self._peek("{"):
            if not self._take(_BRACED):
                raise UnreadableShell("an expansion of a kind that is not known to be harmless")
            return None
        if self._take(_PARAMETER):
            if self._peek("["):
                raise UnreadableShell("a subscript")
            return None
        if not in_quotes and self._peek('"'):
            raise UnreadableShell("a quote that is translated")
        if not in_quotes and self._peek("'"):
            if not self._take(_ANSI):
                raise UnreadableShell("a quote with escapes")
            return None
        return "$"

    def _substituted(self, end: str) -> None:
        """Read the commands of a substitution that has begun, up to its end."""
        self._no_document_over(True)
        self._nesting += 1
        if self._nesting > MAX_DEPTH:
            raise UnreadableShell("it is nested too deeply")
        self._commands()
        if self._documents:
            raise UnreadableShell("a here-document that is not complete")
        self._expect(end)
        self._nesting -= 1

    def _backquoted(self, *, in_quotes: bool) -> None:
        end = self._text.find("`", self._at + 1)
        inner = self._text[self._at + 1 : end]
        self._no_document_over("\n" in inner)
        if end < 0 or "\\" in inner or "<<" in inner or (in_quotes and '"' in inner):
            raise UnreadableShell("backquotes with something quoted in them")
        self._inner(inner).whole()
        self._at = end + 1

    # Signs

    def _plain(self, char: str, *, in_quotes: bool = False) -> None:
        if not char.isprintable() and (not in_quotes or ord(char) < 128 or 0xD800 <= ord(char) < 0xE000):
            raise UnreadableShell("a character that cannot be seen")

    def _no_document_over(self, spans_lines: bool) -> None:
        if spans_lines and self._documents:
            raise UnreadableShell("a here-document that begins within a word")

    def _blanks(self) -> None:
        while self._at < len(self._text):
            if self._text[self._at] in _BLANK:
                self._at += 1
            elif self._text.startswith("\\\n", self._at) and self._at and self._text[self._at - 1] in _BLANK:
                self._at += 2
                if self._peek("#"):
                    raise UnreadableShell("a comment behind a line that goes on")
            else:
                break
        if self._peek("#") and (self._at == 0 or self._text[self._at - 1] in " \t\n;&|()"):
            if self._nesting:
                raise UnreadableShell("a comment inside a substitution")
            end = self._text.find("\n", self._at)
            self._at = len(self._text) if end < 0 else end

    def _lines(self) -> None:
        """Skip blanks, comments and line ends, and read the here-documents after line ends."""
        self._blanks()
        while self._peek("\n"):
            self._at += 1
            self._read_documents()
            self._blanks()

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Match at this position and move after the match."""
        match = pattern.match(self._text, self._at)
        self._at = match.end() if match else self._at
        return match

    def _peek(self, text: str) -> bool:
        return self._text.startswith(text, self._at)

    def _peek_any(self, chars: str) -> bool:
        return self._at < len(self._text) and self._text[self._at] in chars

    def _expect(self, sign: str) -> None:
        if not self._peek(sign):
            raise UnreadableShell(f"{sign} is missing")
        self._at += len(sign)


def _unbalanced(text: str) -> bool:
    depth = 0
    for char in text:
        depth += (char == "(") - (char == ")")
        if depth < 0:
            return True
    return depth != 0
