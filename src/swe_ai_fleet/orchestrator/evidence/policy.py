"""Policy on a patch: what a candidate may not contain, whatever its tests say."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from swe_ai_fleet.domain.candidate import CheckKind, CheckResult
from swe_ai_fleet.domain.task import Role, Task
from swe_ai_fleet.orchestrator.evidence.generated import changed_by_hand, is_lock
from swe_ai_fleet.orchestrator.evidence.licences import missing_licences
from swe_ai_fleet.orchestrator.evidence.patch import FilePatch, Patch
from swe_ai_fleet.orchestrator.evidence.secret_shapes import secrets_in
from swe_ai_fleet.orchestrator.evidence.settings_changes import added_silencers, changed_settings
from swe_ai_fleet.orchestrator.evidence.source_files import is_comment, is_document, is_test, language_of
from swe_ai_fleet.orchestrator.evidence.violation import Concern, Violation, allowed_concerns, weighed
from swe_ai_fleet.orchestrator.evidence.weakened_tests import weakened_tests
from swe_ai_fleet.ports import SecretMask
from swe_ai_fleet.tools.policy import path_allowed

_LINK, _SUBMODULE = "120000", "160000"
_MODES = frozenset({"", "100644", "100755", _LINK, _SUBMODULE})
_PIPELINES = (
    *(".github/*", ".gitlab-ci.yml", ".gitlab/*", ".circleci/*", "Jenkinsfile", "azure-pipelines*.yml", ".travis.yml"),
    *("bitbucket-pipelines.yml", ".drone.yml", ".buildkite/*", ".ci/*", ".pre-commit-config.yaml", "CODEOWNERS"),
)
_GIT_FILES = (".gitattributes", ".gitmodules")
_MAX_PROBLEMS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRules:
    """How large a candidate's patch may be. What lock files change does not count as lines."""

    max_patch_bytes: int = 1024 * 1024
    max_changed_lines: int = 5_000
    max_files: int = 200


def oversized(patch: bytes, rules: PolicyRules) -> Violation | None:
    """Whether a patch is too large to be looked at."""
    if len(patch) <= rules.max_patch_bytes:
        return None
    text = f"the patch has {len(patch)} bytes; at most {rules.max_patch_bytes} are accepted"
    return Violation(concern=Concern.SIZE, text=text)


def patch_violations(patch: Patch, task: Task, rules: PolicyRules, mask: SecretMask) -> Iterator[Violation]:
    """What can be told from the patch alone."""
    if len(patch.files) > rules.max_files:
        text = f"{len(patch.files)} files are changed; at most {rules.max_files} are accepted, and looked at"
        yield Violation(concern=Concern.SIZE, text=text)
        patch = Patch(patch.files[: rules.max_files])
    changed = sum(1 for file in patch.files if not is_lock(file.path) for _ in file.lines("+-"))
    if changed > rules.max_changed_lines:
        text = f"{changed} changed lines; at most {rules.max_changed_lines} are accepted"
        yield Violation(concern=Concern.SIZE, text=text)
    for file in patch.files:
        yield from _of_file(file, task)
        yield from _secrets(file, mask)
    yield from weakened_tests(patch)
    yield from added_silencers(patch)
    if _changes_comments_only(patch):
        text = "of the source nothing changes but comments and blank lines"
        yield Violation(concern=Concern.COMMENTS, text=text, required=False)


def tree_violations(patch: Patch, listed: Iterable[str], text_of: Callable[[str], str]) -> Iterator[Violation]:
    """What takes a look at the tree with the patch applied: its paths, and a file's text (empty: unreadable)."""
    yield from changed_settings(patch, text_of)
    yield from changed_by_hand(patch, text_of)
    yield from missing_licences(patch, listed, text_of)


def policy_results(violations: Iterable[Violation], task: Task, *, duration_ms: int = 0) -> tuple[CheckResult, ...]:
    """What rules a candidate out as one check, and what is only warned of, if anything is, as another."""
    allowed = allowed_concerns(task.constraints)
    counted = [weighed(violation, allowed) for violation in violations]
    required = [one for one in counted if one.required]
    warned = [one for one in counted if not one.required]
    verdict = _verdict("policy", required, required=True, duration_ms=duration_ms)
    return (verdict, _verdict("policy warnings", warned, required=False)) if warned else (verdict,)


def _changes_comments_only(patch: Patch) -> bool:
    """Whether a patch changes source, and nothing but its comments; tests and documents are no source."""
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
            concern=Concern.MODES, path=path, text=f"has the mode {file.mode[:10]!r}, which git never gives"
        )
    if file.mode == _LINK and _leads_outside(file):
        text = "is a symbolic link that leads outside the repository"
        yield Violation(concern=Concern.LINKS, path=path, text=text, required=False)
    if file.mode == _SUBMODULE:
        yield Violation(concern=Concern.LINKS, path=path, text="is a submodule", required=False)
    if posixpath.basename(path) in _GIT_FILES:
        text = "changes what git does with files of the repository"
        yield Violation(concern=Concern.SETTINGS, path=path, text=text, required=False)
    if task.role is not Role.DEVOPS and any(fnmatchcase(path, pattern) for pattern in _PIPELINES):
        text = "changes what runs when the repository is built or reviewed"
        yield Violation(concern=Concern.PIPELINES, path=path, text=text, required=False)


def _leads_outside(file: FilePatch) -> bool:
    target = next((line.text for line in file.lines("+")), "")
    return target.startswith("/") or posixpath.normpath(
        posixpath.join(posixpath.dirname(file.path), target)
    ).startswith("..")


def _secrets(file: FilePatch, mask: SecretMask) -> Iterator[Violation]:
    lines = list(file.lines("+"))
    for secret in secrets_in(file.path, lines, mask) if lines else ():
        # In tests and documents random values are usually made up; the well-known forms are not taken lightly anywhere.
        required = secret.certain or not (is_test(file.path) or is_document(file.path))
        text = f"adds what looks like {secret.what}"
        yield Violation(concern=Concern.SECRETS, path=file.path, line=secret.line, text=text, required=required)


def _verdict(name: str, violations: Sequence[Violation], *, required: bool, duration_ms: int = 0) -> CheckResult:
    said = tuple(dict.fromkeys(str(violation) for violation in violations))
    return CheckResult(
        kind=CheckKind.POLICY,
        name=name,
        passed=not said,
        required=required,
        score=float(not said) if required or _without_effect(violations) else 1 / (1 + len(said)),
        message="; ".join(said[:5]),
        problems=said[:_MAX_PROBLEMS],
        warnings=0 if required else len(said),
        details={"concerns": ", ".join(sorted({violation.concern for violation in violations}))} if said else {},
        duration_ms=duration_ms,
    )


def _without_effect(violations: Iterable[Violation]) -> bool:
    """Whether nothing that the patch changes can do anything: then a warning is the most that can be said for it."""
    return any(violation.concern is Concern.COMMENTS for violation in violations)
