"""The environment that a repository's commands need, read from its files without running any of them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace

from swe_ai_fleet.domain.environment import EnvironmentDecision
from swe_ai_fleet.domain.task import EnvironmentSpec
from swe_ai_fleet.environments.node_project import node_recipe, node_test_command
from swe_ai_fleet.environments.pip_steps import Tooling
from swe_ai_fleet.environments.python_recipe import recipe_of_python
from swe_ai_fleet.environments.recipe import NO_PYTHON, Machine, PythonRecipe, Recipe, RecipeStep
from swe_ai_fleet.environments.repository_files import RepositoryFiles, is_manifest, is_native_source, joined
from swe_ai_fleet.tools.tests.inventory import is_test, test_command
from swe_ai_fleet.tools.tests.scripts import words_of

_GO = re.compile(r"^(go \d[\w.]*)", re.M)
_RUST = re.compile(r"^(rust-version\s*=\s*\S+)", re.M)
_LFS = re.compile(r"^[^#\n]*\bfilter=lfs\b", re.M)
_SHELL = re.compile(r"[|&;<>()$`\n*?~]")
_NATIVE = re.compile(
    r"\bext_modules\b|\bExtension\(|\bcythonize\b|rust_extensions|cffi_modules|cython|maturin|meson|scikit-build|pybind11|"
    r"nanobind|cffi|mypyc|ext-modules|backend-path|^[^\S\n]*build\s*=\s*[\"'{]",
    re.I | re.M,
)
_MOST_PLACES = 20
_BUILD_CODE = re.compile(
    r"(?:.*/)?(?:hatch_build|build|versioneer|setup_\w+|_?setuphelp\w*|\w+_build|build_\w+|_build|_custom_build)\.py"
)


def toolchain_recipe(files: RepositoryFiles, directory: str, machine: Machine, base: str) -> Recipe:
    """The recipe for Go and Rust in a directory, as far as the machine has their toolchains."""
    steps: list[RecipeStep] = []
    variables: dict[str, str] = {}
    building: dict[str, str] = {}
    decisions: list[EnvironmentDecision] = []
    module = next(iter(files.existing(directory, "go.mod")), "")
    # A module without requirements has nothing to download.
    if module and "go" in machine.programs and ("require" in files.text(module)):
        modules = f"{base}/go/mod"
        download = RecipeStep(
            argv=("go", "mod", "download"), purpose="the Go modules", source=module, directory=directory
        )
        steps.append(replace(download, third_party=True))
        variables |= {"GOMODCACHE": modules, "GOTOOLCHAIN": "local"}
        building |= {**variables, "GOFLAGS": "-modcacherw", "GOCACHE": "/tmp/go-build"}  # noqa: S108
    crate = next(iter(files.existing(directory, "Cargo.toml")), "")
    if crate and "cargo" in machine.programs:
        locked = ("--locked",) if files.nearest(directory, "Cargo.lock") else ()
        fetch = RecipeStep(
            argv=("cargo", "fetch", *locked), purpose="the Rust crates", source=crate, directory=directory
        )
        steps.append(fetch)
        variables["CARGO_HOME"] = f"{base}/cargo"
    for name, manifest, version in (("go", module, _GO), ("cargo", crate, _RUST)):
        if manifest and name not in machine.programs:
            decisions.append(EnvironmentDecision(what=f"this machine has no {name}", source=manifest))
        elif match := version.search(files.text(manifest)):
            decisions.append(
                EnvironmentDecision(what=f"it asks for {match[1]}; this machine's {name} is used", source=manifest)
            )
    return Recipe(steps=tuple(steps), variables=variables, build_variables=building, decisions=tuple(decisions))


def detect(
    files: RepositoryFiles, spec: EnvironmentSpec, machine: Machine, tooling: Tooling, *, directory: str = ""
) -> Recipe:
    """The recipe for a directory of a repository. A malformed manifest gets a note; its tool will report the error.

    Without `spec.detect`, the recipe is a virtual environment (not in an image) and the caller's commands, which always
    come last.
    """
    has_python = machine.default != NO_PYTHON and (spec.detect or not machine.image)
    python = recipe_of_python(files, directory, machine, tooling) if has_python else None
    node = node_recipe(files, directory, machine, tooling.base) if spec.detect else None
    parts = [part for part in (python, node) if part is not None]
    if spec.detect:
        parts.append(toolchain_recipe(files, directory, machine, tooling.base))
    recipe = Recipe(
        python=python.python if python else None,
        node=node.node if node else None,
        steps=tuple(step for part in parts for step in part.steps),
        packages=python.packages if python else None,
        files={path: text for part in parts for path, text in part.files.items()},
        variables={name: value for part in parts for name, value in part.variables.items()},
        build_variables={name: value for part in parts for name, value in part.build_variables.items()},
        decisions=tuple(decision for part in parts for decision in part.decisions),
    )
    if python is not None and python.python is not None and not spec.detect:
        recipe = Recipe(
            python=PythonRecipe(version=python.python.version),
            steps=tuple(step for step in recipe.steps if step.required),
            decisions=python.decisions[:1],
        )
    recipe = _with_tests(recipe, files, directory, python)
    setup = tuple(
        RecipeStep(
            argv=("sh", "-c", line),
            purpose=f"set-up command {number + 1}",
            source="the caller",
            concerns=f"environment.setup[{number}]",
            directory=directory,
            required=True,
        )
        for number, line in enumerate(spec.setup)
    )
    return replace(recipe, steps=(*recipe.steps, *setup), notes=tuple(_notes(files, directory)))


def inputs(files: RepositoryFiles) -> tuple[str, ...]:
    """The files that an environment depends on: all manifests, and the sources of compiled extensions."""
    paths = [path for path in files.files if is_manifest(path) or _BUILD_CODE.fullmatch(path)]
    # Automation may name any of these as a list of requirements.
    paths += [path for path in files.texts if path.endswith((".txt", ".in"))]
    manifests = [path for path in paths if path.endswith(("pyproject.toml", "setup.py"))]
    if any(_NATIVE.search(files.text(path)) for path in manifests):
        paths += [path for path in files.files if is_native_source(path)]
        # The repository's own build backend.
        for path in manifests:
            for place in re.findall(r"backend-path\s*=\s*\[([^\[\]]*)\]", files.text(path)):
                names = re.findall(r"[\"']([^\"']+)[\"']", place)
                places = tuple(names[:_MOST_PLACES])
                paths += [name for name in files.files if name.endswith(".py") and name.startswith(places)]
    if manifests:
        # An editable installation maps the existing packages: a new package needs a new installation.
        paths += sorted({"/".join(path.split("/")[:3]) + "/" for path in files.files if path.endswith("/__init__.py")})
    return tuple(dict.fromkeys(paths))


def _with_tests(recipe: Recipe, files: RepositoryFiles, directory: str, python: Recipe | None) -> Recipe:
    """The recipe with the test command: from automation, else guessed from the files."""
    guess = _guess(files, directory)
    if python is not None and python.test_command and (not guess or guess[0].startswith("python")):
        return replace(_tested(recipe, python.test_command, python.test_source), variables=recipe.variables)
    if guess[:2] == ("npm", "test"):
        argv, left_out = node_test_command(files, directory)
        manifest = joined(directory, "package.json")
        recipe = _tested(recipe, argv, manifest)
        decisions = (EnvironmentDecision(what=decision_text, source=manifest) for decision_text in left_out)
        return replace(recipe, decisions=(*recipe.decisions, *decisions))
    tests = [path for path in files.below(directory) if is_test(path)]
    source = {"go": "go.mod", "cargo": "Cargo.toml", "make": "Makefile"}.get(guess[0] if guess else "", "")
    return _tested(recipe, guess, source or (f"{len(tests)} test files" if tests else "pytest's configuration"))


def _guess(files: RepositoryFiles, directory: str) -> tuple[str, ...]:
    """The test command, guessed from the names and texts of files."""
    names = files.below(directory)
    return test_command(names, {name: files.texts[path] for name, path in names.items() if path in files.texts})


def _tested(recipe: Recipe, argv: Sequence[str], source: str) -> Recipe:
    if not argv:
        return recipe
    decision = EnvironmentDecision(what=f"tests run as `{shlex.join(argv)}`", source=source)
    return replace(recipe, test_command=tuple(argv), test_source=source, decisions=(*recipe.decisions, decision))


def caller_command(line: str) -> tuple[str, ...]:
    """The argv of a caller's test command; a shell runs lines with shell syntax."""
    words = tuple(words_of(line))
    return ("sh", "-c", line) if not words or _SHELL.search(line) or "=" in words[0] else words


def _notes(files: RepositoryFiles, directory: str) -> list[str]:
    notes = [
        f"{path.rpartition('/')[2]} cannot be parsed."
        for path in files.existing(directory, "pyproject.toml", "package.json")
        if files.broken(path)
    ]
    if _LFS.search(files.text(".gitattributes")):
        notes.append("Git LFS files are not fetched: they hold pointers, not content.")
    return notes


def digest(files: RepositoryFiles, directory: str = "") -> str:
    """A digest of everything that an environment depends on."""
    return f"{files.digest(inputs(files))} {files.releases_until(directory)} {_guess(files, directory)}"
