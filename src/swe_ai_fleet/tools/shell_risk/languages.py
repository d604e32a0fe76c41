"""Commands with their own languages: which git commands, and which sed, awk and printf scripts, are harmless."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from swe_ai_fleet.tools.shell_risk.words import Options, Word, names

MAX_SCRIPT_CHARS = 2_000
"""Longer scripts of sed are not analysed."""
_BRACKET = re.compile(r"\[\^?+\]?+(?>\[[:.=].*?[:.=]\]|[^\]])*+\]")
_DELIMITER = r"(?:_|[^\w\s\\;}])"


def _part(opener: str) -> str:
    return rf"(?:\\[^\n]|(?!(?P={opener}))[^\\\n])*+"


def _address(opener: str, pattern: str) -> str:
    regex = rf"(?:\\(?={_DELIMITER})|(?=/))(?P<{opener}>.)(?P<{pattern}>{_part(opener)})(?P={opener})[IM]*+"
    return rf"(?:[0-9]++(?:~[0-9]*+)?|\$|{regex})"


_SED = re.compile(
    r"[ \t\n;}]++|\#[^\n]*+"
    rf"|(?:{_address('d1', 'p1')}[ \t]*+(?:,[ \t]*+[+~]?{_address('d2', 'p2')})?)?[ \t!]*+"
    r"(?:\{|\Z|[aic](?![^\n]*\\(?:\n|\Z))[^\n]*+"
    rf"|(?:s(?P<d3>{_DELIMITER})(?P<p3>{_part('d3')})(?P=d3){_part('d3')}(?P=d3)[gpiImM0-9]*+"
    rf"|y(?P<d4>{_DELIMITER}){_part('d4')}(?P=d4){_part('d4')}(?P=d4)"
    r"|[:btT][ \t]*+[A-Za-z0-9_.-]*+|[lqQ][ \t]*+[0-9]*+|[pPdDhHgGxnN=zF])[ \t]*+(?=[;\n}#]|\Z))"
)
"""Blanks, a comment, or a command with its addresses; brackets in the patterns `p1` to `p3` are checked separately."""
_AWK_RUNS = re.compile(r"system|getline|sorted_in|asort|[|>@]")
_CONVERSION = re.compile(r"%(?:%|[-+ #0]*(?:\*|\d+)?(?:\.(?:\*|\d+)?)?[hlLjzt]*[diouxXfFeEgGaAcsbq]|\([^()]*\)T)")


def awk_prints(program: str) -> bool:
    """Whether an awk program runs and writes nothing: it lacks the operators and names that could."""
    return not _AWK_RUNS.search(program.replace(">=", "").replace("||", ""))


def printf_prints(form: str) -> bool:
    """Whether a printf format has only conversions that print; `%n` would set a variable."""
    return "%" not in _CONVERSION.sub("", form)


def sed_edits(script: str) -> bool:
    """Whether a sed script only edits its input: all commands are known, and none runs a program or uses a file."""
    at = 0
    while at < len(script) <= MAX_SCRIPT_CHARS:
        command = _SED.match(script, at)
        if command is None or not all(map(_ends_alike, filter(None, command.group("p1", "p2", "p3")))):
            return False
        at = command.end()
    return at >= len(script)


def _ends_alike(pattern: str) -> bool:
    """Whether all seds agree on the end of a pattern, whether or not they search for it within brackets."""
    return "[" not in _BRACKET.sub("", re.sub(r"\\.", "_", pattern))


_OUTSIDE = names("push fetch pull clone remote ls-remote submodule send-email request-pull bundle archive")
_RUNS_A_PROGRAM = re.compile(r"%G|signature")
"""Parts of a format that run gpg to verify signatures."""

_LOOKING = names(
    "stat stat= shortstat numstat dirstat summary name-only name-status oneline graph decorate decorate= no-decorate "
    "all branches tags remotes abbrev-commit no-abbrev-commit abbrev abbrev= format= pretty pretty= date= since= "
    "until= after= before= author= committer= grep= all-match invert-grep max-count= skip= reverse first-parent "
    "merges no-merges follow full-history patch no-patch raw unified= cached staged merge-base color color= no-color "
    "word-diff word-diff= word-diff-regex= color-words ignore-all-space ignore-space-change ignore-space-at-eol "
    "ignore-blank-lines minimal patience histogram diff-algorithm= check binary no-renames find-renames find-copies "
    "diff-filter= pickaxe-all pickaxe-regex relative no-ext-diff no-textconv no-index exit-code quiet "
    "function-context inter-hunk-context= topo-order date-order author-date-order left-right left-only right-only "
    "cherry cherry-pick cherry-mark count parents children simplify-merges ancestry-path no-walk source full-index "
    "text ignore-submodules no-prefix src-prefix= dst-prefix= root cc no-commit-id stdin numbered email objects "
    "line-prefix= compact-summary no-mailmap use-mailmap relative-date regexp-ignore-case extended-regexp "
    "fixed-strings perl-regexp boundary walk-reflogs find-object= no-notes not exclude= glob= no-expand-tabs"
)
_DIFFS = Options(flags="abceghiklmnpqrstuvwzEFPRW", valued="SGnIL", attached="UMCBDX", long=_LOOKING, numbers=True)
"""The options of log, diff and similar commands, without --output, --ext-diff, --textconv and --show-signature."""

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
    """The reasons why a call of git is risky; `moved`: it may run in another directory than the clone's root."""
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
        # A directory can be made a repository, whose configuration may name programs to run.
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
    """Whether a git command that can discard work does not do so with these arguments."""
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
