"""The commands and arguments that are known to be harmless, and the risks of the others."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from swe_ai_fleet.tools.shell_risk.languages import awk_prints, git_risks, printf_prints, sed_edits
from swe_ai_fleet.tools.shell_risk.reader import Redirection, SimpleCommand, read
from swe_ai_fleet.tools.shell_risk.starters import (
    CHECKERS,
    RUNNERS,
    STARTERS,
    checker_risks,
    python_risks,
    runner_risks,
)
from swe_ai_fleet.tools.shell_risk.text import UnreadableShell
from swe_ai_fleet.tools.shell_risk.words import (
    CommandScope,
    Options,
    Words,
    harmless_variable,
    names,
    opens_network,
    path_risk,
    reads_secrets,
    write_risk,
)

SHELLS = names("sh bash dash zsh ksh ash busybox python python2 python3 perl ruby node deno bun php lua xargs")
_PLAIN = names(
    "ls cat head tail wc grep egrep fgrep cut tr echo pwd true false : basename dirname realpath readlink stat du df "
    "whoami id uname nproc printenv which type cmp comm nl tac column seq sleep jq md5sum sha1sum sha256sum cksum od "
    "base64 hexdump strings expr shift break continue return exit rev fold fmt paste join expand numfmt arch"
)
"""Commands that only read and print, with any arguments."""
_UNARY, _BINARY = names("-e -f -d -r -w -x -s -L -h -n -z -p -S -b -c"), names("= == != -nt -ot -ef")
_COMPARING = names("-eq -ne -lt -le -gt -ge")
_MOVING = names("cd pushd popd")
_OCTAL = re.compile(r"0?[0-7]{3}")

_READERS: Mapping[str, Options] = {
    "diff": Options(
        flags="abBcdeEinNpqrstTuwyZ",
        valued="CDFIUWxX",
        long=names("brief recursive unified= side-by-side color color= no-color ignore-all-space strip-trailing-cr"),
    ),
    "sort": Options(
        flags="bdfgghiMnrRVcCmsuz",
        valued="ktS",
        long=names("reverse numeric-sort unique key= field-separator= version-sort human-numeric-sort stable check"),
    ),
    "rg": Options(
        flags="niIlLcvwxsSFPUoNHhu0aqp.",
        valued="eABCgtTmdjMrEf",
        long=names(
            "files hidden no-ignore ignore-case smart-case line-number no-line-number files-with-matches count glob= "
            "iglob= type= type-not= max-count= max-depth= context= after-context= before-context= fixed-strings "
            "word-regexp only-matching multiline color= sort= json no-heading heading follow stats vimgrep pcre2 "
            "files-without-match invert-match no-filename with-filename column text no-messages type-list max-columns= "
            "no-ignore-vcs case-sensitive trim null regexp= replace="
        ),
    ),
    "tree": Options(
        flags="adfhpstugDFiC", valued="LIP", long=names("dirsfirst filesfirst noreport gitignore prune"), permuted=True
    ),
    "uniq": Options(flags="cdDuiz", valued="fsw", long=names("count repeated unique ignore-case")),
}
"""Commands that only read and print with these options; their other options run programs or write."""
_WRITERS: Mapping[str, Options] = {
    "cp": Options(flags="rRapfnvuiLPdHTx", long=names("recursive archive force no-clobber verbose update parents")),
    "mv": Options(flags="fnvuiT", long=names("force no-clobber verbose update")),
    "ln": Options(flags="sfnvrT", long=names("symbolic force relative no-dereference verbose")),
    "tee": Options(flags="aip", long=names("append")),
    "install": Options(flags="dDpv", valued="m", long=names("mode= directory")),
    "touch": Options(flags="acmh", valued="drt", long=names("no-create date= reference=")),
    "mkdir": Options(flags="pv", valued="m", long=names("parents mode= verbose")),
}

_KNOWN_RISKS: Mapping[str, str] = {
    **dict.fromkeys(
        names("rm rmdir unlink shred dd truncate wipefs mkfs fdisk parted kill pkill killall halt reboot shutdown"),
        "destructive: it removes or ends things",
    ),
    **dict.fromkeys(
        names(
            "sudo su doas chmod chown chgrp setcap setfacl unshare nsenter mount umount chroot pivot_root passwd "
            "useradd usermod iptables nft sysctl modprobe insmod docker podman kubectl systemctl crontab at bwrap"
        ),
        "privilege: it changes rights, or reaches beyond the sandbox",
    ),
    **dict.fromkeys(
        names("curl wget fetch http https aria2c lynx w3m nslookup dig host ping traceroute"),
        "network: it fetches from, or speaks to, another machine",
    ),
    **dict.fromkeys(
        names("nc ncat netcat socat telnet ssh scp sftp rsync ftp mail sendmail aws gsutil az gh"),
        "exfiltration: it can send data to another machine",
    ),
    **dict.fromkeys(
        names("pip pip3 pipx uv poetry conda apt apt-get dpkg apk yum dnf brew gem npx bunx"),
        "fetch-and-execute: it installs or runs what it downloads",
    ),
    **dict.fromkeys(
        names("eval source . exec trap alias enable hash bind complete"),
        "unknown: it runs what is known only when it runs",
    ),
    **dict.fromkeys(
        names("export declare typeset readonly local"), "environment: it declares variables for later commands"
    ),
    **dict.fromkeys(names("let (("), "unknown: arithmetic runs what stands in subscripts"),
}


def base_name(name: str) -> str:
    """The command's name without its directory if that is a system directory, else the name unchanged."""
    directory, _, base = name.rpartition("/")
    return base if directory in ("/bin", "/usr/bin", "/usr/local/bin", "/sbin", "/usr/sbin") else name


def changes_directory(words: Words) -> bool:
    """Whether a command may change the working directory of later commands."""
    texts = [word.text for word in words]
    return texts not in (["cd", "."], ["cd", "/workspace"]) and not _MOVING.isdisjoint(texts)


def command_risks(words: Words, scope: CommandScope) -> Iterator[str]:
    """The reasons why one command is risky; none if it is known to be harmless."""
    if words[0].text is None:
        yield "unknown: the command's name is computed"
        return
    name, rest = base_name(words[0].text), words[1:]
    if words[0].quoted:
        yield "unknown: the command's name is disguised by quoting"
    if any(reads_secrets(word.text or word.written) for word in rest):
        yield "exfiltration: it reads what may be secret"
    scope.programs.add(name)
    if name in _PLAIN:
        return
    if name in _KNOWN_RISKS:
        yield _KNOWN_RISKS[name]
    elif name.startswith("mkfs"):
        yield _KNOWN_RISKS["mkfs"]
    elif name in _READERS:
        yield from _read(name, rest)
    elif name in _WRITERS:
        yield from _written_paths(name, rest)
    elif name in CHECKERS:
        yield from checker_risks(name, rest)
    elif name in RUNNERS:
        yield from runner_risks(name, rest)
    elif name == "git":
        yield from git_risks(rest, moved=scope.moved)
    elif (risks := _RISKS.get(name)) is not None:
        yield from risks(rest, scope)
    elif words[0].text != name or "/" in name:
        yield "unknown: it runs a program by its path"
    else:
        yield f"unknown: {name[:64]} is not on the list of harmless commands"


def _read(name: str, words: Words) -> Iterator[str]:
    parsed = _READERS[name].parse(words)
    if parsed is None:
        yield "unknown: an option that runs a program or writes, or one that is computed"
    elif name == "uniq" and (len(parsed.operands) > 1 or any(word.many for word in parsed.operands)):
        yield "destructive: a second file would be written"


def _written_paths(name: str, words: Words) -> Iterator[str]:
    parsed = _WRITERS[name].parse(words)
    if parsed is None:
        yield "unknown: an option that says where it writes to, or what it does is computed"
        return
    if any(value.text is None or not _OCTAL.fullmatch(value.text) for value in parsed.values("m", "mode")):
        yield "privilege: it sets rights"
    for word in parsed.operands:
        yield from write_risk(word)


def _sed(words: Words, _: CommandScope) -> Iterator[str]:
    options = Options(
        flags="nErzsu",
        valued="el",
        attached="i",
        long=names("quiet silent regexp-extended null-data separate unbuffered posix expression= in-place"),
    )
    parsed = options.parse(words)
    if parsed is None:
        yield "unknown: an option of sed that runs or reads scripts, or one that is computed"
        return
    scripts, files = parsed.values("e", "expression"), parsed.operands
    if not scripts:
        scripts, files = list(files[:1]), files[1:]
    texts = [script.text for script in scripts]
    if not texts or any(text is None or not sed_edits(text) for text in texts):
        yield "unknown: sed's script may write or run things, or is computed"
    elif len(texts) > 1 and not sed_edits("\n".join(text or "" for text in texts)):
        yield "unknown: sed's scripts may write or run things together"
    if parsed.has("i", "in-place"):
        if any(not re.fullmatch(r"[\w.~-]*", value.text or "") for value in parsed.values("i")):
            yield "unknown: where sed keeps a copy"
        for word in files:
            yield from write_risk(word)


def _awk(words: Words, _: CommandScope) -> Iterator[str]:
    parsed = Options(valued="Fv", permuted=False).parse(words)
    if parsed is None or not parsed.operands or parsed.operands[0].text is None:
        yield "unknown: awk's program is computed, or stands elsewhere"
        return
    if not awk_prints(parsed.operands[0].text):
        yield "unknown: awk's program may write or run things"
    if any(not word.operand for word in parsed.operands[1:]):
        yield "unknown: an argument of awk that may be an option"


def _printf(words: Words, _: CommandScope) -> Iterator[str]:
    form = words[0].text if words else None
    if form is None or form.startswith("-") or not printf_prints(form):
        yield "unknown: a format of printf that may set a variable, or one that is computed"


def _bracket(words: Words, scope: CommandScope) -> Iterator[str]:
    if not words or words[-1].text != "]":
        yield "unknown: a test without its end"
        return
    yield from _test(words[:-1], scope)


def _test(words: Words, _: CommandScope) -> Iterator[str]:
    if any(word.many for word in words) or not _is_plain_test(words, comparing=_COMPARING):
        yield "unknown: a test that may evaluate what is computed"


def conditional_risks(words: Words) -> Iterator[str]:
    """The risks of `[[ … ]]`, where words are not split and comparisons of numbers are arithmetic."""
    inner, end = words[1:-1], words[-1]
    if end.text != "]]" or end.quoted or words[0].quoted:
        yield "unknown: a test without its end"
    elif not _is_plain_test(inner, comparing=frozenset()) and not (
        len(inner) == 3 and inner[1].text in _COMPARING and inner[0].number and inner[2].number
    ):
        yield "unknown: a test that may evaluate what is computed"


def _is_plain_test(words: Words, *, comparing: frozenset[str]) -> bool:
    """Whether a test has the same meaning for all values of computed words, and evaluates none of them."""
    rest = words[1:] if len(words) > 1 and words[0].text == "!" else words
    match len(rest):
        case 0 | 1:
            return True
        case 2:
            return rest[0].text in _UNARY
        case 3 if rest[1].text in comparing:
            return all(word.number or word.text is None for word in (rest[0], rest[2]))
        case 3:
            return rest[1].text in _BINARY
        case _:
            return False


def _changes_directory(words: Words, _: CommandScope) -> Iterator[str]:
    """Later commands are assessed as if the directory had not changed, so a change may lead only into the workspace."""
    path = words[0].text if len(words) == 1 else None
    if path is None or path.startswith("-") or path_risk(path, writes=True):
        yield "unknown: it leaves the directory by which the rest is judged"


def _simple(allowed: str) -> Callable[[Words, CommandScope], Iterator[str]]:
    """The risks of a command that is harmless only with arguments of this form."""
    form = re.compile(allowed, re.DOTALL)

    def risks(words: Words, _: CommandScope) -> Iterator[str]:
        if any(word.text is None or not form.fullmatch(word.text) for word in words):
            yield "unknown: an argument that may change something, or one that is computed"

    return risks


_RISKS: Mapping[str, Callable[[Words, CommandScope], Iterator[str]]] = {
    "python": lambda words, _: python_risks(words),
    "python3": lambda words, _: python_risks(words),
    **STARTERS,
    "sed": _sed,
    **dict.fromkeys(("awk", "gawk", "mawk"), _awk),
    "printf": _printf,
    "test": _test,
    "[": _bracket,
    **dict.fromkeys(("cd", "pushd"), _changes_directory),
    "popd": _simple(r"(?!)"),
    "date": _simple(r"\+.*|-u|--utc|-I\w*|-R"),
    "hostname": _simple(r"(?!)"),
    "node": _simple(r"--version|-v"),
    "set": _simple(r"[-+][euxo]+|pipefail"),
    "read": _simple(r"-r|[a-z_][a-z0-9_]*"),
    "unset": _simple(r"-v|[a-z_][a-z0-9_]*"),
    "wait": _simple(r"\d+"),
    "getconf": _simple(r"[A-Z_]+"),
}


MAX_CHARS = 16_384
MAX_DEPTH = 4
"""The depth to which `sh -c '…'` and similar commands are followed."""
_WRITING = frozenset({">", ">>", ">|", "&>", "&>>", ">&", "<>"})
_DOWNLOADERS = ("curl", "wget", "fetch", "http", "nc", "ncat")


@dataclass(frozen=True, slots=True, kw_only=True)
class RiskAssessment:
    """The reasons why a command line is risky (none if it is harmless), and the programs that it names."""

    reasons: tuple[str, ...]
    programs: frozenset[str] = frozenset()


def shell_risks(command: str) -> tuple[str, ...]:
    """The reasons why a person should see a command line first; empty if all of it is known to be harmless."""
    return assess(command).reasons


def assess(command: str, *, depth: int = 0, moved: bool = False) -> RiskAssessment:
    """Assess a command line by what can be proven about it, in bash and in any POSIX shell.

    All commands in it are assessed, in any list, pipeline, loop, function or substitution, and those given to `sh -c`,
    `xargs`, `env` and similar commands. Unknown names, options and constructs count as risks: the assessment may be too
    careful, but a command line is harmless only if every part of it is on a list. `moved` says that it may run in
    another directory than the clone's root.
    """
    if depth > MAX_DEPTH:
        return RiskAssessment(reasons=("unknown: shells are nested too deeply",))
    if len(command) > MAX_CHARS or "\0" in command:
        return RiskAssessment(reasons=("unknown: it is too long to judge, or holds a NUL",))
    try:
        script = read(command)
    except UnreadableShell as error:
        return RiskAssessment(
            reasons=(f"unknown: it is not in the part of a shell's language that can be judged: {error}",)
        )
    moved = moved or any(changes_directory(each.words) for each in script.commands)
    programs: set[str] = set()

    def nested(line: str) -> tuple[str, ...]:
        assessment = assess(line, depth=depth + 1, moved=moved)
        programs.update(assessment.programs)
        return assessment.reasons

    scope = CommandScope(command=command_risks, nested=nested, programs=programs, moved=moved)
    reasons: dict[str, None] = {}
    if script.functions:
        reasons["unknown: it defines a function"] = None
    for each in script.commands:
        reasons.update(dict.fromkeys(_risks(each, scope)))
    for pipeline in script.pipelines:
        reasons.update(dict.fromkeys(_pipeline_risks(pipeline)))
    return RiskAssessment(reasons=tuple(reasons), programs=frozenset(programs))


def _risks(command: SimpleCommand, scope: CommandScope) -> Iterator[str]:
    for name in command.assigned:
        if not harmless_variable(name):
            yield f"environment: it sets {name[:64]}"
    for redirection in command.redirections:
        yield from _redirection_risks(redirection)
    if any(opens_network(word.text or word.head) for word in command.words):
        yield "exfiltration: it opens a network connection"
    if command.words and command.words[0].text == "[[":
        if command.redirections or command.assigned:
            yield "unknown: a test with a redirection in it"
        yield from conditional_risks(command.words)
    elif command.words:
        yield from command_risks(command.words, scope)


def _redirection_risks(redirection: Redirection) -> Iterator[str]:
    target = redirection.target
    if opens_network(target.text or target.head):
        yield "exfiltration: it opens a network connection"
    elif redirection.sign in _WRITING:
        if target.text is None:
            yield "unknown: where it writes to is computed"
        else:
            yield from write_risk(target)
    elif target.text is None and (not target.operand or target.head.startswith("/")) and target.head != "/dev/fd/":
        yield "unknown: what it reads from is computed, and may be a network connection"


def _pipeline_risks(pipeline: list[SimpleCommand]) -> Iterator[str]:
    """The risk of a download that is piped into an interpreter."""
    names = [base_name(command.words[0].text or "") for command in pipeline if command.words]
    fetches = [index for index, name in enumerate(names) if name in _DOWNLOADERS]
    if fetches and any(name in SHELLS for name in names[fetches[0] + 1 :]):
        yield "fetch-and-execute: what it downloads is run"
