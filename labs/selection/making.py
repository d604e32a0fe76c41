"""Pools made of one project: faults that its tests notice, candidates of known worth, and their tests."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from random import Random

from labs.selection.catalogue import Author, PoolSpec, Source, Tests
from labs.selection.probes import MadeProbe, Prober
from labs.selection.testing import run_pytest
from labs.selection.wrong_tests import add_wrong_test
from labs.zoo.hiding import TestPlace, add_passing_test, hide, places
from labs.zoo.judging import Fleet
from labs.zoo.mutations import Mutant, mutants, sources
from labs.zoo.trees import Trees, text_of
from swe_ai_fleet.testing.repositories import git

TRIED = 6
"""Faults of a project that are tried at once; MOST are tried at all."""
MOST = 36
MOST_BROKEN = 19
"""Faults that more tests notice are passed over: nobody would miss them, and a report names no more."""
ALTERNATIVES = 4
PYTHON = ("pytest", "unittest")
"""Runners whose tests are run without a fleet."""

Texts = Mapping[str, str]
"""Source files by path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault and the tests that notice it."""

    mutant: Mutant
    tests: frozenset[TestPlace]


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """What the project's own tests say of a version of its sources: those that fail, of all."""

    broken: tuple[str, ...] = ()
    refuted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A candidate of known worth.

    Attributes:
        author: What it does, and the tests that it really brings.
        right: Whether every test of the project passes with it; those of `broken` do not.
        brings: The hidden tests that it brings.
    """

    candidate_id: str
    author: Author
    patch: bytes
    right: bool
    broken: tuple[str, ...] = ()
    brings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A pool ready to be judged: candidates for the commit `ref`."""

    spec: PoolSpec
    ref: str
    faults: tuple[str, ...]
    hidden: tuple[str, ...]
    candidates: tuple[Made, ...]
    probes: tuple[MadeProbe, ...] = ()


_PACKAGING = (
    *("setup.py", "setup.cfg", "pyproject.toml", "requirements*.txt", "requirements*.in", "MANIFEST.in", "uv.lock"),
    *("poetry.lock", "tox.ini", "noxfile.py", "pytest.ini", "Makefile", ".pre-commit-config.yaml", ".github"),
    "package-lock.json",
)


def without_packaging(repository: Path) -> None:
    """Take out of a repository's commit what has to be installed before its tests run.

    Each pool is a commit of its own, for which an environment would be made; `make zoo` measures those.
    """
    for pattern in _PACKAGING:
        for path in repository.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    if (manifest := repository / "package.json").exists():
        kept = ("name", "version", "main", "type", "exports")
        rest = {name: value for name, value in json.loads(manifest.read_text()).items() if name in kept}
        manifest.write_text(json.dumps(rest | {"scripts": {"test": "node --test"}}, indent=2) + "\n")
    else:
        (repository / "pytest.ini").write_text("[pytest]\npythonpath = . src\n")
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--no-verify", "--amend", "--no-edit")


class Unmakeable(Exception):
    """A pool that cannot be made of this project, with the reason."""


@dataclass(kw_only=True)
class Workshop:
    """Makes the pools of one project.

    Attributes:
        name: The project's.
        runner: Of its tests.
        version: Tells its files apart from others of this name, for `known`.
        known: What was found out about versions of sources, by file; None: nothing is kept.
    """

    fleet: Fleet
    name: str
    runner: str
    version: str
    repository: Path
    scratch: Path
    known: Path | None = None
    _worth: dict[str, Worth] = field(default_factory=dict[str, Worth])

    @property
    def _trees(self) -> Trees:
        return Trees(repository=self.repository, scratch=self.scratch)

    async def pools(self, specs: Sequence[PoolSpec]) -> list[Pool | Unmakeable]:
        """The pools, or why one cannot be made; one judgement for the faults and one for all candidates' sources."""
        if self.known is not None and self.known.exists():
            rows = json.loads(self.known.read_text())
            self._worth = {key: Worth(broken=tuple(row["broken"]), refuted=row["refuted"]) for key, row in rows.items()}
        faults = await self._faults(specs)
        chosen: list[tuple[PoolSpec, tuple[Fault, ...]] | Unmakeable] = []
        for spec in specs:
            try:
                chosen.append((spec, self._chosen(spec, faults)))
            except Unmakeable as error:
                chosen.append(error)
        drafts = [self._drafts(*one) for one in chosen if not isinstance(one, Unmakeable)]
        await self._look([texts for options in drafts for one in options.values() for texts in one])
        remaining = iter(drafts)
        found: list[Pool | Unmakeable] = []
        for one in chosen:
            if isinstance(one, Unmakeable):
                found.append(one)
                continue
            try:
                found.append(self._pool(*one, next(remaining)))
            except (Unmakeable, subprocess.CalledProcessError, SyntaxError) as error:
                found.append(Unmakeable(f"{one[0].name}: {error}"))
        return found

    async def _faults(self, specs: Sequence[PoolSpec]) -> list[Fault]:
        """Faults that some tests notice, enough for all pools where there are."""
        wanted = sum(spec.faults for spec in specs) + 1
        possible = mutants(self.repository, seed=self.name)[:MOST]
        faults: list[Fault] = []
        for number in range(0, len(possible), TRIED):
            tried = possible[number : number + TRIED]
            await self._look([self._faulty([mutant]) for mutant in tried])
            for mutant in tried:
                worth = self._worth[self._key(self._faulty([mutant]))]
                if not worth.refuted or not 0 < len(worth.broken) <= MOST_BROKEN:
                    continue
                noticing = frozenset(places(self.repository, worth.broken, mutant.function))
                if all(place.name for place in noticing):
                    faults.append(Fault(mutant=mutant, tests=noticing))
            if len(faults) >= wanted:
                break
        return faults

    def _chosen(self, spec: PoolSpec, faults: Sequence[Fault]) -> tuple[Fault, ...]:
        """Each pool begins with another fault; of two each is noticed by a test that the other one passes."""
        if not faults:
            raise Unmakeable(f"{spec.name}: no fault that some tests notice was found")
        start = (spec.seed - 1) % len(faults)
        ordered = [*faults[start:], *faults[:start]]
        # Where something is to be right for some tests only there have to be several.
        partly = any(author.source in (Source.SPECIAL, Source.REASON) for author in spec.authors)
        ordered.sort(key=lambda fault: partly and len(fault.tests) < 2)
        for group in combinations(ordered, spec.faults):
            apart = all(one.tests - other.tests for one in group for other in group if one is not other)
            if apart and _disjoint([fault.mutant for fault in group]):
                return group
        raise Unmakeable(f"{spec.name}: no {spec.faults} faults that different tests notice were found")

    def _drafts(self, spec: PoolSpec, faults: tuple[Fault, ...]) -> dict[Source, list[Texts]]:
        """By what candidates do, the possible versions of the sources, those to be preferred first."""
        found = [fault.mutant for fault in faults]
        options: dict[Source, list[Texts]] = {
            Source.RIGHT: [self._texts([], found)],
            Source.NOTHING: [self._faulty(found)],
            Source.HALF: [self._texts([one for one in found if one is not mended], found) for mended in found],
        }
        clean = {mutant: mutant.before for mutant in found}
        alternatives = [
            self._with(clean | {mutant: text}, found)
            for mutant in found
            for text in mutant.alternatives()[:ALTERNATIVES]
        ]
        options[Source.REASON] = alternatives + [
            {mutant.path: covered}
            for mutant in found[:1]
            if len(found) == 1 and (covered := mutant.covered(text_of(self.repository / mutant.path)))
        ]
        kept = [sorted(place.function for place in fault.tests if place.function) for fault in faults]
        special = {
            mutant: text
            for mutant, names in zip(found, kept, strict=True)
            if (text := mutant.special(names[: (len(names) + 1) // 2]))
        }
        options[Source.SPECIAL] = [self._with(special, found)] if special else []
        return {source: options[source] for source in {author.source for author in spec.authors}}

    def _pool(self, spec: PoolSpec, faults: tuple[Fault, ...], options: Mapping[Source, list[Texts]]) -> Pool:
        found = [fault.mutant for fault in faults]
        hidden = frozenset(place for fault in faults for place in fault.tests)
        chance = Random(spec.name)
        names = [f"candidate-{number}" for number in range(1, len(spec.authors) + 1)]
        chance.shuffle(names)
        ref = f"pool-{spec.seed}"

        def base(root: Path) -> None:
            _write(root, self._faulty(found))
            hide(root, hidden)

        self._trees.branch(ref, "main", base)
        used: list[Texts] = []
        made: list[Made] = []
        for name, author in zip(names, spec.authors, strict=True):
            texts, worth = self._version(spec, author.source, options, hidden, used)
            used.append(texts)
            broken = self._places(worth)
            passing = sorted(hidden - broken, key=_order)
            if author.tests is Tests.SLICE:
                passing = sorted(chance.sample(passing, (len(passing) + 1) // 2), key=_order)
            failing = sorted(hidden & broken, key=_order)
            patch, tests = self._patch(ref, author, texts, hidden, passing, failing)
            made.append(
                Made(
                    candidate_id=name,
                    author=replace(author, tests=tests),
                    patch=patch,
                    right=not worth.refuted,
                    broken=worth.broken,
                    brings=_named(passing) if tests.good else (),
                )
            )
        return Pool(
            spec=spec,
            ref=ref,
            faults=tuple(_words(mutant) for mutant in found),
            hidden=_named(hidden),
            candidates=tuple(made),
            probes=Prober(
                repository=self.repository,
                ref=ref,
                mutants=found,
                hidden=sorted(hidden, key=_order),
                mistaken=[self._places(Worth(broken=one.broken)) for one in made if not one.right],
                faulty=dict(self._faulty(found)),
                chance=Random(f"{spec.name}/probes"),
            ).made(spec.probes),
        )

    def _version(
        self,
        spec: PoolSpec,
        source: Source,
        options: Mapping[Source, list[Texts]],
        hidden: frozenset[TestPlace],
        used: list[Texts],
    ) -> tuple[Texts, Worth]:
        """What suits best of the possible versions: where it is to be wrong, one that only hidden tests tell of."""
        if source is Source.RIGHT:
            return options[source][0], Worth()
        suited: list[tuple[tuple[bool, bool, bool, int], Texts, Worth]] = []
        for number, texts in enumerate(options[source]):
            worth = self._worth[self._key(texts)]
            broken = self._places(worth)
            if worth.refuted:
                suited.append(((texts in used, not broken <= hidden, not hidden - broken, number), texts, worth))
        if not suited:
            raise Unmakeable(f"{spec.name}: nothing is {source} here")
        _, texts, worth = min(suited, key=lambda one: one[0])
        return texts, worth

    def _patch(
        self,
        ref: str,
        author: Author,
        texts: Texts,
        hidden: frozenset[TestPlace],
        passing: Sequence[TestPlace],
        failing: Sequence[TestPlace],
    ) -> tuple[bytes, Tests]:
        """The candidate's patch of the base, and the tests that it really has.

        An author's good tests are `passing`, of the hidden ones that its own source passes; it fails `failing`.
        """
        tests = Tests.NONE if author.tests.good and not passing else author.tests

        def edit(root: Path) -> None:
            nonlocal tests
            _write(root, texts)
            if author.source is Source.NOTHING:
                self._remark(root, texts)
            made = True
            if tests.good:
                # Hiding is for files that have the tests: all of them come back first.
                for file in {place.file for place in hidden}:
                    (root / file).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(self.repository / file, root / file)
                hide(root, hidden - set(passing))
            elif tests is Tests.VACUOUS:
                made = add_passing_test(root, self.runner, min(hidden, key=_order))
            elif tests is Tests.WRONG:
                made = add_wrong_test(root, self.repository, passing, failing)
            tests = tests if made else Tests.NONE

        return self._trees.diff(ref, edit), tests

    def _remark(self, root: Path, texts: Texts) -> None:
        suffix = Path(next(iter(texts))).suffix
        others = [name for name in sources(self.repository) if name not in texts and name.endswith(suffix)]
        path = root / next(iter(others), next(iter(texts)))
        path.write_text(path.read_text() + ("\n# Reviewed.\n" if suffix == ".py" else "\n// Reviewed.\n"))

    async def _look(self, versions: Iterable[Texts]) -> None:
        """Find out what the project's tests say of versions of its sources, where that is not known."""
        diffs: dict[str, bytes] = {}
        for texts in versions:
            key = self._key(texts)
            if key not in self._worth and key not in diffs:
                diffs[key] = self._trees.diff("main", lambda root, texts=texts: _write(root, texts))
        for key in [key for key, diff in diffs.items() if not diff]:
            self._worth[key] = Worth()
            del diffs[key]
        if not diffs:
            return
        if self.runner in PYTHON:
            await self._run(diffs)
        else:
            await self._judge(diffs)
        if self.known is not None:
            self.known.parent.mkdir(parents=True, exist_ok=True)
            rows = {key: {"broken": worth.broken, "refuted": worth.refuted} for key, worth in self._worth.items()}
            self.known.write_text(json.dumps(rows, indent=1))

    async def _run(self, diffs: Mapping[str, bytes]) -> None:
        """One run of the tests each: the fleet repeats what fails, which here costs more than it tells."""
        tree = self.scratch / "run"
        git(self.repository, "worktree", "add", "--quiet", "--detach", str(tree), "main")
        try:
            clean = await run_pytest(tree)
            if not clean.ended:
                raise Unmakeable(f"{self.name}: its tests do not run")
            for key, diff in diffs.items():
                git(tree, "checkout", "--quiet", "--force", "--detach", "main")
                git(tree, "clean", "--quiet", "-dxff")
                git(tree, "apply", "-", stdin=diff)
                outcome = await run_pytest(tree)
                broken = tuple(test for test in outcome.bad if test not in clean.bad)
                self._worth[key] = Worth(broken=broken, refuted=bool(broken) or not outcome.ended)
        finally:
            git(self.repository, "worktree", "remove", "--force", str(tree))

    async def _judge(self, diffs: Mapping[str, bytes]) -> None:
        numbered = {f"v{number}": key for number, key in enumerate(diffs)}
        judgement = await self.fleet.judge(
            self.repository, "main", {name: diffs[key] for name, key in numbered.items()}
        )
        if judgement.error:
            raise Unmakeable(f"{self.name}: {judgement.error}")
        if not judgement.usable:
            raise Unmakeable(f"{self.name}: {judgement.summary}")
        for name, key in numbered.items():
            judged = judgement.patches[name]
            self._worth[key] = Worth(broken=judged.broken, refuted=judged.verdict == "refuted")

    def _places(self, worth: Worth) -> frozenset[TestPlace]:
        return frozenset(places(self.repository, worth.broken, "")) if worth.broken else frozenset()

    def _key(self, texts: Texts) -> str:
        content = json.dumps([self.name, self.version, sorted(texts.items())])
        return hashlib.sha256(content.encode()).hexdigest()[:20]

    def _faulty(self, found: Sequence[Mutant]) -> Texts:
        return self._texts(found, found)

    def _texts(self, left: Sequence[Mutant], found: Sequence[Mutant]) -> Texts:
        """The files that the faults are in, with those faults that are left."""
        return self._with({mutant: mutant.before for mutant in found if mutant not in left}, found)

    def _with(self, replacements: Mapping[Mutant, str], found: Sequence[Mutant]) -> Texts:
        """The files that the faults are in, with replacements in the places of some faults."""
        texts: dict[str, str] = {}
        for mutant in sorted(found, key=lambda mutant: -mutant.start):
            text = texts.get(mutant.path) or text_of(self.repository / mutant.path)
            texts[mutant.path] = mutant.replaced(text, replacements.get(mutant, mutant.after))
        return texts


def _write(root: Path, texts: Texts) -> None:
    for name, text in texts.items():
        (root / name).write_bytes(text.encode())


def _disjoint(found: Sequence[Mutant]) -> bool:
    return all(
        one.path != other.path or one.end <= other.start or other.end <= one.start
        for one, other in combinations(found, 2)
    )


def _order(place: TestPlace) -> tuple[str, str]:
    return place.file, place.name


def _named(tests: Iterable[TestPlace]) -> tuple[str, ...]:
    return tuple(f"{place.file}::{place.name}" for place in sorted(tests, key=_order))


def _words(mutant: Mutant) -> str:
    return f"{mutant.path}: {mutant.function}: {mutant.before.strip()} -> {mutant.after.strip()}"
