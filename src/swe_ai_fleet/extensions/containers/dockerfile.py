"""Dockerfiles: parsed into instructions, checked, and rewritten, one line each.

The engine gets the rewritten file, never the original, so it cannot read it differently from this check.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from swe_ai_fleet.extensions.containers.ownership import LABEL_PREFIX
from swe_ai_fleet.extensions.containers.policy import checked_image
from swe_ai_fleet.tools.definition import ToolFailure, ToolRefusal

MAX_BYTES = 256 * 1024
MAX_INSTRUCTIONS = 500
SCRATCH = "scratch"

_KNOWN = frozenset(
    {"ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL", "MAINTAINER"}
    | {"ONBUILD", "RUN", "SHELL", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR"}
)
_DIRECTIVE = re.compile(r"#\s*escape\s*=", re.IGNORECASE)
_HEREDOC = re.compile(r"<<-?\s*[\"']?[A-Za-z_]")
_FLAG = re.compile(r"--(from|chown|chmod)=[A-Za-z0-9_.:/@-]+")
_STAGE = re.compile(r"[a-z][a-z0-9_.-]*")
_VARIABLE = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})")
_FETCHES = re.compile(r"[:$\\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One instruction.

    `image` is the canonical name of the image that it uses, `stage` the name that a FROM gives its stage.
    """

    word: str
    rest: str
    image: str = ""
    stage: str = ""

    def line(self, references: Mapping[str, str]) -> str:
        if not self.image:
            return f"{self.word} {self.rest}"
        return f"{self.word} {self.rest.replace(_PLACE, references[self.image])}"


_PLACE = "\0"
"""Stands for an image's reference; no Dockerfile has a NUL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dockerfile:
    """A checked Dockerfile."""

    instructions: tuple[Instruction, ...]

    @property
    def images(self) -> frozenset[str]:
        """The canonical names of the images that it builds on or copies from."""
        return frozenset(instruction.image for instruction in self.instructions if instruction.image)

    def until(self, target: str) -> Dockerfile:
        """The Dockerfile up to the end of a stage. Raises ToolFailure where no stage has that name."""
        starts = [index for index, instruction in enumerate(self.instructions) if instruction.word == "FROM"]
        for start, end in pairwise((*starts, len(self.instructions))):
            if self.instructions[start].stage == target.lower():
                return Dockerfile(instructions=self.instructions[:end])
        stages = ", ".join(self.instructions[start].stage for start in starts if self.instructions[start].stage)
        raise ToolFailure(f"no stage is named {target[:80]!r}; stages: {stages or 'none has a name'}")

    def text(self, references: Mapping[str, str], *, every: Mapping[str, str], last: Mapping[str, str]) -> str:
        """The Dockerfile for the engine.

        Every stage starts with the labels `every`, so that unfinished builds have them too; the last line sets the
        labels `last`, over any that the Dockerfile sets.
        """
        lines = ["# checked and written anew"]
        for instruction in self.instructions:
            lines.append(instruction.line(references))
            if instruction.word == "FROM":
                lines.append(_label_line(every))
        return "\n".join((*lines, _label_line(last))) + "\n"


def _label_line(labels: Mapping[str, str]) -> str:
    return "LABEL " + " ".join(f"{name}={_quoted(value)}" for name, value in labels.items())


def _quoted(value: str) -> str:
    plain = "".join(character if character.isprintable() else " " for character in value)
    return '"' + re.sub(r'(["$\\])', r"\\\1", plain) + '"'


def parse(text: str, build_args: Mapping[str, str]) -> Dockerfile:
    """Read and check a Dockerfile.

    Raises:
        ToolFailure: The text is no Dockerfile, or uses a feature that is not supported here.
        ToolRefusal: It asks for something that no build gets.
    """
    if "\0" in text:
        raise ToolFailure("the Dockerfile holds a NUL character")
    checker = _Checker(build_args)
    lines = _logical_lines(text)
    if len(lines) > MAX_INSTRUCTIONS:
        raise ToolFailure(f"the Dockerfile has more than {MAX_INSTRUCTIONS} instructions")
    instructions = tuple(checker.instruction(line) for line in lines)
    if not any(instruction.word == "FROM" for instruction in instructions):
        raise ToolFailure("the Dockerfile has no FROM")
    return Dockerfile(instructions=instructions)


def _logical_lines(text: str) -> list[str]:
    lines: list[str] = []
    pending = ""
    for line in text.lstrip("\ufeff").replace("\r\n", "\n").split("\n"):
        if line.lstrip().startswith("#"):
            if _DIRECTIVE.match(line.lstrip()):
                raise ToolFailure("'# escape=' is not supported here; continue lines with a backslash")
            continue
        if not line.strip():
            continue
        bare = line.rstrip()
        if bare.endswith("\\\\"):
            raise ToolFailure(f"a line ends with two backslashes, which builders read in different ways: {line[:80]!r}")
        if bare.endswith("\\"):
            pending += bare[:-1]
            continue
        lines.append((pending + line).strip())
        pending = ""
    if pending.strip():
        lines.append(pending.strip())
    if any(line.endswith("\\") for line in lines):
        raise ToolFailure("the Dockerfile's last instruction ends with a backslash")
    return lines


class _Checker:
    """Checks instruction by instruction; keeps the stages so far, and the arguments before the first of them."""

    def __init__(self, build_args: Mapping[str, str]) -> None:
        self._given = build_args
        self._arguments: dict[str, str] = {}
        self._stages: list[str] = []

    def instruction(self, line: str, *, trigger: bool = False) -> Instruction:
        first = line.split(None, 1)[0]
        word, rest = first.upper(), line[len(first) :].strip()
        if word not in _KNOWN:
            raise ToolFailure(f"{word[:40]!r} is not a Dockerfile instruction (here-documents are not supported)")
        if not rest:
            raise ToolFailure(f"{word} says nothing")
        if word in ("RUN", "COPY", "ADD") and _HEREDOC.search(rest):
            raise ToolFailure(f"{word} with a here-document is not supported: put the text into a file and COPY it")
        match word:
            case "FROM" | "ONBUILD" if trigger:
                raise ToolFailure(f"ONBUILD {word} is not allowed")
            case "FROM":
                return self._from(rest)
            case "ONBUILD":
                inner = self.instruction(rest, trigger=True)
                return Instruction(word="ONBUILD", rest=f"{inner.word} {inner.rest}")
            case "COPY" | "ADD":
                return self._copy(word, rest, trigger=trigger)
            case "RUN" if rest.startswith("--"):
                raise ToolRefusal(
                    f"RUN takes no options here ({rest.split()[0][:60]}): no mounts, networks, privileges"
                )
            case "LABEL" if LABEL_PREFIX in rest:
                raise ToolRefusal(f"labels that begin with {LABEL_PREFIX} are not yours to set")
            case "ARG" if not self._stages:
                name, equals, default = rest.partition("=")
                default = self._given.get(name, default.strip("\"'") if equals else "")
                self._arguments[name] = default
            case _:
                pass
        if not self._stages and word != "ARG":
            raise ToolFailure(f"{word} stands before the first FROM")
        return Instruction(word=word, rest=rest)

    def _from(self, rest: str) -> Instruction:
        match rest.split():
            case [image]:
                stage = ""
            case [image, as_, stage] if as_.upper() == "AS" and _STAGE.fullmatch(stage.lower()):
                stage = stage.lower()
            case _:
                raise ToolFailure(f"write FROM image or FROM image AS name, not FROM {rest[:80]!r}")
        image = _VARIABLE.sub(self._value, image)
        suffix = f" AS {stage}" if stage else ""
        is_stage = image.lower() in self._stages
        self._stages.append(stage)
        if image.lower() == SCRATCH or is_stage:
            return Instruction(word="FROM", rest=image.lower() + suffix, stage=stage)
        return Instruction(word="FROM", rest=_PLACE + suffix, image=checked_image(image), stage=stage)

    def _value(self, match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name not in self._arguments:
            raise ToolFailure(f"FROM uses ${name}, which no ARG before it declares")
        return self._arguments[name]

    def _copy(self, word: str, rest: str, *, trigger: bool) -> Instruction:
        flags: list[str] = []
        image = ""
        while rest.startswith("--"):
            flag, _, rest = rest.partition(" ")
            rest = rest.lstrip()
            if not _FLAG.fullmatch(flag):
                raise ToolFailure(f"{word} knows --from=, --chown= and --chmod= with plain values, not {flag[:60]!r}")
            if flag.startswith("--from="):
                if trigger or word == "ADD":
                    raise ToolFailure("--from is for COPY, outside of ONBUILD")
                source = flag.removeprefix("--from=")
                if not self._is_stage(source):
                    image, flag = checked_image(source), f"--from={_PLACE}"
            flags.append(flag)
        if word == "ADD" and _FETCHES.search(rest):
            raise ToolRefusal("ADD fetches nothing here and takes plain names: COPY files that lie in the context")
        if not trigger and not self._stages:
            raise ToolFailure(f"{word} stands before the first FROM")
        return Instruction(word=word, rest=" ".join((*flags, rest)), image=image)

    def _is_stage(self, name: str) -> bool:
        if name.isdecimal():
            if int(name) < len(self._stages) - 1:
                return True
            raise ToolFailure(f"--from={name[:20]}: there is no such stage before this one")
        return name.lower() in self._stages
