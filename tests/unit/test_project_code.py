"""Which builds provably run no code of the repository: other commits share what they make, and nothing else."""

from __future__ import annotations

import pytest

from swe_ai_fleet.environments.project_code import project_code
from swe_ai_fleet.environments.repository_files import RepositoryFiles

SETUPTOOLS = '[build-system]\nrequires = ["setuptools>=61", "wheel"]\nbuild-backend = "setuptools.build_meta"\n'
HATCH = '[build-system]\nrequires = ["hatchling", "hatch-vcs"]\nbuild-backend = "hatchling.build"\n'
NODE = '{"dependencies": {"a": "^1.0.0"}, "scripts": {"test": "node --test"}}'
LOCK = '{"lockfileVersion": 3, "packages": {"": {}, "node_modules/a": {"version": "1.0.0"}}}'


def reason(files: dict[str, str], *unread: str) -> str:
    return project_code(RepositoryFiles(files=dict.fromkeys((*files, *unread), "x"), texts=files))


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"requirements.txt": "requests==2.32.0 --hash=sha256:00\n-r more-requirements.txt\n# ./not\n"},
        {"pyproject.toml": SETUPTOOLS + '[tool.setuptools_scm]\nversion_file = "a/_version.py"\n'},
        {
            "pyproject.toml": SETUPTOOLS,
            "setup.py": "from setuptools import setup, find_packages\nsetup(name='a', x=[1])",
        },
        {
            "pyproject.toml": HATCH
            + '[tool.hatch.version]\nsource = "vcs"\n[tool.hatch.build.hooks.vcs]\nversion-file="v"\n'
        },
        {"pyproject.toml": '[build-system]\nrequires=["poetry-core"]\nbuild-backend="poetry.core.masonry.api"\n'},
        {"package.json": NODE, "package-lock.json": LOCK, ".npmrc": "audit=false\ngit-tag-version=false\n"},
        {
            "package.json": '{"workspaces": ["packages/*"]}',
            "packages/a/package.json": NODE,
            "package-lock.json": LOCK,
        },
        {"package.json": '{"scripts": {"test": "node --test"}}'},
        {"src/a/setup.py": "def set_up(): ..."},
        {"go.mod": "module m\nrequire a v1\n", "Cargo.toml": "[package]\n"},
    ],
)
def test_what_runs_nothing_of_the_repository(files: dict[str, str]) -> None:
    assert reason(files) == ""


@pytest.mark.parametrize(
    ("files", "unread"),
    [
        ({"setup.py": "from setuptools import setup\nsetup()"}, ()),  # no backend: its own directory is on the path
        ({"pyproject.toml": SETUPTOOLS, "setup.py": "import a\nfrom setuptools import setup\nsetup(version=a.v)"}, ()),
        ({"pyproject.toml": SETUPTOOLS, "setup.py": "import setuptools as s\ngetattr(s, 'set' + 'up')()"}, ()),
        ({"pyproject.toml": SETUPTOOLS, "setup.py": "from setuptools import setup\nsetup(**open('x'))"}, ()),
        (
            {
                "pyproject.toml": SETUPTOOLS,
                "setup.py": "from setuptools import setup\nsetup(name=__import__('evil').n)",
            },
            (),
        ),
        ({"pyproject.toml": SETUPTOOLS}, ("setup.py",)),  # a link to some program
        ({"pyproject.toml": SETUPTOOLS + '[tool.setuptools.dynamic]\nversion = {attr = "a.v"}\n'}, ()),
        ({"pyproject.toml": SETUPTOOLS + '[tool.setuptools.dynamic]\ndependencies = {file = "d"}\n'}, ()),
        ({"pyproject.toml": SETUPTOOLS + '[tool.setuptools_scm]\ngit_describe_command = "sh x"\n'}, ()),
        ({"pyproject.toml": SETUPTOOLS.replace('"wheel"', '"setuptools-rust"')}, ()),
        ({"pyproject.toml": SETUPTOOLS.replace('"wheel"', '"wheel @ file:///w.whl"')}, ()),
        ({"pyproject.toml": SETUPTOOLS + 'backend-path = ["."]\n'}, ()),
        ({"pyproject.toml": '[build-system]\nrequires = ["setuptools"]\n'}, ()),
        ({"pyproject.toml": SETUPTOOLS, "setup.cfg": "[metadata]\nversion = attr: a.v\n"}, ()),
        ({"pyproject.toml": SETUPTOOLS, "setup.cfg": "[metadata]\nversion: attr: a.v\n"}, ()),
        ({"pyproject.toml": SETUPTOOLS, "setup.cfg": "[options]\ninstall_requires: file: deps\n"}, ()),
        ({"pyproject.toml": SETUPTOOLS, "setup.cfg": "[options]\ninstall_requires = file: deps\n"}, ()),
        ({"pyproject.toml": HATCH + "[tool.hatch.build.hooks.custom]\n"}, ()),
        ({"pyproject.toml": HATCH, "hatch.toml": "[build.targets.wheel.hooks.custom]\n"}, ()),
        ({"requirements.txt": "./wheels/thing.whl\n"}, ()),
        ({"requirements.txt": "--find-links wheels\nthing\n"}, ()),
        ({"requirements.txt": "thing @ file:wheels/thing\n"}, ()),
        ({"package.json": NODE.replace('"test"', '"prepare"'), "package-lock.json": LOCK}, ()),
        ({"package.json": NODE.replace("^1.0.0", "file:./a"), "package-lock.json": LOCK}, ()),
        (
            {
                "package.json": '{"workspaces": ["p/*"]}',
                "p/a/package.json": NODE.replace('"test"', '"postinstall"'),
                "package-lock.json": LOCK,
            },
            (),
        ),
        ({"package.json": NODE}, ()),
        ({"package.json": NODE, "yarn.lock": "a@^1.0.0:\n"}, ()),
        (
            {
                "package.json": NODE,
                "package-lock.json": LOCK.replace('"version"', '"hasInstallScript": true, "version"'),
            },
            (),
        ),
        ({"package.json": NODE, "package-lock.json": LOCK, ".npmrc": "node-options=--require ./evil.js\n"}, ()),
        ({"package.json": NODE, "package-lock.json": LOCK, ".yarnrc.yml": "yarnPath: .yarn/releases/yarn-4.cjs\n"}, ()),
        ({"package.json": NODE, "package-lock.json": LOCK}, ("binding.gyp",)),
        ({"package.json": NODE, "package-lock.json": LOCK}, (".pnpmfile.cjs",)),
        ({"package.json": NODE, "package-lock.json": LOCK}, ("node_modules/a/index.js",)),
        ({"Cargo.toml": "[package]\n"}, (".cargo/config.toml",)),
        ({"Cargo.toml": "[package]\n"}, (".cargo",)),
    ],
)
def test_what_may_run_something_of_it(files: dict[str, str], unread: tuple[str, ...]) -> None:
    assert reason(files, *unread)
