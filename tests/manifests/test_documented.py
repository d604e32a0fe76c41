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
from tests.manifests.objects import built

ROOT = Path(__file__).parents[2]
# What `fleet init --kubernetes` writes; tests/unit/test_installation.py looks at it.
_MADE = ("installation/", "DIR", "SITE")
_KINDS = {"deployment": "Deployment", "statefulset": "StatefulSet", "service": "Service", "job": "Job"}


def _lines() -> Iterator[str]:
    for document in sorted(ROOT.glob("docs/*.md")):
        text = document.read_text()
        yield from re.findall(r"`(kubectl [^`\n]+)`", text)
        for block in re.findall(r"```(?:sh|console)\n(.*?)```", text, re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                if (words := line.strip().removeprefix("$ ")).startswith("kubectl "):
                    yield words.removesuffix(" &")


@cache
def _said(*words: str) -> str:
    """What kubectl says to some words."""
    return subprocess.run([binary("kubectl"), *words], check=True, capture_output=True, text=True).stdout


@cache
def _objects() -> frozenset[tuple[str, str, str]]:
    objects = [one for name in ("tenants", "user namespaces") for one in built(name)]
    return frozenset((one["metadata"].get("namespace", ""), one["kind"], one["metadata"]["name"]) for one in objects)


@pytest.mark.parametrize("line", sorted({*_lines()}))
def test_kubectl_is_asked_for_what_is_there(line: str) -> None:
    words = shlex.split(line)
    command, *others = words[3:] if words[1] == "-n" else words[1:]
    known = _said(command, *others[: command == "rollout"], "--help") + _said("options")
    for option, given in zip(words, [*words[1:], ""], strict=True):
        if option in ("-k", "-f") and given and not given.startswith(_MADE):
            assert (ROOT / given).exists(), given
        if option == "-k" and given and not given.startswith(_MADE):
            _said("kustomize", str(ROOT / given))
        kind, _, named = option.partition("/")
        if kind in _KINDS and named:
            assert (words[2], _KINDS[kind], named) in _objects(), option
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
