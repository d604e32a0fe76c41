"""Commands that start others: what they start is judged, with all that it may be given."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from swe_ai_fleet.tools.shell_risk.options import Options, names
from swe_ai_fleet.tools.shell_risk.scope import Scope, Words, harmless_variable
from swe_ai_fleet.tools.shell_risk.words import Word, computed

_DURATION = re.compile(r"\d+(\.\d+)?[smhd]?", re.ASCII)


def _env(words: Words, scope: Scope) -> Iterator[str]:
    rest = list(words)
    while rest and rest[0].text is not None and "=" in rest[0].text and not rest[0].text.startswith("-"):
        name = rest.pop(0).text or ""
        if not harmless_variable(name.partition("=")[0]):
            yield f"environment: it sets {name.partition('=')[0][:64]}"
    yield from _wrapped(rest, scope)


def _timeout(words: Words, scope: Scope) -> Iterator[str]:
    known = Options(
        valued="ks", flags="v", long=names("foreground preserve-status kill-after= signal="), permuted=False
    )
    parsed = known.parse(words)
    if parsed is None or not parsed.operands or not _DURATION.fullmatch(parsed.operands[0].text or ""):
        yield "unknown: an option of timeout, or a time that is computed"
        return
    yield from _wrapped(parsed.operands[1:], scope)


def _nice(words: Words, scope: Scope) -> Iterator[str]:
    parsed = Options(valued="nc", numbers=True, permuted=False).parse(words)
    if parsed is None:
        yield "unknown: an option of a command that starts another"
        return
    yield from _wrapped(parsed.operands, scope)


def _command(words: Words, scope: Scope) -> Iterator[str]:
    """`command -v` looks a name up."""
    if words and words[0].text in ("-v", "-V"):
        return
    yield from _wrapped(words, scope)


def _wrapped(words: Words, scope: Scope) -> Iterator[str]:
    """A command that runs its arguments as another: that is judged; options of its own are not known."""
    if words and (text := words[0].text) is not None and (text.startswith("-") or "=" in text):
        yield "unknown: an option or a variable given to a command that runs another"
    elif words:
        yield from scope.command(words, scope)


def _shell(words: Words, scope: Scope) -> Iterator[str]:
    flag = words[0].text if words else None
    line = words[1].text if len(words) > 1 else None
    if flag is None or not re.fullmatch(r"-[eux]*c", flag) or line is None or line.startswith(("-", "+")):
        yield "unknown: it runs code that cannot be judged"
        return
    yield from scope.nested(line)


_FIND_TESTS = names(
    "-name -iname -path -ipath -wholename -iwholename -regex -iregex -regextype -type -xtype -size -mtime -mmin -atime "
    "-amin -ctime -cmin -newer -maxdepth -mindepth -perm -user -group -links -samefile -inum -printf -lname -ilname"
)
"""Those with one argument."""
_FIND_SIGNS = names(
    "-H -L -P -depth -prune -print -print0 -ls -empty -not ! -a -o -or -and ( ) , -readable -writable -executable "
    "-quit -true -false -mount -xdev -follow -noleaf -daystart -nouser -nogroup"
)


def _find(words: Words, scope: Scope) -> Iterator[str]:
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word.text is None:
            if not word.operand:
                yield "unknown: an argument of find is computed"
        elif word.text in _FIND_TESTS:
            if not rest or rest.pop(0).many:
                yield "unknown: an argument of find is computed"
        elif word.text == "-delete":
            yield "destructive: find deletes what it finds"
        elif word.text in ("-exec", "-execdir", "-ok", "-okdir"):
            inner = scope if word.text in ("-exec", "-ok") else replace(scope, moved=True)
            end = _end_of_exec(rest)
            if not end:
                yield "unknown: where the command that find runs ends"
                end = len(rest)
            if end:
                yield from inner.command([_filled(part, "{}", "./") for part in rest[:end]], inner)
            rest = rest[end + 1 :]
        elif word.text.startswith(("-fprint", "-fls")):
            yield "destructive: find writes files"
        elif word.text not in _FIND_SIGNS and not word.operand:
            yield "unknown: an argument of find that is not known"


def _end_of_exec(words: Words) -> int:
    """How many words belong to a command of find's; 0 where its kinds would not agree about that."""
    for at, word in enumerate(words):
        if word.text == ";":
            return at
        if word.text == "+":
            return at if at > 1 and words[at - 1].text == "{}" else 0
    return 0


def _filled(word: Word, sign: str, head: str) -> Word:
    """A word in which a sign is replaced by what is found when it runs, which begins with `head`."""
    if word.text is None or sign not in word.text:
        return word
    before = word.text.partition(sign)[0]
    return computed(before or head)


def _xargs(words: Words, scope: Scope) -> Iterator[str]:
    known = Options(
        flags="0rtx",
        valued="nPLIdaEs",
        long=names("null no-run-if-empty max-args= max-procs= max-lines= replace= delimiter= arg-file= verbose"),
        permuted=False,
    )
    parsed = known.parse(words)
    if parsed is None or not parsed.operands:
        yield "unknown: what xargs runs"
        return
    signs = parsed.values("I", "replace")
    if any(sign.text in (None, "") for sign in signs):
        yield "unknown: what xargs puts its input in place of is computed"
        return
    command = list(parsed.operands)
    for sign in signs:
        command = [_filled(word, sign.text or "", "") for word in command]
    # What it reads becomes further arguments, so only commands that are harmless with any are.
    yield from scope.command(command if signs else [*command, computed(many=True)], scope)


STARTERS: Mapping[str, Callable[[Words, Scope], Iterator[str]]] = {
    **dict.fromkeys(("sh", "bash", "dash"), _shell),
    **dict.fromkeys(("builtin", "time", "nohup", "stdbuf", "setsid"), _wrapped),
    **dict.fromkeys(("nice", "ionice"), _nice),
    "env": _env,
    "timeout": _timeout,
    "command": _command,
    "find": _find,
    "xargs": _xargs,
}
