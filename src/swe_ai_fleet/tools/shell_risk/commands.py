"""Which commands are known to be harmless, with which arguments; and why the others are not."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

Words = Sequence[str | None]
"""A command's words; None is one that is known only when it runs."""
Nested = Callable[[str], tuple[str, ...]]
"""Judges a command line inside a command line."""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


PLAIN = _names(
    "ls cat head tail wc grep egrep fgrep cut tr echo pwd true false test [ : basename dirname realpath readlink stat "
    "du df whoami id uname nproc printenv which type diff cmp comm nl tac column seq sleep jq md5sum sha1sum sha256sum "
    "cksum od hexdump strings expr wait shift break continue return exit rev fold fmt paste join expand numfmt getconf "
    "arch"
)
"""Commands that only read and print, whatever their arguments are."""
SHELLS = _names("sh bash dash zsh ksh ash busybox python python2 python3 perl ruby node deno bun php lua xargs")
_WRAPPERS = _names("command builtin time nice nohup stdbuf env timeout ionice setsid")
_WRITERS = _names("cp mv ln tee install touch mkdir")
_CHECKERS = _names(
    "pytest py.test ruff mypy pyright flake8 pylint black isort eslint tsc prettier shellcheck yamllint gofmt rustfmt "
    "clang-format"
)
_TEST_RUNNERS: Mapping[str, frozenset[str]] = {
    "go": _names("test vet build fmt list version"),
    "cargo": _names("test check clippy fmt build tree --version"),
    "npm": _names("test t --version"),
    "yarn": _names("test --version"),
    "pnpm": _names("test --version"),
    "make": _names("test tests check lint build all"),
    "tox": frozenset(),
}
_PYTHON_MODULES = _names("pytest unittest json.tool py_compile compileall ruff mypy pyright flake8 black isort")
_GIT_HARMLESS = _names(
    "status diff log show rev-parse ls-files ls-tree blame shortlog describe cat-file rev-list merge-base name-rev "
    "diff-tree diff-index grep add commit count-objects show-ref for-each-ref whatchanged var"
)
_GIT_OUTSIDE = _names("push fetch pull clone remote ls-remote submodule send-email request-pull bundle archive")
_GIT_RUNS_CODE = ("ext-diff", "textconv", "open-files-in-pager", "output", "exec", "upload-pack", "receive-pack")
_SORT_WRITES = ("compress-program", "output", "pre", "hostname-bin")
_SED = re.compile(r"(\d+|\$|/[^/\n]*/)?(,(\d+|\$|/[^/\n]*/))?[pd=q]|s(.).*?\4.*?\4[gpiI0-9]*", re.DOTALL)
_AWK_RUNS_CODE = re.compile(r"system|getline|[|>]|@load")
_SECRET_PATH = re.compile(
    r"(^|/)(\.ssh|\.aws|\.gnupg|\.kube|\.docker|\.netrc|\.git-credentials|\.env(\.|$)|id_[a-z0-9]+$|credentials$)"
    r"|^/etc/(shadow|gshadow|sudoers)|^/proc/|^/sys/|^/root"
)
_WORKSPACE = ("/workspace", "/tmp", "/dev/null", "/dev/stdout", "/dev/stderr", "/dev/fd")  # noqa: S108 - of the sandbox

_KNOWN_RISKS: Mapping[str, str] = {
    **dict.fromkeys(
        _names("rm rmdir unlink shred dd truncate wipefs mkfs fdisk parted kill pkill killall halt reboot shutdown"),
        "destructive: it removes or ends things",
    ),
    **dict.fromkeys(
        _names(
            "sudo su doas chmod chown chgrp setcap setfacl unshare nsenter mount umount chroot pivot_root passwd "
            "useradd usermod iptables nft sysctl modprobe insmod docker podman kubectl systemctl crontab at bwrap"
        ),
        "privilege: it changes rights, or reaches beyond the sandbox",
    ),
    **dict.fromkeys(
        _names("curl wget fetch http https aria2c lynx w3m nslookup dig host ping traceroute"),
        "network: it fetches from, or speaks to, another machine",
    ),
    **dict.fromkeys(
        _names("nc ncat netcat socat telnet ssh scp sftp rsync ftp mail sendmail aws gsutil az gh"),
        "exfiltration: it can send data to another machine",
    ),
    **dict.fromkeys(
        _names("pip pip3 pipx uv poetry conda apt apt-get dpkg apk yum dnf brew gem npx bunx"),
        "fetch-and-execute: it installs or runs what it downloads",
    ),
    **dict.fromkeys(
        _names("eval source . exec trap alias enable hash bind complete"),
        "unknown: it runs what is known only when it runs",
    ),
}


def command_risks(words: Words, nested: Nested) -> Iterator[str]:
    """Why one command should be looked at; nothing where it is known to be harmless."""
    if words[0] is None:
        yield "unknown: the command's name is computed"
        return
    name, rest = places(words[0]), words[1:]
    for word in rest:
        if word is not None and _SECRET_PATH.search(word):
            yield "exfiltration: it reads what may be secret"
    if name in PLAIN:
        return
    if name in _KNOWN_RISKS:
        yield _KNOWN_RISKS[name]
    elif name.startswith("mkfs"):
        yield _KNOWN_RISKS["mkfs"]
    elif name in _WRAPPERS:
        yield from _wrapped(name, rest, nested)
    elif name in _WRITERS:
        yield from _written(rest)
    elif name in _CHECKERS:
        yield from _inside(rest)
    elif name in _TEST_RUNNERS:
        yield from _runner(name, rest)
    elif (judge := _JUDGES.get(name)) is not None:
        yield from judge(rest, nested)
    elif words[0] != name or "/" in words[0]:
        yield "unknown: it runs a program by its path"
    else:
        yield f"unknown: {name[:64]} is not on the list of harmless commands"


def places(name: str) -> str:
    """The command's own name where it is called by its full path in a system directory, else the name as it is."""
    directory, _, base = name.rpartition("/")
    return base if directory in ("/bin", "/usr/bin", "/usr/local/bin", "/sbin", "/usr/sbin") else name


def path_risk(path: str, *, writes: bool) -> str:
    """Why a path should not be touched; empty for one of the workspace."""
    if _SECRET_PATH.search(path):
        return "exfiltration: it touches what may be secret"
    normal = posixpath.normpath(path)
    inside = not normal.startswith(("/", "~", "..")) or any(
        normal == root or normal.startswith(root + "/") for root in _WORKSPACE
    )
    if writes and ".git" in normal.split("/"):
        return "privilege: it writes into git's own files"
    return "" if inside else "destructive: it writes outside the workspace"


def _wrapped(name: str, words: Words, nested: Nested) -> Iterator[str]:
    """`env A=1 timeout 5 CMD …`: what is run is judged; options of the wrapper itself are not known."""
    rest = list(words)
    if name == "timeout":
        rest = rest[1:]
    while rest and rest[0] is not None and name == "env" and re.fullmatch(r"[a-z_][a-z0-9_]*=.*", rest[0]):
        rest = rest[1:]
    if not rest:
        return
    if rest[0] is not None and (rest[0].startswith("-") or "=" in rest[0]):
        yield f"unknown: an option or a variable given to {name}"
        return
    yield from command_risks(rest, nested)


def _written(words: Words) -> Iterator[str]:
    for word in words:
        if word is None:
            yield "unknown: where it writes to is computed"
        elif word.startswith(("-t", "--target")):
            yield "unknown: an option that says where it writes to"
        elif not word.startswith("-") and (risk := path_risk(word, writes=True)):
            yield risk


def _inside(words: Words) -> Iterator[str]:
    """The arguments of a program that reads and writes what it is told to: all of it must lie in the workspace."""
    for word in words:
        path = (word or "").partition("=")[2] if (word or "").startswith("-") else word or ""
        if path.startswith(("/", "~", "..")) and (risk := path_risk(path.partition("::")[0], writes=True)):
            yield risk


def _runner(name: str, words: Words) -> Iterator[str]:
    goals = [word for word in words if word is None or not word.startswith("-")]
    if any(word is None or (word.startswith("-") and name == "make") or "=" in word for word in words):
        yield f"unknown: what {name} is to do is computed, or given by options"
    elif goals and goals[0] not in _TEST_RUNNERS[name] and goals[:2] not in (["run", "test"], ["run", "lint"]):
        yield f"unknown: {name} {str(goals[0])[:32]} may do anything"


def _git(words: Words, _: Nested) -> Iterator[str]:
    if not words or words[0] is None or words[0].startswith("-"):
        yield "unknown: an option before git's command"
        return
    command, rest = words[0], words[1:]
    if command in _GIT_OUTSIDE:
        yield "exfiltration: git speaks to another repository"
    elif command in _GIT_HARMLESS:
        if any(word is None or _is_option(word, _GIT_RUNS_CODE, letter="O") for word in rest):
            yield "unknown: an option of git that writes or runs things, or one that is computed"
    elif not _keeps_everything(command, rest):
        yield f"destructive: git {command[:32]} may change or throw away what is there"


def _keeps_everything(command: str, rest: Words) -> bool:
    """Whether a command of git that can throw work away does not, as it is given here."""
    match command:
        case "branch":
            return all(word in ("-a", "-v", "-vv", "-r", "--list", "--show-current") for word in rest)
        case "checkout" | "switch":
            return rest[:1] in (["-b"], ["-c"]) and len(rest) == 2
        case "stash":
            return list(rest) in ([], ["list"], ["push"], ["show"])
        case _:
            return False


def _python(words: Words, _: Nested) -> Iterator[str]:
    if list(words) in (["--version"], ["-V"]) or (words[:1] == ["-m"] and words[1:2] and words[1] in _PYTHON_MODULES):
        yield from _inside(words[2:])
        return
    yield "unknown: it runs code that cannot be judged"


def _shell(words: Words, nested: Nested) -> Iterator[str]:
    if len(words) >= 2 and words[0] in ("-c", "-ec", "-lc") and words[1] is not None:
        yield from nested(words[1])
        return
    yield "unknown: it runs code that cannot be judged"


def _find(words: Words, nested: Nested) -> Iterator[str]:
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word is None:
            yield "unknown: an argument of find is computed"
        elif word == "-delete":
            yield "destructive: find deletes what it finds"
        elif word in ("-exec", "-execdir", "-ok", "-okdir"):
            end = next((i for i, one in enumerate(rest) if one in (";", "+")), len(rest))
            if not rest[:end]:
                yield "unknown: find runs nothing that can be seen"
            else:
                yield from command_risks(
                    [None if one == "{}" and not i else one for i, one in enumerate(rest[:end])], nested
                )
            rest = rest[end + 1 :]
        elif word.startswith(("-fprint", "-fls")):
            yield "destructive: find writes files"


def _xargs(words: Words, nested: Nested) -> Iterator[str]:
    rest = list(words)
    while rest and rest[0] is not None and re.fullmatch(r"-(0|r|t|n\d+|P\d+|L\d+)|--null|--no-run-if-empty", rest[0]):
        rest = rest[1:]
    if rest[:1] in (["-n"], ["-P"], ["-L"], ["-I"]) and len(rest) > 2:
        rest = rest[2:]
    if not rest or rest[0] is None or rest[0].startswith("-"):
        yield "unknown: what xargs runs"
        return
    # What it reads becomes further arguments, so only commands that are harmless with any are.
    yield from command_risks([*rest, None], nested)


def _sed(words: Words, _: Nested) -> Iterator[str]:
    scripts = [word for word in words if word is None or not re.fullmatch(r"-(n|E|r|i(\.\w+)?|ne|nE|z|s|e)", word)]
    if any(word is None for word in words) or not scripts:
        yield "unknown: sed's script is computed"
    elif not all(_SED.fullmatch(part.strip()) for part in (scripts[0] or "").split(";")) or "-e" in words:
        yield "unknown: sed's script may write or run things"
    for word in scripts[1:]:
        if (
            word is not None
            and any((one or "").startswith("-i") for one in words)
            and (risk := path_risk(word, writes=True))
        ):
            yield risk


def _awk(words: Words, _: Nested) -> Iterator[str]:
    rest = list(words)
    while rest and rest[0] is not None and re.fullmatch(r"-F.*", rest[0]):
        rest = rest[2:] if rest[0] == "-F" else rest[1:]
    if not rest or rest[0] is None or rest[0].startswith("-") or _AWK_RUNS_CODE.search(rest[0]):
        yield "unknown: awk's program may write or run things"


def _sorted(words: Words, _: Nested) -> Iterator[str]:
    if any(word is None or _is_option(word, _SORT_WRITES, letter="o") for word in words):
        yield "unknown: an option that runs a program or writes, or one that is computed"


def _changes_directory(words: Words, _: Nested) -> Iterator[str]:
    """What stands behind a change of directory is judged as if there were none, so it may lead only into the tree."""
    if len(words) != 1 or words[0] is None or words[0].startswith("-") or path_risk(words[0], writes=True):
        yield "unknown: it leaves the directory by which the rest is judged"


def _simple(allowed: str) -> Callable[[Words, Nested], Iterator[str]]:
    """A command that is harmless with arguments of this form alone."""
    form = re.compile(allowed, re.DOTALL)

    def judge(words: Words, _: Nested) -> Iterator[str]:
        if any(word is None or not form.fullmatch(word) for word in words):
            yield "unknown: an argument that may change something, or one that is computed"

    return judge


def _unique(words: Words, _: Nested) -> Iterator[str]:
    if any(word is None for word in words) or sum(not (word or "").startswith("-") for word in words) > 1:
        yield "destructive: a second file would be written"


def _is_option(word: str, names: Sequence[str], *, letter: str) -> bool:
    """Whether a word is one of the options, which may be shortened, or has the letter among its own."""
    if word.startswith("--"):
        name = word[2:].partition("=")[0]
        return bool(name) and any(option.startswith(name) for option in names)
    return word.startswith("-") and letter in word


_JUDGES: Mapping[str, Callable[[Words, Nested], Iterator[str]]] = {
    "git": _git,
    "python": _python,
    "python3": _python,
    **dict.fromkeys(("sh", "bash", "dash", "zsh"), _shell),
    "find": _find,
    "xargs": _xargs,
    "sed": _sed,
    "awk": _awk,
    "gawk": _awk,
    "mawk": _awk,
    **dict.fromkeys(("cd", "pushd"), _changes_directory),
    "popd": _simple(r"(?!)"),
    "printf": _simple(r"[^-].*|"),
    "date": _simple(r"\+.*|-u|--utc|-I\w*|-R"),
    "hostname": _simple(r"(?!)"),
    "set": _simple(r"[-+][euxo]+|pipefail"),
    "tree": _simple(r"[^-].*|-[adfLIP]+|--\w+first"),
    "uniq": _unique,
    "sort": _sorted,
    "rg": _sorted,
}
