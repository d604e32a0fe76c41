"""What documents have a reader do with kubectl: directories build, files are there, kubectl knows the options."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
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


@pytest.mark.parametrize("line", list(_lines()))
def test_kubectl_is_asked_for_what_is_there(line: str) -> None:
    words = shlex.split(line)
    kubectl = binary("kubectl")
    command = words[3] if words[1] == "-n" else words[1]
    told = subprocess.run([kubectl, command, "--help"], check=True, capture_output=True, text=True).stdout
    inherited = subprocess.run([kubectl, "options"], check=True, capture_output=True, text=True).stdout
    for option, given in zip(words, [*words[1:], ""], strict=True):
        if option in ("-k", "-f") and not given.startswith(_MADE):
            assert (ROOT / given).exists(), given
        if option == "-k" and not given.startswith(_MADE):
            subprocess.run([kubectl, "kustomize", ROOT / given], check=True, capture_output=True)
        name = option.partition("=")[0]
        if name.startswith("--") and command != "create":
            assert f"{name}=" in told + inherited, option


def test_a_site_with_a_model_of_its_own_calls_it_and_is_let_out_to_it() -> None:
    built = subprocess.run([binary("kubectl"), "kustomize", ROOT / "examples/site"], check=True, capture_output=True)
    objects = [one for one in yaml.safe_load_all(built.stdout) if one]
    ways = [one for one in objects if one["metadata"]["name"] == "to-own-model"]
    assert {one["metadata"]["namespace"] for one in ways} == {"fleet", "fleet-agents"}
    (address,) = {one["spec"]["egress"][0]["to"][0]["ipBlock"]["cidr"].removesuffix("/32") for one in ways}
    urls = set(re.findall(r"http://[^\s'\"]+/v1", built.stdout.decode()))
    assert urls == {f"http://{address}:8000/v1"}
