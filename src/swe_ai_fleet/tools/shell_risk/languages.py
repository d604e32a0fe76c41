"""Languages inside of commands: what of sed's, awk's and printf's only reads and prints."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from swe_ai_fleet.tools.shell_risk.words import Options, Word, names

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


_OUTSIDE = names("push fetch pull clone remote ls-remote submodule send-email request-pull bundle archive")
_RUNS_A_PROGRAM = re.compile(r"%G|signature")
"""In a format: gpg is asked about signatures."""

_LOOKING = names(
    "stat stat= shortstat numstat dirstat summary name-only name-status oneline graph decorate decorate= no- "
    "decorate all branches tags remotes abbrev-commit no-abbrev-commit abbrev abbrev= format= pretty pretty= "
    "date= since= until= after= before= author= committer= grep= all-match invert-grep max-count= skip= reverse "
    "first-parent merges no-merges follow full-history patch no-patch raw unified= cached staged merge-base color "
    "color= no-color word-diff word-diff= word-diff-regex= color-words ignore-all-space ignore-space-change "
    "ignore-space-at-eol ignore-blank-lines minimal patience histogram diff-algorithm= check binary no-renames "
    "find-renames find-copies diff-filter= pickaxe-all pickaxe-regex relative no-ext-diff no-textconv no-index "
    "exit-code quiet function-context inter-hunk-context= topo-order date-order author-date-order left-right "
    "left-only right-only cherry cherry-pick cherry-mark count parents children simplify-merges ancestry-path no- "
    "walk source full-index text ignore-submodules no-prefix src-prefix= dst-prefix= root cc no-commit-id stdin "
    "numbered email objects line-prefix= compact-summary no-mailmap use-mailmap relative-date regexp-ignore-case "
    "extended-regexp fixed-strings perl-regexp boundary walk-reflogs find-object= no-notes not exclude= glob= no- "
    "expand-tabs"
)
_DIFFS = Options(flags="abceghiklmnpqrstuvwzEFPRW", valued="SGnIL", attached="UMCBDX", long=_LOOKING, numbers=True)
"""Of log, diff and their like. Not there: --output, --ext-diff, --textconv, --show-signature."""

_COMMANDS: Mapping[str, Options] = {
    **dict.fromkeys(names("diff log show rev-list diff-tree diff-index whatchanged"), _DIFFS),
    "shortlog": Options(flags="nsec", long=names("numbered summary email committer no-merges since= until= all")),
    "status": Options(
        flags="sbvz",
        attached="u",
        long=names("short branch long verbose porcelain porcelain= ignored untracked-files="),
    ),
    "rev-parse": Options(
        flags="q",
        long=names(
            "abbrev-ref show-toplevel verify short short= git-dir is-inside-work-tree show-prefix show-cdup quiet all "
            "branches tags symbolic-full-name is-bare-repository absolute-git-dir git-common-dir"
        ),
    ),
    "ls-files": Options(
        flags="cdmostukvz",
        valued="xX",
        long=names(
            "cached deleted modified others stage unmerged killed exclude-standard exclude= error-unmatch full-name "
            "eol directory ignored deduplicate recurse-submodules"
        ),
    ),
    "ls-tree": Options(
        flags="rdtlz", long=names("name-only name-status full-name full-tree long abbrev abbrev= object-only")
    ),
    "blame": Options(
        flags="bltfnswecp", valued="L", attached="MC", long=names("porcelain line-porcelain date= show-name show-email")
    ),
    "describe": Options(
        long=names("all tags always dirty long abbrev= match= exclude= candidates= exact-match first-parent contains")
    ),
    "cat-file": Options(flags="tspe", long=names("batch batch-check batch-all-objects")),
    "merge-base": Options(flags="a", long=names("all is-ancestor octopus independent fork-point")),
    "name-rev": Options(long=names("name-only tags all always")),
    "grep": Options(
        flags="ivwnlLcqhHEFPGIaozpW",
        valued="eABCfm",
        long=names(
            "ignore-case word-regexp invert-match line-number files-with-matches files-without-match count quiet "
            "extended-regexp fixed-strings perl-regexp basic-regexp cached untracked no-index break heading and or not "
            "column only-matching show-function function-context max-depth= text no-color color exclude-standard"
        ),
        numbers=True,
    ),
    "add": Options(flags="AuvnfN", long=names("all update verbose dry-run force intent-to-add ignore-errors")),
    "commit": Options(
        flags="aqsvn",
        valued="mFC",
        long=names(
            "message= all quiet signoff no-verify amend no-edit allow-empty allow-empty-message author= date= file= "
            "dry-run only include verbose reuse-message= reset-author"
        ),
    ),
    "count-objects": Options(flags="vH", long=names("verbose human-readable")),
    "show-ref": Options(flags="sdq", long=names("heads tags head verify hash hash= abbrev abbrev= dereference quiet")),
    "for-each-ref": Options(long=names("format= sort= count= contains= points-at= merged= no-merged=")),
    "var": Options(flags="l"),
}


def git_risks(words: Sequence[Word], *, moved: bool) -> Iterator[str]:
    """Why a call of git should be looked at; `moved` says that it may run in another directory than the clone's own."""
    command = words[0].text if words else None
    if command is None or command.startswith("-"):
        yield "unknown: an option before git's command"
        return
    rest = words[1:]
    if command in _OUTSIDE:
        yield "exfiltration: git speaks to another repository"
        return
    if command in _COMMANDS:
        yield from _known_risks(command, rest)
    elif not _keeps_everything(command, rest):
        yield f"destructive: git {command[:32]} may change or throw away what is there"
    if moved:
        # A directory can be made to look like a repository with a configuration of its own, which names programs.
        yield "unknown: git in another directory, whose configuration may run programs"


def _known_risks(command: str, words: Sequence[Word]) -> Iterator[str]:
    parsed = _COMMANDS[command].parse(words)
    if parsed is None:
        yield "unknown: an option of git that writes or runs things, or one that is computed"
    elif any(value.text is None or _RUNS_A_PROGRAM.search(value.text) for value in parsed.values("format", "pretty")):
        yield "unknown: a format of git that may run a program"
    elif command == "commit" and not parsed.has(
        "m", "F", "C", "message", "file", "no-edit", "reuse-message", "dry-run"
    ):
        yield "unknown: git starts an editor for the message"


def _keeps_everything(command: str, words: Sequence[Word]) -> bool:
    """Whether a command of git that can throw work away does not, as it is given here."""
    texts = [word.text for word in words]
    match command:
        case "branch":
            return all(text in ("-a", "-v", "-vv", "-r", "--list", "--show-current") for text in texts)
        case "checkout" | "switch":
            return texts[:1] in (["-b"], ["-c"]) and len(texts) == 2 and not words[1].many
        case "stash":
            return texts in ([], ["list"], ["push"], ["show"])
        case _:
            return False
