"""Generate what documents say about code: settings, commands, tools, RPCs, HTTP, and what is published on NATS."""

from __future__ import annotations

import argparse
import importlib.resources
import inspect
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from api_page import api_page
from command_pages import command_reference, manual_page
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from grpc_tools import protoc
from pydantic import TypeAdapter
from pydantic_settings import BaseSettings

from fleet.agent.v1 import agent_pb2
from services.gateway.rest.openapi import document_text
from services.gateway.upstream import FILES
from swe_ai_fleet.domain.event import Event
from swe_ai_fleet.domain.task import Role
from swe_ai_fleet.extension_registry import load_parts
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.tools.catalogue import operations, shown_first

ROOT = Path(__file__).resolve().parent.parent
CONTRACT = (*FILES, agent_pb2.DESCRIPTOR)


def configuration() -> str:
    lines = [
        "# Configuration",
        "",
        "Generated from `swe_ai_fleet.settings`. Each setting is an environment variable or, in lower case without the",
        "prefix, a key of `fleet.toml` in `FLEET_HOME`, or of the file that `fleet --config FILE` or `FLEET_CONFIG`",
        "names; the environment wins. A file in the working directory is not read: a repository may have put it there.",
        "Those marked *secret* may be named by a file: `FLEET_<NAME>_FILE`, or `<name>_file`.",
        "",
        *_settings_table(Settings, "FLEET_"),
    ]
    for kind in load_parts("settings"):
        prefix = kind.model_config["env_prefix"]
        lines += ["", f"## `{prefix}…`", inspect.getdoc(kind) or "", "", *_settings_table(kind, prefix)]
    return "\n".join(lines) + "\n"


def _settings_table(kind: type[BaseSettings], prefix: str) -> list[str]:
    lines = ["| variable | default | meaning |", "| --- | --- | --- |"]
    for name, field in kind.model_fields.items():
        choices = getattr(field.validation_alias, "choices", [])
        others = [str(choice) for choice in choices if str(choice).isupper() and choice != f"FLEET_{name.upper()}"]
        fallback = f" Fall-back: `{'`, `'.join(others)}`." if others else ""
        default = "" if field.default == "" or field.default_factory else f"`{field.default}`"
        default = "`~/.local/state/swe-ai-fleet`" if name == "home" else default
        secret = "" if field.repr else " *Secret.*"
        lines.append(f"| `{prefix}{name.upper()}` | {default} | {field.description}{fallback}{secret} |")
    return lines


def tool_catalogue() -> str:
    lines = [
        "# Tool catalogue",
        "",
        "Generated from `swe_ai_fleet.tools.catalogue`. [tools.md](tools.md) says who gets which of them, and when.",
        "*Shown to* are the roles whose models see the schema from the start; everybody can call what policy permits.",
        "",
        "| operation | what it does | shown to | reads only | risk | network | runs commands | seconds |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, definition in operations().items():
        spec = definition.spec
        said = spec.description.partition("\n")[0].replace("|", "\\|")
        limit = "its command's" if spec.executes else f"{spec.time_limit_seconds:g}"
        traits = ["yes" if trait else "" for trait in (spec.read_only, spec.network, spec.executes)]
        roles = [str(role) for role in Role if name in shown_first(role)]
        shown = "all" if len(roles) == len(Role) else ", ".join(roles)
        lines.append(
            f"| `{name}` | {said} | {shown} | {traits[0]} | {spec.risk} | {traits[1]} | {traits[2]} | {limit} |"
        )
    return "\n".join(lines) + "\n"


def asyncapi() -> str:
    """AsyncAPI 3.0 as JSON, which is YAML too."""
    schema = TypeAdapter(Event).json_schema(ref_template="#/components/schemas/{model}")
    definitions = schema.pop("$defs")
    definitions["Event"] = schema
    definitions["Result"] = json.loads((ROOT / "docs/schemas/result.json").read_text())
    token = {"description": "The id, percent-encoded, with `%2E` for a dot: the task `v1.2` has the token `v1%2E2`."}
    document = {
        "asyncapi": "3.0.0",
        "info": {
            "title": "SWE AI Fleet on NATS",
            "version": "1",
            "license": {"name": "Apache-2.0"},
            "description": "Streams of JetStream: AGENT_EVENTS (events), AGENT_RESULTS (both results); blobs are in "
            "the object store agent-blobs. Whoever may hear a subject may subscribe to it without a stream, too.",
        },
        "servers": {
            "embedded": {
                "host": "127.0.0.1:4222",
                "protocol": "nats",
                "description": "As `nats_url` in `<home>/fleet.json`; the token is `nats_token` there. With accounts "
                "(docs/nats-accounts.md) each user has an nkey instead, and a tenant's user no JetStream.",
            }
        },
        "channels": {
            "events": {
                "address": "agent.events.{tenant}.{execution_id}.{agent_id}",
                "description": "One event of an execution; the agent id `_` is the execution itself, `~` what callers "
                "tell it. An event over 256 KiB carries `body_ref`, a reference to an object, instead of `body`.",
                "parameters": {"tenant": token, "execution_id": token, "agent_id": token},
                "messages": {"event": {"payload": {"$ref": "#/components/schemas/Event"}}},
            },
            "executionResult": {
                "address": "agent.results.{task_id}",
                "description": "The final result of an execution, once; or of a VLLMAgentJob that runs alone. "
                "Of other tenants than `default`: `agent.results._{tenant}.{task_id}`, "
                "which a tenant's NATS account sees as the short one.",
                "parameters": {"task_id": token},
                "messages": {"result": {"payload": {"$ref": "#/components/schemas/Result"}}},
            },
            "agentResult": {
                "address": "agent.results.{task_id}.{agent_id}",
                "description": "The result of one agent's run inside a deliberation. Of other tenants than `default`: "
                "`agent.results._{tenant}.{task_id}.{agent_id}`.",
                "parameters": {"task_id": token, "agent_id": token},
                "messages": {"result": {"payload": {"$ref": "#/components/schemas/Result"}}},
            },
            "tasks": {
                "address": "agent.cmd.execute",
                "description": "A task for whichever orchestrator has room: a SubmitTaskRequest in protobuf's JSON. "
                "Also `agent.cmd.execute.{tenant}` and `agent.cmd.execute.{tenant}.{priority}`.",
                "messages": {"task": {"payload": _proto_json("SubmitTaskRequest")}},
            },
            "plans": {
                "address": "agent.plans",
                "description": "Something that happened to a plan elsewhere: a ProcessPlanningEventRequest in "
                "protobuf's JSON. Also `agent.plans.{tenant}`.",
                "messages": {"plan": {"payload": _proto_json("ProcessPlanningEventRequest")}},
            },
            "deadLetters": {
                "address": "agent.dlq.{consumer}",
                "description": "A message that was given up, as it was.",
                "parameters": {"consumer": {}},
                "messages": {"deadLetter": {"headers": _dead_letter_headers(), "payload": {}}},
            },
        },
        "components": {"schemas": dict(sorted(definitions.items()))},
    }
    return json.dumps(document, indent=2) + "\n"


def _proto_json(message: str) -> dict[str, str]:
    return {"type": "object", "description": f"fleet.orchestrator.v1.{message}, see proto/."}


def _dead_letter_headers() -> dict[str, object]:
    names = ("Fleet-Reason", "Fleet-Subject", "Fleet-Stream", "Fleet-Sequence", "Fleet-Deliveries")
    properties = {name: {"type": "string"} for name in (*names, "Fleet-Omitted-Bytes")}
    return {"type": "object", "properties": properties, "required": list(names)}


def described(contract: Sequence[FileDescriptor]) -> FileDescriptorSet:
    """Files of the contract with their comments."""
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory, "contract.bin")
        names = sorted(file.name for file in contract)
        well_known = importlib.resources.files("grpc_tools") / "_proto"
        arguments = ["-I", str(ROOT / "proto"), "-I", str(well_known), "--include_source_info"]
        if protoc.main(["protoc", *arguments, f"--descriptor_set_out={out}", *names]) != 0:
            raise RuntimeError("protoc failed")
        return FileDescriptorSet.FromString(out.read_bytes())


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
    comments: dict[str, str] = {}
    for file in files.file:
        names = dict(_names(file, file.package, _TREE, ()))
        for location in file.source_code_info.location:
            name, text = names.get(tuple(location.path)), _text(location.leading_comments)
            if name and text:
                comments[name] = text
    return dict(sorted(comments.items()))


def comments_text(files: FileDescriptorSet) -> str:
    """The file that is kept beside this module."""
    return json.dumps(comments_of(files), indent=0, ensure_ascii=False) + "\n"


def _names(
    holder: FileDescriptorProto | Any, prefix: str, tree: Sequence[Any], path: tuple[int, ...]
) -> Iterator[tuple[tuple[int, ...], str]]:
    for number, member, inner in tree:
        for place, element in enumerate(getattr(holder, member)):
            name, here = f"{prefix}.{element.name}", (*path, number, place)
            yield here, name
            yield from _names(element, name, inner, here)


def _text(comment: str) -> str:
    """The lines of a comment as paragraphs; a rule between parts of a file is none."""
    paragraphs = [" ".join(part.split()) for part in comment.strip().split("\n\n")]
    return "\n\n".join(part for part in paragraphs if part.strip("-"))


GENERATED = {
    "docs/configuration.md": configuration,
    "docs/tool-catalogue.md": tool_catalogue,
    "docs/asyncapi.yaml": asyncapi,
    "docs/man/fleet.1": manual_page,
    "docs/cli.md": command_reference,
    "docs/api.md": lambda: api_page(CONTRACT, comments_of(described(CONTRACT))),
    "services/gateway/rest/comments.json": lambda: comments_text(described(FILES)),
    "docs/openapi.json": lambda: document_text(comments_of(described(FILES))),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail where a file is out of date instead of writing it")
    check = parser.parse_args().check
    stale = [name for name, make in GENERATED.items() if not _current(ROOT / name, make(), write=not check)]
    if stale and check:
        print(f"out of date: {', '.join(stale)}; run scripts/generate_docs.py", file=sys.stderr)
    return int(bool(stale) and check)


def _current(path: Path, text: str, *, write: bool) -> bool:
    if path.exists() and path.read_text() == text:
        return True
    if write:
        path.write_text(text)
    return False


if __name__ == "__main__":
    sys.exit(main())
