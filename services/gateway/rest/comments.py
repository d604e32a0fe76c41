"""What the contract's own comments say of its messages, fields and methods: generated descriptors have lost them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

FILE = "comments.json"
# Field numbers of google/protobuf/descriptor.proto, which paths of source locations are made of: the list's own
# number, the descriptor's member, and where that member's own lists are.
_MESSAGE = ((2, "field", ()), (8, "oneof_decl", ()))
_ENUM = ((2, "value", ()),)
_TREE = (
    (4, "message_type", (*_MESSAGE, (3, "nested_type", _MESSAGE), (4, "enum_type", _ENUM))),
    (5, "enum_type", _ENUM),
    (6, "service", ((2, "method", ()),)),
)


def comments_of(files: FileDescriptorSet) -> dict[str, str]:
    """The comment of everything that has one, by its full name.

    Args:
        files: As protoc writes them with `--include_source_info`.
    """
    found: dict[str, str] = {}
    for file in files.file:
        names = dict(_names(file, file.package, _TREE, ()))
        for location in file.source_code_info.location:
            name, text = names.get(tuple(location.path)), _text(location.leading_comments)
            if name and text:
                found[name] = text
    return dict(sorted(found.items()))


def comments_text(files: FileDescriptorSet) -> str:
    """The file that is kept beside this module."""
    return json.dumps(comments_of(files), indent=0, ensure_ascii=False) + "\n"


@cache
def kept_comments() -> Mapping[str, str]:
    """The comments as they were when the file was generated."""
    return json.loads(files("services.gateway.rest").joinpath(FILE).read_text(encoding="utf-8"))


def _names(
    holder: FileDescriptorProto | Any, prefix: str, tree: Sequence[Any], path: tuple[int, ...]
) -> Iterator[tuple[tuple[int, ...], str]]:
    for number, member, inner in tree:
        for place, one in enumerate(getattr(holder, member)):
            name, here = f"{prefix}.{one.name}", (*path, number, place)
            yield here, name
            yield from _names(one, name, inner, here)


def _text(comment: str) -> str:
    """The lines of a comment as paragraphs; a rule between parts of a file is none."""
    paragraphs = [" ".join(part.split()) for part in comment.strip().split("\n\n")]
    return "\n\n".join(part for part in paragraphs if part.strip("-"))
