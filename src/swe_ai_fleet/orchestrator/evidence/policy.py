"""Policy on a patch: what a candidate must not contain, whatever its test results.

A generated file that changes without its sources was changed by hand. Where the repository's files of a language begin
with a licence header, a new file has to have one.
"""

from __future__ import annotations

import math
import posixpath
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import accumulate
from pathlib import PurePosixPath

from swe_ai_fleet.domain.candidate import CheckKind, CheckResult
from swe_ai_fleet.domain.task import Role, Task
from swe_ai_fleet.orchestrator.evidence.check_results import Concern, Violation, allowed_concerns
from swe_ai_fleet.orchestrator.evidence.patch import FilePatch, Patch, PatchLine
from swe_ai_fleet.orchestrator.evidence.settings_changes import added_silencers, changed_settings
from swe_ai_fleet.orchestrator.evidence.source_files import is_comment, is_document, is_test, language_of
from swe_ai_fleet.orchestrator.evidence.weakened_tests import weakened_tests
from swe_ai_fleet.ports import SecretMask
from swe_ai_fleet.tools.policy import path_allowed

_ALONE = r"(?<![A-Za-z0-9])"
_SHAPES = (
    ("a private key", re.compile(r"-----BEGIN (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----")),
    ("an AWS access key", re.compile(_ALONE + r"(?:AKIA|ASIA)[0-9A-Z]{16}(?![0-9A-Z])")),
    ("a GitHub token", re.compile(_ALONE + r"(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{60})")),
    ("a GitLab token", re.compile(_ALONE + r"glpat-[A-Za-z0-9_-]{20}")),
    ("a Slack token", re.compile(_ALONE + r"xox[abeoprs]-[A-Za-z0-9-]{10}")),
    ("a Slack webhook", re.compile(r"hooks\.slack\.com/services/T[A-Z0-9]{6,20}/B[A-Z0-9]{6,20}/[A-Za-z0-9]{16}")),
    ("a Google API key", re.compile(_ALONE + r"AIza[A-Za-z0-9_-]{35}")),
    ("a Google client secret", re.compile(_ALONE + r"GOCSPX-[A-Za-z0-9_-]{20}")),
    ("a Stripe key", re.compile(_ALONE + r"(?:sk|rk)_live_[A-Za-z0-9]{16}")),
    ("an npm token", re.compile(_ALONE + r"npm_[A-Za-z0-9]{36}")),
    ("a PyPI token", re.compile(_ALONE + r"pypi-[A-Za-z0-9_-]{40}")),
    ("a SendGrid key", re.compile(_ALONE + r"SG\.[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{32}")),
    ("an API key", re.compile(_ALONE + r"sk-[A-Za-z0-9_-]{32}")),
)
_NAME = (
    r"(?i:(?:api|secret|private|access|auth|encryption|signing|master|client|account)[_-]?key"
    r"|token|secret|passw(?:or)?d|passphrase|credential)s?"
)
_ASSIGNED = re.compile(
    _NAME + r"""["'\]]{0,2}\s{0,3}(?::\s{0,3}\w{1,30}\s{0,3})?(?::=|=>|=|:)\s{0,3}["']([^"'\s]{16,200})["']"""
)
_LISTED = re.compile(_NAME + r"\s{0,3}[=:]\s{0,3}([^\s\"'#]{16,200})[ \t\r]*$", re.M)
_LISTING_SUFFIXES = (".env", ".ini", ".cfg", ".conf", ".properties", ".yml", ".yaml", ".toml", ".sh", ".envrc")
_PLACEHOLDER = re.compile(
    r"(?i)example|sample|dummy|fake|placeholder|change.?me|your|xxxx|redacted|masked|[<>{}$%*()]|://"
)
_IDENTIFIER = re.compile(r"[A-Za-z]+\d{0,4}(?:[_.:/@-]+(?:[A-Za-z]+\d{0,4}|\d{1,4}))*")
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_LEAST_BITS = 3.0
_CUT_MARKS = re.compile(r"\.{3,}|…")


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """The line and the kind of a secret, never the secret itself. `certain`: it has the form of a known kind."""

    line: int
    what: str
    certain: bool = True


def secrets_in(path: str, lines: Sequence[PatchLine], mask: SecretMask) -> Iterator[Secret]:
    """The secrets in added lines of a file; in settings files values need no quotes."""
    text = "\n".join(line.text for line in lines)
    starts = [0, *accumulate(len(line.text) + 1 for line in lines)]

    def number(offset: int) -> int:
        return lines[bisect_right(starts, offset) - 1].number

    for kind, shape in _SHAPES:
        for match in shape.finditer(text):
            if "EXAMPLE" not in match[0]:
                yield Secret(line=number(match.start()), what=kind)
    # Before an ellipsis the mask takes the beginning of a secret for a cut one: in code it is just an ellipsis.
    if _is_ours(mask, text):
        secret_lines = [line.number for line in lines if _is_ours(mask, line.text)]
        yield Secret(line=secret_lines[0] if secret_lines else lines[0].number, what="a secret of the fleet")
    assigned = [_ASSIGNED]
    if path.endswith(_LISTING_SUFFIXES) or "/.env" in f"/{path}":
        assigned.append(_LISTED)
    for pattern in assigned:
        for match in pattern.finditer(text):
            if _random(match[1]):
                yield Secret(line=number(match.start(1)), what="a random value under a secret's name", certain=False)


def _is_ours(mask: SecretMask, text: str) -> bool:
    plain = f"\n{_CUT_MARKS.sub(' ', text)}\n"
    return mask(plain) != plain


def _random(value: str) -> bool:
    """Whether a value looks random: digits and letters mixed, no words, high entropy."""
    if _PLACEHOLDER.search(value) or _IDENTIFIER.fullmatch(value) or _UUID.fullmatch(value):
        return False
    if not re.search(r"\d", value) or not re.search(r"[A-Za-z]", value):
        return False
    counts = Counter(value)
    bits = -sum(count / len(value) * math.log2(count / len(value)) for count in counts.values())
    return bits >= _LEAST_BITS


_LOCKS = {
    **dict.fromkeys(("package-lock.json", "npm-shrinkwrap.json", "yarn.lock", "bun.lock"), ("package.json",)),
    "pnpm-lock.yaml": ("package.json", "pnpm-workspace.yaml"),
    **dict.fromkeys(("poetry.lock", "uv.lock", "pdm.lock"), ("pyproject.toml",)),
    "Pipfile.lock": ("Pipfile",),
    "Cargo.lock": ("Cargo.toml",),
    "go.sum": ("go.mod", "go.work"),
    "composer.lock": ("composer.json",),
    "Gemfile.lock": ("Gemfile", "*.gemspec"),
    "requirements*.lock": ("pyproject.toml", "requirements*.in", "requirements*.txt", "setup.py", "setup.cfg"),
}
_MADE = (("*_pb2.py", "*.proto"), ("*_pb2.pyi", "*.proto"), ("*_pb2_grpc.py", "*.proto"), ("*.pb.go", "*.proto"))
_GENERATED_HEADER = re.compile(r"(?i)\bdo not edit\b|@generated\b")
_HEADER_LINES = 20
_FILE_NAME = re.compile(r"[\w-]{1,60}(?:\.[\w-]{1,20}){1,3}")


def is_lock(path: str) -> bool:
    """Whether a package manager writes the file."""
    return bool(_sources_of_lock(path))


def changed_by_hand(patch: Patch, text_of: Callable[[str], str]) -> Iterator[Violation]:
    """Warnings about lock files and generated files that change without their sources."""
    changed = {PurePosixPath(name).name for file in patch.files for name in (file.path, file.old_path)}
    generated = {file.path: header for file in patch.files if (header := _header(file, text_of))}
    made = (is_test, is_document, is_lock, _sources_of_code)
    causes = {path for path in patch.paths if path not in generated and not any(kind(path) for kind in made)}
    for file in patch.files:
        if file.is_deleted:
            continue
        if sources := _sources_of_lock(file.path):
            if not _any_fits(changed, sources):
                yield _warning(Concern.LOCKS, file, f"a lock file changes without {' or '.join(sources)}")
        elif sources := _sources_of_code(file.path):
            if not _any_fits(changed, sources):
                yield _warning(Concern.GENERATED, file, f"a generated file changes without {' or '.join(sources)}")
        elif header := generated.get(file.path):
            named = set(_FILE_NAME.findall(header)) - {PurePosixPath(file.path).name}
            if not (named & changed or causes):
                yield _warning(Concern.GENERATED, file, "a file that says it is generated changes without its source")


def _header(file: FilePatch, text_of: Callable[[str], str]) -> str:
    """The beginning of a file that says that it is generated; empty for other files and for new ones."""
    if file.is_deleted or file.is_new or file.is_binary or is_lock(file.path) or is_document(file.path):
        return ""
    text = text_of(file.path)
    heads = ("\n".join(side.split("\n", _HEADER_LINES)[:_HEADER_LINES])[:4_000] for side in (text, file.before(text)))
    return next((head for head in heads if _GENERATED_HEADER.search(head)), "")


def _sources_of_lock(path: str) -> tuple[str, ...]:
    name = PurePosixPath(path).name
    return next((sources for lock, sources in _LOCKS.items() if fnmatchcase(name, lock)), ())


def _sources_of_code(path: str) -> tuple[str, ...]:
    name = PurePosixPath(path).name
    return tuple(source for pattern, source in _MADE if fnmatchcase(name, pattern))


def _any_fits(names: set[str], patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def _warning(concern: Concern, file: FilePatch, text: str) -> Violation:
    return Violation(concern=concern, path=file.path, text=text, required=False)


SAMPLE = 30
"""How many files of a language are read."""
_LEAST_FILES = 3
_SHARE = 0.9
_HEAD_CHARS = 2_000
_HEAD_LINES = 12
_LICENCE_HEADER = re.compile(r"(?i)SPDX-License-Identifier|\bcopyright\b|\blicensed under\b|\(c\) (?:19|20)\d\d")


def missing_licences(patch: Patch, listed: Iterable[str], text_of: Callable[[str], str]) -> Iterator[Violation]:
    """Warnings about new source files without the header that nearly all others of their language have."""
    added = {file.path: language for file in patch.files if file.is_new and (language := language_of(file.path))}
    others: dict[str, list[str]] = {}
    for path in sorted(listed) if added else ():
        if path not in added and (language := language_of(path)) in added.values():
            others.setdefault(language, []).append(path)
    usual = {language for language, paths in others.items() if _usual(paths, text_of)}
    for path, language in added.items():
        text = text_of(path)
        if language in usual and text.strip() and not _has_header(text):
            text = f"has no licence header, as the other {language} files have"
            yield Violation(concern=Concern.LICENCES, path=path, line=1, text=text, required=False)


def _usual(paths: list[str], text_of: Callable[[str], str]) -> bool:
    # Spread over the repository rather than all from one directory.
    step = max(1, len(paths) // SAMPLE)
    texts = [text for path in paths[::step][:SAMPLE] if (text := text_of(path)).strip()]
    return len(texts) >= _LEAST_FILES and sum(map(_has_header, texts)) >= _SHARE * len(texts)


def _has_header(text: str) -> bool:
    return bool(_LICENCE_HEADER.search("\n".join(text[:_HEAD_CHARS].split("\n")[:_HEAD_LINES])))


_LINK, _SUBMODULE = "120000", "160000"
_MODES = frozenset({"", "100644", "100755", _LINK, _SUBMODULE})
_PIPELINES = (
    *(".github/*", ".gitlab-ci.yml", ".gitlab/*", ".circleci/*", "Jenkinsfile", "azure-pipelines*.yml", ".travis.yml"),
    *("bitbucket-pipelines.yml", ".drone.yml", ".buildkite/*", ".ci/*", ".pre-commit-config.yaml", "CODEOWNERS"),
)
_GIT_FILES = (".gitattributes", ".gitmodules")
_MAX_PROBLEMS = 50


MAX_PATCH_BYTES = 1024 * 1024
MAX_CHANGED_LINES = 5_000
"""Lines of lock files do not count."""
MAX_FILES = 200


def oversized(patch: bytes) -> Violation | None:
    """The violation of a patch that is too large to be read; None where it is not."""
    if len(patch) <= MAX_PATCH_BYTES:
        return None
    text = f"the patch has {len(patch)} bytes; at most {MAX_PATCH_BYTES} are accepted"
    return Violation(concern=Concern.SIZE, text=text)


def patch_violations(patch: Patch, task: Task, mask: SecretMask) -> Iterator[Violation]:
    """The violations that the patch alone shows."""
    if len(patch.files) > MAX_FILES:
        text = f"{len(patch.files)} files are changed; at most {MAX_FILES} are accepted"
        yield Violation(concern=Concern.SIZE, text=text)
        patch = Patch(patch.files[:MAX_FILES])
    changed = sum(1 for file in patch.files if not is_lock(file.path) for _ in file.lines("+-"))
    if changed > MAX_CHANGED_LINES:
        text = f"{changed} changed lines; at most {MAX_CHANGED_LINES} are accepted"
        yield Violation(concern=Concern.SIZE, text=text)
    for file in patch.files:
        yield from _of_file(file, task)
        yield from _secrets(file, mask)
    yield from weakened_tests(patch)
    yield from added_silencers(patch)
    if _changes_comments_only(patch):
        text = "only comments and blank lines of the source change"
        yield Violation(concern=Concern.COMMENTS, text=text, required=False)


def tree_violations(patch: Patch, listed: Iterable[str], text_of: Callable[[str], str]) -> Iterator[Violation]:
    """The violations that need the patched tree: its paths, and the text of a file (empty: unreadable)."""
    yield from changed_settings(patch, text_of)
    yield from changed_by_hand(patch, text_of)
    yield from missing_licences(patch, listed, text_of)


def policy_results(violations: Iterable[Violation], task: Task, *, duration_ms: int = 0) -> tuple[CheckResult, ...]:
    """Violations as one required check, and warnings, if there are any, as another one."""
    allowed = allowed_concerns(task.constraints)
    required, warned = list[Violation](), list[Violation]()
    for violation in violations:
        (required if violation.required and violation.concern not in allowed else warned).append(violation)
    verdict = _verdict("policy", required, required=True, duration_ms=duration_ms)
    return (verdict, _verdict("policy warnings", warned, required=False)) if warned else (verdict,)


def _changes_comments_only(patch: Patch) -> bool:
    """Whether a patch changes only comments in its source files; tests and documents are not source."""
    files = [file for file in patch.files if not is_test(file.path) and not is_document(file.path)]
    return bool(files) and all(_comments_only(file) for file in files)


def _comments_only(file: FilePatch) -> bool:
    language = language_of(file.path)
    lines = list(file.lines("+-"))
    if not language or not lines or file.is_new or file.is_deleted or file.is_binary or file.path != file.old_path:
        return False
    return all(is_comment(line.text, language) for line in lines)


def _of_file(file: FilePatch, task: Task) -> Iterator[Violation]:
    path, allowed = file.path, task.constraints.allowed_paths
    for name in dict.fromkeys((file.old_path, path)):
        if allowed and not path_allowed(name, allowed):
            yield Violation(concern=Concern.PATHS, path=name, text="lies outside the allowed paths")
    if file.is_binary and not file.is_deleted:
        yield Violation(concern=Concern.BINARIES, path=path, text="is a binary file")
    if file.mode not in _MODES:
        yield Violation(
            concern=Concern.MODES, path=path, text=f"has the mode {file.mode[:10]!r}, which git does not use"
        )
    if file.mode == _LINK and _leads_outside(file):
        text = "is a symbolic link that leads outside the repository"
        yield Violation(concern=Concern.LINKS, path=path, text=text, required=False)
    if file.mode == _SUBMODULE:
        yield Violation(concern=Concern.LINKS, path=path, text="is a submodule", required=False)
    if posixpath.basename(path) in _GIT_FILES:
        text = "changes git's settings for files of the repository"
        yield Violation(concern=Concern.SETTINGS, path=path, text=text, required=False)
    if task.role is not Role.DEVOPS and any(fnmatchcase(path, pattern) for pattern in _PIPELINES):
        text = "changes what the repository's build or review pipelines run"
        yield Violation(concern=Concern.PIPELINES, path=path, text=text, required=False)


def _leads_outside(file: FilePatch) -> bool:
    target = next((line.text for line in file.lines("+")), "")
    return target.startswith("/") or posixpath.normpath(
        posixpath.join(posixpath.dirname(file.path), target)
    ).startswith("..")


def _secrets(file: FilePatch, mask: SecretMask) -> Iterator[Violation]:
    lines = list(file.lines("+"))
    for secret in secrets_in(file.path, lines, mask) if lines else ():
        # In tests and documents random values are usually made up; known forms count everywhere.
        required = secret.certain or not (is_test(file.path) or is_document(file.path))
        text = f"adds what looks like {secret.what}"
        yield Violation(concern=Concern.SECRETS, path=file.path, line=secret.line, text=text, required=required)


def _verdict(name: str, violations: Sequence[Violation], *, required: bool, duration_ms: int = 0) -> CheckResult:
    messages = tuple(dict.fromkeys(str(violation) for violation in violations))
    return CheckResult(
        kind=CheckKind.POLICY,
        name=name,
        passed=not messages,
        required=required,
        score=float(not messages)
        if required or any(violation.concern is Concern.COMMENTS for violation in violations)
        else 1 / (1 + len(messages)),
        message="; ".join(messages[:5]),
        problems=messages[:_MAX_PROBLEMS],
        warnings=0 if required else len(messages),
        details={"concerns": ", ".join(sorted({violation.concern for violation in violations}))} if messages else {},
        duration_ms=duration_ms,
    )
