"""Extensions: their parts load, and each can be deleted with its tests."""

from __future__ import annotations

import pkgutil
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import swe_ai_fleet
from swe_ai_fleet.extension_registry import extensions, load_export, load_parts

ROOT = Path(__file__).parents[2]
LEFT_OUT = shutil.ignore_patterns("__pycache__", "node_modules", ".*")
IMPORT_ALL = """
import importlib, pkgutil, sys
from swe_ai_fleet.extension_registry import extensions
programs = [name for extension in extensions().values() for name in extension.programs]
for name in ("swe_ai_fleet", "services", *programs):
    package = importlib.import_module(name)
    assert package.__path__[0].startswith(sys.argv[1]), package.__path__
    for module in pkgutil.walk_packages(package.__path__, f"{name}."):
        if ".inside." not in module.name:
            importlib.import_module(module.name)
"""
"""Programs for the sandbox are no modules of this process."""
OPEN_FLEET = """
import asyncio, pathlib, sys
from services.orchestrator.main import open_fleet
from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.extension_registry import extensions, load_parts
from swe_ai_fleet.settings import OF_EXTENSIONS, Settings
from swe_ai_fleet.testing import Script, ScriptedModelServer

async def main():
    async with ScriptedModelServer(Script(conversations=())) as model:
        settings = Settings(home=pathlib.Path(sys.argv[1]), model_url=model.url, model="scripted", listen="127.0.0.1:0")
        async with open_fleet(settings) as running:
            assert running.address
        without = {"executor": "kubernetes"} if not load_parts("executor") else {}
        without |= {name: ("x",) for name, extension in OF_EXTENSIONS.items() if extension not in extensions()}
        for name, value in without.items():
            try:
                async with open_fleet(settings.model_copy(update={name: value})):
                    raise AssertionError("it started")
            except PreconditionFailed as refused:
                assert refused.field == name and f"FLEET_{name.upper()}" in refused.hint, refused
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree, in which something can be deleted."""
    made = tmp_path_factory.mktemp("tree") / "fleet"
    shutil.copytree(ROOT, made, ignore=LEFT_OUT)
    return made


def test_the_parts_of_extensions_load() -> None:
    for part in ("services", "workflows", "executor", "settings", "tools", "harnesses", "doctor"):
        assert len(load_parts(part)) == len([one for one in extensions().values() if getattr(one, part)])
    for name in (name for one in extensions().values() for name in one.exports):
        assert getattr(swe_ai_fleet, name) is load_export(name)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("names", [*((one,) for one in extensions()), tuple(extensions())], ids="-".join)
def test_without_it_the_rest_imports_collects_and_serves(names: tuple[str, ...], copy: Path, tmp_path: Path) -> None:
    rooms = (copy / "src" / "swe_ai_fleet" / "extensions", copy / "tests" / "extensions")
    places = [room / name for room in rooms for name in names if (room / name).exists()]
    places += [copy / program for name in names for program in extensions()[name].programs]
    away = [Path(shutil.move(place, tmp_path / str(number))) for number, place in enumerate(places)]
    try:
        fleet = run(copy, "-m", "swe_ai_fleet.cli.main", "--help")
        assert "Exit codes:" in fleet
        run(copy, "-c", IMPORT_ALL, str(copy))
        run(copy, "-c", OPEN_FLEET, str(tmp_path / "home"))
        run(copy, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "tests", "labs")
    finally:
        for place, moved in zip(places, away, strict=True):
            shutil.move(moved, place)


def run(copy: Path, *arguments: str) -> str:
    """What Python prints, with the copy's packages and none of this tree."""
    paths = {"PYTHONPATH": f"{copy / 'src'}:{copy}", "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(copy)}
    ran = subprocess.run(
        [sys.executable, *arguments], cwd=copy, env=paths, capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, (arguments[:3], ran.stdout[-3000:], ran.stderr[-3000:])
    return ran.stdout


def test_the_contract_of_imports_names_the_whole_core() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (contract,) = [one for one in contracts if one["name"] == "The core imports no extension"]
    modules = {one.name for one in pkgutil.iter_modules(swe_ai_fleet.__path__)} - {"extensions"}
    assert set(contract["source_modules"]) == {"services", *(f"swe_ai_fleet.{name}" for name in modules)}
    programs = {name for one in extensions().values() for name in one.programs}
    assert set(contract["forbidden_modules"]) >= {"swe_ai_fleet.extensions.*", *programs}
