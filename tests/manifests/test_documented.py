"""What documents have a reader do with kubectl: directories build, files are there, kubectl knows the options."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

from tests.manifests.kubectl import binary

ROOT = Path(__file__).parents[2]
# What `fleet init --kubernetes` writes; tests/unit/test_cli_init.py looks at it.
_MADE = "installation/"


def _lines() -> Iterator[str]:
    for document in sorted(ROOT.glob("docs/*.md")):
        for block in re.findall(r"```(?:sh|console)\n(.*?)```", document.read_text(), re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                if (words := line.strip().removeprefix("$ ")).startswith("kubectl "):
                    yield words.removesuffix(" &")


@cache
def _said(*words: str) -> str:
    """What kubectl says to some words."""
    return subprocess.run([binary("kubectl"), *words], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("line", list(_lines()))
def test_kubectl_is_asked_for_what_is_there(line: str) -> None:
    words = shlex.split(line)
    command = words[3] if words[1] == "-n" else words[1]
    known = _said(command, "--help") + _said("options")
    for option, given in zip(words, [*words[1:], ""], strict=True):
        if option in ("-k", "-f") and not given.startswith(_MADE):
            assert (ROOT / given).exists(), given
        if option == "-k" and not given.startswith(_MADE):
            _said("kustomize", str(ROOT / given))
        name = option.partition("=")[0]
        if name.startswith("--") and command != "create":
            assert f"{name}=" in known, option


def test_a_site_with_a_model_of_its_own_calls_it_and_is_let_out_to_it() -> None:
    built = _said("kustomize", str(ROOT / "examples/site"))
    objects = [one for one in yaml.safe_load_all(built) if one]
    ways = [one for one in objects if one["metadata"]["name"] == "to-own-model"]
    assert {one["metadata"]["namespace"] for one in ways} == {"fleet", "fleet-agents"}
    (address,) = {one["spec"]["egress"][0]["to"][0]["ipBlock"]["cidr"].removesuffix("/32") for one in ways}
    urls = set(re.findall(r"http://[^\s'\"]+/v1", built))
    assert urls == {f"http://{address}:8000/v1"}
