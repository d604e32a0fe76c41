"""Parses the subset of the shell language that bash and every POSIX shell interpret alike.

Everything else raises `UnreadableShell`: arithmetic on names, arrays, indirection, `${x@P}`, `$[…]`, `select`,
`coproc`, odd quoting. Commands inside substitutions, loops and functions are found like all others.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from swe_ai_fleet.tools.shell_risk.text import ENDS, MAX_DEPTH, ShellText, UnreadableShell
from swe_ai_fleet.tools.shell_risk.words import Word

_RESERVED = re.compile(r"(then|do|done|fi|else|elif|esac|\})(?=[\s;&|()<>]|$)")
_COMPOUND = re.compile(r"(if|while|until|for|case|select|coproc|function|\{)(?=[\s;&|()<>]|$)")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\+?=")
_IN, _CASE_IN, _ESAC = re.compile(r"in(?=[ \t])"), re.compile(r"in(?=\s)"), re.compile(r"esac(?=[\s;&|)]|$)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REDIRECTION = re.compile(r"(\d?)(<<<|<<-|<<|<>|<&|>>|>\||>&|&>>|&>|<|>)")
_NAME_OF_FILE = re.compile(r"[\w./-]+", re.ASCII)
_DELIMITER = re.compile(r"[\w.-]+", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Redirection:
    """A redirection to or from a file; those between descriptors and here-documents are omitted."""

    sign: str
    target: Word


@dataclass(slots=True, kw_only=True)
class SimpleCommand:
    """A simple command: the names of its assignments, its words, its redirections."""

    assigned: list[str] = field(default_factory=list[str])
    words: list[Word] = field(default_factory=list[Word])
    redirections: list[Redirection] = field(default_factory=list[Redirection])


@dataclass(slots=True, kw_only=True)
class ShellScript:
    """All commands of a text, in any construct."""

    commands: list[SimpleCommand] = field(default_factory=list[SimpleCommand])
    pipelines: list[list[SimpleCommand]] = field(default_factory=list[list[SimpleCommand]])
    functions: int = 0


def read(text: str) -> ShellScript:
    """Parse a text. Raises UnreadableShell."""
    script = ShellScript()
    _Reader(text, script, nesting=0).whole()
    return script


class _Reader(ShellText):
    def __init__(self, text: str, script: ShellScript, *, nesting: int) -> None:
        super().__init__(text, nesting=nesting)
        self._script = script
        self._depth = 0

    def whole(self) -> None:
        self._list(frozenset())
        if self._at < len(self._text) or self._documents:
            raise UnreadableShell("a sign out of place")

    def _commands(self) -> None:
        self._list(frozenset())

    def _inner(self, text: str) -> ShellText:
        return _Reader(text, self._script, nesting=self._nesting + 1)

    # Lists and compound commands

    def _list(self, stops: frozenset[str]) -> None:
        """Commands up to a reserved word of `stops`, `)`, `;;` or the end."""
        self._depth += 1
        if self._depth + self._nesting > MAX_DEPTH:
            raise UnreadableShell("it is nested too deeply")
        while True:
            self._lines()
            if self._at >= len(self._text) or self._peek(")") or self._peek(";;"):
                break
            if match := _RESERVED.match(self._text, self._at):
                if match[1] not in stops:
                    raise UnreadableShell(f"{match[1]} out of place")
                break
            self._pipelines()
            self._blanks()
            if self._peek(";;") or not (self._peek(";") or self._peek("&") or self._peek("\n")):
                break
            if not self._peek("\n"):
                self._at += 1
        self._depth -= 1

    def _pipelines(self) -> None:
        self._pipeline()
        while True:
            self._blanks()
            if not (self._peek("&&") or self._peek("||")):
                return
            self._at += 2
            self._lines()
            self._pipeline()

    def _pipeline(self) -> None:
        pipeline: list[SimpleCommand] = []
        while re.match(r"![ \t]", self._text[self._at : self._at + 2]):
            self._at += 1
            self._blanks()
        while True:
            if command := self._command():
                pipeline.append(command)
            self._blanks()
            if not self._peek("|") or self._peek("||"):
                break
            self._at += 2 if self._peek("|&") else 1
            self._lines()
        self._script.pipelines.append(pipeline)

    def _command(self) -> SimpleCommand | None:
        if self._peek("(("):
            raise UnreadableShell("arithmetic")
        if self._peek("("):
            self._at += 1
            self._group(")")
            return None
        match = self._take(_COMPOUND)
        if not match:
            return self._simple()
        match match[1]:
            case "{":
                self._list(frozenset({"}"}))
                self._reserved("}")
            case "if":
                self._condition()
            case "while" | "until":
                self._list(frozenset({"do"}))
                self._loop()
            case "for":
                self._for()
            case "case":
                self._case()
            case other:
                raise UnreadableShell(other)
        self._redirections()
        return None

    def _group(self, end: str) -> None:
        self._list(frozenset())
        self._expect(end)
        self._redirections()

    def _condition(self) -> None:
        self._list(frozenset({"then"}))
        self._reserved("then")
        while True:
            self._list(frozenset({"elif", "else", "fi"}))
            match self._reserved("elif", "else", "fi"):
                case "elif":
                    self._list(frozenset({"then"}))
                    self._reserved("then")
                case "else":
                    self._list(frozenset({"fi"}))
                    self._reserved("fi")
                    return
                case _:
                    return

    def _loop(self) -> None:
        self._lines()
        self._reserved("do")
        self._list(frozenset({"done"}))
        self._reserved("done")

    def _for(self) -> None:
        self._blanks()
        name = self._take(_NAME)
        if not name:
            raise UnreadableShell("arithmetic")
        self._blanks()
        if not self._take(_IN):
            raise UnreadableShell("a loop without its words")
        self._script.commands.append(SimpleCommand(assigned=[name[0]]))
        self._blanks()
        while not (self._peek(";") or self._peek("\n")):
            self._word()
            self._blanks()
        if self._peek(";"):
            self._at += 1
        self._loop()

    def _case(self) -> None:
        if self._nesting:
            raise UnreadableShell("case inside a substitution")
        self._blanks()
        self._word()
        self._blanks()
        if not self._take(_CASE_IN):
            raise UnreadableShell("case without in")
        while True:
            self._lines()
            if self._take(_ESAC):
                return
            if self._peek("("):
                self._at += 1
            while True:
                self._blanks()
                self._word()
                self._blanks()
                if not self._peek("|"):
                    break
                self._at += 1
            self._expect(")")
            self._list(frozenset({"esac"}))
            if self._peek(";;"):
                self._at += 2
                if self._peek("&"):
                    raise UnreadableShell("case that falls through")

    def _reserved(self, *words: str) -> str:
        match = self._take(_RESERVED)
        if not match or match[1] not in words:
            raise UnreadableShell(f"{words[-1]} is missing")
        return match[1]

    # Simple commands

    def _simple(self) -> SimpleCommand:
        command = SimpleCommand()
        began = self._at
        while True:
            self._blanks()
            if self._peek("(") and len(command.words) == 1 and not command.assigned and not command.redirections:
                self._function()
                return command
            if self._redirection(command):
                continue
            if self._at >= len(self._text) or (
                self._text[self._at] in ENDS and not self._peek("<(") and not self._peek(">(")
            ):
                break
            if any(each.sign.startswith("&") for each in command.redirections):
                raise UnreadableShell("words behind &>, which some shells read as another command")
            if not command.words and (assignment := self._take(_ASSIGNMENT)):
                command.assigned.append(assignment[1])
                if self._peek("("):
                    raise UnreadableShell("an array")
                if self._at < len(self._text) and not self._peek_any(ENDS):
                    self._word()
                continue
            command.words.append(self._word())
        if self._at == began:
            raise UnreadableShell("a sign out of place")
        self._script.commands.append(command)
        return command

    def _function(self) -> None:
        """Read the rest of a function's definition, after its name."""
        self._at += 1
        self._blanks()
        self._expect(")")
        self._script.functions += 1
        self._depth += 1
        if self._depth + self._nesting > MAX_DEPTH:
            raise UnreadableShell("it is nested too deeply")
        self._lines()
        self._command()

    def _redirections(self) -> None:
        command = SimpleCommand()
        self._blanks()
        while self._redirection(command):
            self._blanks()
        self._script.commands.append(command)

    def _redirection(self, command: SimpleCommand) -> bool:
        """Read a redirection at this position; False if there is none."""
        match = _REDIRECTION.match(self._text, self._at)
        if not match or self._peek("<(") or self._peek(">(") or (match[1] and match[2].startswith("&")):
            return False
        number, sign = match[1], match[2]
        self._at = match.end()
        self._blanks()
        if sign in ("<<", "<<-"):
            self._document(strip=sign == "<<-")
            return True
        target = self._word()
        if sign == "<<<" or (sign in (">&", "<&") and target.text is not None and re.fullmatch(r"\d|-", target.text)):
            return True
        # bash expands the word after `>&` a second time, quoted or not.
        plain = target.text is not None and _NAME_OF_FILE.fullmatch(target.text)
        if sign == "<&" or (sign == ">&" and (number or not plain)):
            raise UnreadableShell("a descriptor that is computed")
        command.redirections.append(Redirection(sign=sign, target=target))
        return True

    def _document(self, *, strip: bool) -> None:
        delimiter = self._word()
        if self._nesting > 1 or not delimiter.text or not _DELIMITER.fullmatch(delimiter.text):
            raise UnreadableShell("a here-document with such an end")
        self._documents.append((delimiter.text, strip, not delimiter.quoted))

    def _read_documents(self) -> None:
        documents, self._documents = self._documents, []
        for delimiter, strip, expands in documents:
            body: list[str] = []
            while True:
                end = self._text.find("\n", self._at)
                line = self._text[self._at :] if end < 0 else self._text[self._at : end]
                bare = line.lstrip("\t") if strip else line
                self._at = len(self._text) if end < 0 else end + 1
                if bare == delimiter:
                    break
                # In a substitution, some shells end a document at a line that only begins with its delimiter.
                if end < 0 or bare.startswith(delimiter) or (expands and line.endswith("\\")):
                    raise UnreadableShell("a here-document without a plain end")
                body.append(bare)
            if expands:
                self._inner("\n".join(body)).quoted_text()
