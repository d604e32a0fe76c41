"""Which builds provably run no code of the repository: other commits share what they make, and nothing else."""

from __future__ import annotations

from swe_ai_fleet.environments import RepositoryFiles
from swe_ai_fleet.environments.project_code import project_code
from tests.tables import table

SETUPTOOLS = '[build-system]\nrequires = ["setuptools>=61", "wheel"]\nbuild-backend = "setuptools.build_meta"\n'
HATCH = '[build-system]\nrequires = ["hatchling", "hatch-vcs"]\nbuild-backend = "hatchling.build"\n'
NODE = '{"dependencies": {"a": "^1.0.0"}, "scripts": {"test": "node --test"}}'
LOCK = '{"lockfileVersion": 3, "packages": {"": {}, "node_modules/a": {"version": "1.0.0"}}}'


def reason(files: dict[str, str], *unread: str) -> str:
    return project_code(RepositoryFiles(files=dict.fromkeys((*files, *unread), "x"), texts=files))


@table(
    "files",
    [
        {}, {"requirements.txt": "requests==2.32.0 --hash=sha256:00\n-r more-requirements.txt\n# ./not\n"},
        {"pyproject.toml": SETUPTOOLS + '[tool.setuptools_scm]\nversion_file = "a/_version.py"\n'},
        {
            "pyproject.toml": SETUPTOOLS,
            "setup.py": "from setuptools import setup, find_packages\nsetup(name='a', x=[1])",
        },
        {"pyproject.toml": HATCH + '[tool.hatch.version]\nsource = "vcs"\n[tool.hatch.build.hooks.vcs]\nx="v"\n'},
        {"pyproject.toml": '[build-system]\nrequires=["poetry-core"]\nbuild-backend="poetry.core.masonry.api"\n'},
        {"package.json": NODE, "package-lock.json": LOCK, ".npmrc": "audit=false\ngit-tag-version=false\n"},
        {"package.json": '{"workspaces": ["p/*"]}', "p/a/package.json": NODE, "package-lock.json": LOCK},
        {"package.json": '{"scripts": {"test": "node --test"}}'}, {"src/a/setup.py": "def set_up(): ..."},
        {"go.mod": "module m\nrequire a v1\n", "Cargo.toml": "[package]\n"},
    ],
)  # fmt: skip
def test_what_runs_nothing_of_the_repository(files: dict[str, str]) -> None:
    assert reason(files) == ""


PYTHON = {"pyproject.toml": SETUPTOOLS}
NPM = {"package.json": NODE, "package-lock.json": LOCK}
SETUP = "from setuptools import setup\n"
CODE = (
    f"import a\n{SETUP}setup(version=a.v)", "import setuptools as s\ngetattr(s, 'set' + 'up')()",
    f"{SETUP}setup(**open('x'))", f"{SETUP}setup(name=__import__('evil').n)",
)  # fmt: skip
BUILDS = (
    SETUPTOOLS + '[tool.setuptools.dynamic]\nversion = {attr = "a.v"}\n',
    SETUPTOOLS + '[tool.setuptools.dynamic]\ndependencies = {file = "d"}\n',
    SETUPTOOLS + '[tool.setuptools_scm]\ngit_describe_command = "sh x"\n',
    SETUPTOOLS.replace('"wheel"', '"setuptools-rust"'), SETUPTOOLS.replace('"wheel"', '"wheel @ file:///w.whl"'),
    SETUPTOOLS + 'backend-path = ["."]\n', '[build-system]\nrequires = ["setuptools"]\n',
    HATCH + "[tool.hatch.build.hooks.custom]\n",
)  # fmt: skip
CONFIGURED = (
    "[metadata]\nversion = attr: a.v\n", "[metadata]\nversion: attr: a.v\n",
    "[options]\ninstall_requires: file: deps\n", "[options]\ninstall_requires = file: deps\n",
)  # fmt: skip
HARMFUL: list[dict[str, str]] = [
    {"setup.py": f"{SETUP}setup()"},  # no backend: its own directory is on the path
    *({**PYTHON, "setup.py": text} for text in CODE), *({"pyproject.toml": text} for text in BUILDS),
    *({**PYTHON, "setup.cfg": text} for text in CONFIGURED),
    {"pyproject.toml": HATCH, "hatch.toml": "[build.targets.wheel.hooks.custom]\n"},
    *({"requirements.txt": text} for text in ("./w/t.whl\n", "--find-links wheels\nthing\n", "t @ file:wheels/t\n")),
    {**NPM, "package.json": NODE.replace('"test"', '"prepare"')},
    {**NPM, "package.json": NODE.replace("^1.0.0", "file:./a")},
    {**NPM, "package.json": '{"workspaces": ["p/*"]}', "p/a/package.json": NODE.replace('"test"', '"postinstall"')},
    {"package.json": NODE}, {"package.json": NODE, "yarn.lock": "a@^1.0.0:\n"},
    {**NPM, "package-lock.json": LOCK.replace('"version"', '"hasInstallScript": true, "version"')},
    {**NPM, ".npmrc": "node-options=--require ./evil.js\n"},
    {**NPM, ".yarnrc.yml": "yarnPath: .yarn/releases/yarn-4.cjs\n"},
]  # fmt: skip


@table(
    ("files", "unread"),
    [
        *((files, "") for files in HARMFUL),
        (PYTHON, "setup.py"),  # a link to some program
        *((NPM, unread) for unread in ("binding.gyp", ".pnpmfile.cjs", "node_modules/a/index.js")),
        *(({"Cargo.toml": "[package]\n"}, unread) for unread in (".cargo/config.toml", ".cargo")),
    ],
)
def test_what_may_run_something_of_it(files: dict[str, str], unread: str) -> None:
    assert reason(files, *filter(None, [unread]))
