"""`docs/api.md`: the gRPC services, made from the contract and its comments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from google.protobuf.descriptor import FileDescriptor, MethodDescriptor, ServiceDescriptor

from services.gateway.rest.table import ELSEWHERE, OPERATIONS
from services.roles import ROLES

_INTRODUCTION = """# The API

Generated from `proto/`. The fleet serves these services over gRPC, with reflection and health checks; what the
gateway serves of them over HTTP stands beside each call ([http.md](http.md), `docs/openapi.json` in full). Messages
and their fields are commented in the linked files, which are also what to generate clients from;
[examples](../examples/README.md) has one in Python and one in Node. What is published on NATS is in
`docs/asyncapi.yaml`; in subjects ids are percent-encoded, with `%2E` for a dot, so that the result of the
task `v1.2` comes on `agent.results.v1%2E2`.

A call carries `authorization: Bearer TOKEN`; *role* is the least that its principal needs ([access.md](access.md)).
A fault is a gRPC status with rich details: which field, and the way out. A call that is cancelled or out of time ends
the wait and not the work. Health and reflection are open. From a shell `buf` and
`grpcurl` call it, which learn the messages from the server:

```sh
FLEET_TOKEN=$(cat ~/.local/state/swe-ai-fleet/token)
buf curl --http2-prior-knowledge --protocol grpc --reflect --data '{}' http://127.0.0.1:50055/grpc.health.v1.Health/List
buf curl --http2-prior-knowledge --protocol grpc --reflect --header "authorization: Bearer $FLEET_TOKEN" \\
  --data '{"includeStats": true}' http://127.0.0.1:50055/fleet.orchestrator.v1.OrchestratorService/GetStatus
grpcurl -plaintext 127.0.0.1:50055 list
grpcurl -plaintext 127.0.0.1:50055 grpc.health.v1.Health/Check
grpcurl -plaintext -H "authorization: Bearer $FLEET_TOKEN" -d '{"include_stats": true}' \\
  127.0.0.1:50055 fleet.orchestrator.v1.OrchestratorService/GetStatus
```

`AgentService` is the other way round: agents of yours serve it, and the fleet calls them
([councils.md](councils.md))."""


def api_page(files: Sequence[FileDescriptor], comments: Mapping[str, str]) -> str:
    """The page.

    Args:
        files: The contract's files, in the order of the page.
        comments: By full name, as `services.gateway.rest.openapi` reads them.
    """
    paths = {rpc: f"`{row.verb} {row.path}`" for row in OPERATIONS for rpc in (row.rpc, row.events) if rpc}
    paths |= dict.fromkeys(ELSEWHERE, "[watching.md](watching.md)")
    lines = [_INTRODUCTION]
    for file in files:
        for service in file.services_by_name.values():
            lines += _service(service, comments, paths)
    return "\n".join(lines) + "\n"


def _service(service: ServiceDescriptor, comments: Mapping[str, str], paths: Mapping[str, str]) -> list[str]:
    contract = f"[{service.file.name}](../proto/{service.file.name})"
    return [
        "",
        f"## {service.full_name}",
        "",
        f"{_cell(comments.get(service.full_name, ''))} {contract}",
        "",
        "| call | takes → answers | role | over HTTP | what it does |",
        "| --- | --- | --- | --- | --- |",
        *(_row(rpc, comments, paths) for rpc in service.methods),
    ]


def _row(rpc: MethodDescriptor, comments: Mapping[str, str], paths: Mapping[str, str]) -> str:
    takes = f"{'stream ' if rpc.client_streaming else ''}{rpc.input_type.name}"
    answers = f"{'stream ' if rpc.server_streaming else ''}{rpc.output_type.name}"
    role, path = ROLES.get(rpc.full_name, ""), paths.get(rpc.full_name, "")
    return f"| `{rpc.name}` | `{takes}` → `{answers}` | {role} | {path} | {_cell(comments.get(rpc.full_name, ''))} |"


def _cell(words: str) -> str:
    return " ".join(words.split()).replace("|", "\\|")
