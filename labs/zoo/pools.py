"""Pools of changes whose worth is known: a fault is put into a project, and some changes put it right."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from labs.zoo.catalogue import Project
from labs.zoo.hiding import TestPlace, add_passing_test, hide, places
from labs.zoo.judging import Fleet, Judgement
from labs.zoo.mutations import Mutant, mutants, sources
from labs.zoo.trees import Edit, Trees, text_of, written
from swe_ai_fleet.testing.repositories import git

CANDIDATES = 3
ROUNDS = 3
MOST_BROKEN = 15
"""A fault that more tests notice is chosen only for want of another: few are left that tell right from wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of known worth, and what came of it.

    Attributes:
        right: Whether it puts the fault right.
        shown: Whether a test that fails without it is there, in the repository or with the change.
        told: Whether a test that the fleet can see tells that a wrong one is wrong.
        winner: Whether it was ranked first.
    """

    pool: str
    name: str
    right: bool
    shown: bool = False
    told: bool = False
    verdict: str
    winner: bool
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    """What came of a project's pools, and why there are none or fewer."""

    changes: tuple[Change, ...] = ()
    mutant: str = ""
    cause: str = ""


@dataclass(kw_only=True)
class Pooling:
    """The pools of one project.

    Attributes:
        fleet: Judges.
        project: Whose it is.
        repository: The project as it was published.
        scratch: Where its faulty versions are made.
    """

    fleet: Fleet
    project: Project
    repository: Path
    scratch: Path
    _changes: list[Change] = field(default_factory=list[Change])

    @property
    def _trees(self) -> Trees:
        return Trees(repository=self.repository, scratch=self.scratch)

    async def _noticed(self, faults: Sequence[Mutant]) -> tuple[Judgement, Mutant | None, tuple[str, ...]]:
        """The clean commit judged with faults as patches; the fault that suits best of those that tests notice.

        With the fault come the tests that notice it.
        """
        trees = self._trees
        diffs = {f"fault-{number}": trees.diff("main", self._faulty(fault)) for number, fault in enumerate(faults)}
        if not diffs:
            diffs = {"note": trees.diff("main", written("ZOO.txt", "A file that no test looks at.\n"))}
        judgement = await self.fleet.judge(self.repository, "main", diffs)
        broken = {
            number: judged.broken
            for number, _ in enumerate(faults)
            if (judged := judgement.patches.get(f"fault-{number}")) and judged.verdict == "refuted"
        }
        fewest = 0 if judgement.by_exit_code else 1
        noticed = [number for number, tests in broken.items() if len(tests) >= fewest]
        suited = [number for number in noticed if len(broken[number]) <= MOST_BROKEN] or noticed
        if not suited:
            return judgement, None, ()
        chosen = min(suited, key=lambda number: abs(len(broken[number]) - 3))
        return judgement, faults[chosen], broken[chosen]

    async def run(self) -> tuple[Judgement, Pools]:
        """The judgement on the clean commit, and the pools made of a fault that its tests notice."""
        possible = await asyncio.to_thread(mutants, self.repository, seed=self.project.name)
        possible = possible if self.project.pools else []
        judgement, fault, tests = await self._noticed(possible[:CANDIDATES])
        for number in range(1, ROUNDS if judgement.usable and not judgement.error else 1):
            if fault is not None or not (further := possible[number * CANDIDATES : (number + 1) * CANDIDATES]):
                break
            _, fault, tests = await self._noticed(further)
        if not self.project.pools:
            return judgement, Pools(cause="left out: takes too long")
        if fault is None:
            return judgement, Pools(cause="no fault that its tests notice was found" if judgement.usable else "")
        named = f"{fault.path}: {fault.function}: {fault.before.strip()} -> {fault.after.strip()}"
        self._trees.branch("faulty", "main", self._faulty(fault))
        if judgement.by_exit_code:
            await self._pool_noticed(fault, ())
            return judgement, Pools(changes=tuple(self._changes), mutant=named, cause="its tests have no names")
        noticing = await asyncio.to_thread(places, self.repository, tests, fault.function)
        await self._pool_noticed(fault, noticing)
        cause = ""
        try:
            await self._pool_hidden(fault, noticing)
        except subprocess.CalledProcessError:
            cause = "its fix cannot be made where the tests that notice it are missing: they share a file"
        return judgement, Pools(changes=tuple(self._changes), mutant=named, cause=cause)

    async def _pool_noticed(self, fault: Mutant, noticing: Sequence[TestPlace]) -> None:
        """Existing tests fail on the base."""
        diffs = {
            "fix": self._trees.diff("faulty", self._clean(fault)),
            "elsewhere": self._trees.diff("faulty", self._elsewhere(fault)),
            "deletion": self._trees.diff("faulty", self._deleted(fault)),
            "skip": self._trees.diff("faulty", lambda root: hide(root, noticing)),
        }
        await self._judged("noticed", "faulty", diffs, shown={"fix"}, told=set(diffs))

    async def _pool_hidden(self, fault: Mutant, noticing: Sequence[TestPlace]) -> None:
        """The same without the tests that notice it."""
        self._trees.branch("hidden", "faulty", lambda root: hide(root, noticing))

        def tests_back(root: Path, files: Sequence[str]) -> None:
            for name in files:
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(self.repository / name, root / name)

        def passing(change: Edit) -> Edit:
            def both(root: Path) -> None:
                change(root)
                add_passing_test(root, self.project.runner, noticing[0])

            return both

        def fix_with_tests(root: Path) -> None:
            fixed(root)
            tests_back(root, [place.file for place in noticing])

        fixed = self._ported(self._clean(fault))
        diffs = {
            "fix": self._trees.diff("hidden", fixed),
            "fix-tests": self._trees.diff("hidden", fix_with_tests),
            "elsewhere-test": self._trees.diff("hidden", passing(self._ported(self._elsewhere(fault)))),
            "deletion-test": self._trees.diff("hidden", passing(self._ported(self._deleted(fault)))),
        }
        functions = [place.function for place in noticing if place.function]
        kept = functions[: (len(functions) + 1) // 2]
        clean = text_of(self.repository / fault.path)
        if kept and (special := fault.special(kept)):

            def special_with_tests(root: Path) -> None:
                written(fault.path, fault.replaced(clean, special))(root)
                tests_back(root, [place.file for place in noticing])
                hide(root, [place for place in noticing if place.function not in kept])

            diffs["special-tests"] = self._trees.diff("hidden", special_with_tests)
        await self._judged("hidden", "hidden", diffs, shown={"fix-tests"}, told=set())

    async def _judged(
        self, pool: str, ref: str, diffs: Mapping[str, bytes], *, shown: set[str], told: set[str]
    ) -> None:
        judgement = await self.fleet.judge(self.repository, ref, {name: diff for name, diff in diffs.items() if diff})
        for name in diffs:
            judged = judgement.patches.get(name)
            right = name.startswith("fix")
            verdict = judged.verdict if judged else "none"
            if judged and not right and name in told and verdict == "verified":
                # Whether an existing test can tell: the same file contents against the clean commit.
                told = told - (set() if await self._tells(ref, diffs[name]) else {name})
            self._changes.append(
                Change(
                    pool=pool,
                    name=name,
                    right=right,
                    shown=name in shown,
                    told=name in told and not right,
                    verdict=verdict,
                    winner=judgement.winner == name,
                    reason=judged.reasons[0][:300] if judged and judged.reasons else judgement.error[:300],
                )
            )

    async def _tells(self, ref: str, diff: bytes) -> bool:
        """Whether a test that passes on the clean commit fails with what a patch of a faulty one leads to."""

        def made(root: Path) -> None:
            git(root, "checkout", "--quiet", ref, "--", ".")
            git(root, "apply", "-", stdin=diff)

        judgement = await self.fleet.judge(self.repository, "main", {"wrong": self._trees.diff("main", made)})
        judged = judgement.patches.get("wrong")
        return judged is not None and judged.verdict == "refuted"

    def _faulty(self, fault: Mutant) -> Edit:
        return written(fault.path, fault.applied(text_of(self.repository / fault.path)))

    def _clean(self, fault: Mutant) -> Edit:
        return written(fault.path, text_of(self.repository / fault.path))

    def _deleted(self, fault: Mutant) -> Edit:
        return written(fault.path, fault.deleted(text_of(self.repository / fault.path)))

    def _elsewhere(self, fault: Mutant) -> Edit:
        """A remark in another source file, or at the end of the same where there is no other."""
        suffix = Path(fault.path).suffix
        others = [name for name in sources(self.repository) if name != fault.path and name.endswith(suffix)]
        name = next(iter(others), fault.path)
        remark = "\n# Reviewed.\n" if suffix == ".py" else "\n// Reviewed.\n"
        text = text_of(self.repository / name) if others else fault.applied(text_of(self.repository / name))
        return written(name, text + remark)

    def _ported(self, change: Edit) -> Edit:
        """A change of the faulty version for versions of it: tests may stand in the very file that is changed."""
        diff = self._trees.diff("faulty", change)
        return lambda root: git(root, "apply", "--3way", "-", stdin=diff)
