"""The proto keeps the names, numbers and types that clients already rely on."""

from pathlib import Path

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

from fleet.orchestrator.v1 import orchestrator_pb2 as pb

ROOT = Path(__file__).resolve().parents[2]
FILE = FileDescriptorProto.FromString(pb.DESCRIPTOR.serialized_pb)
MESSAGES = {message.name: message for message in FILE.message_type}
(SERVICE,) = FILE.service
FIRST_NEW_NUMBER = 20

PROMISED, RPCS = (ROOT / "tests/contract/promised.txt").read_text().split("# Every RPC", 1)
"""Messages with their promised fields; below, every RPC."""


def kept_messages() -> dict[str, dict[str, tuple[int, str]]]:
    messages: dict[str, dict[str, tuple[int, str]]] = {}
    fields: dict[str, tuple[int, str]] = {}
    for line in PROMISED.strip().splitlines()[1:]:
        if line.startswith(" "):
            name, number, kind = line.split(maxsplit=2)
            fields[name] = (int(number), kind)
        else:
            fields = messages.setdefault(line, {})
    return messages


def local_name(type_name: str) -> str:
    return type_name.rpartition(".")[2]


def base_type(field: FieldDescriptorProto) -> str:
    scalar = FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    return local_name(field.type_name) or scalar


def fields_of(message: DescriptorProto) -> dict[str, tuple[int, str]]:
    """Number and type of each field, as the table writes them."""
    maps = {entry.name: entry.field for entry in message.nested_type if entry.options.map_entry}
    found: dict[str, tuple[int, str]] = {}
    for field in message.field:
        kind = base_type(field)
        if kind in maps:
            kind = " ".join(["map", *map(base_type, maps[kind])])
        elif field.label == FieldDescriptorProto.LABEL_REPEATED:
            kind = f"repeated {kind}"
        elif field.proto3_optional:
            kind = f"optional {kind}"
        found[field.name] = (field.number, kind)
    return found


def test_kept_messages_keep_names_numbers_and_types() -> None:
    assert len(kept_messages()) == 41
    for name, kept in kept_messages().items():
        found = fields_of(MESSAGES[name])
        assert {field: found.get(field) for field in kept} == kept, name
        added = {field: number for field, (number, _) in found.items() if field not in kept}
        assert all(number >= FIRST_NEW_NUMBER for number in added.values()), (name, added)


def test_statuses_keep_their_numbers() -> None:
    told = [f"{name.removeprefix('DELIBERATION_STATUS_')}={number}" for name, number in pb.DeliberationStatus.items()]
    first = (
        "UNKNOWN=0 PENDING=1 IN_PROGRESS=2 COMPLETED=3 FAILED=4 TIMEOUT=5 CANCELLED=6 AWAITING_APPROVAL=7 REJECTED=8"
    )
    assert told[:10] == [*first.split(), "NO_WINNER=20"]


def test_every_rpc_has_its_kind_request_and_reply() -> None:
    kinds = {(False, False): "unary", (False, True): "server", (True, False): "client", (True, True): "both"}
    found = [
        (
            rpc.name,
            kinds[rpc.client_streaming, rpc.server_streaming],
            local_name(rpc.input_type),
            local_name(rpc.output_type),
        )
        for rpc in SERVICE.method
    ]
    assert found == [tuple(line.split()) for line in RPCS.strip().splitlines()[1:]]


def test_a_request_written_by_an_old_client_still_loads() -> None:
    wire = (
        b"\x0a\x02t1\x12\x03fix\x1a\x09DEVELOPER"
        b"\x22\x16\x0a\x01r\x12\x01a\x12\x01b\x1a\x06\x0a\x01k\x12\x01v\x20\x05\x28\xac\x02\x28\x02\x30\x04"
    )
    request = pb.DeliberateRequest.FromString(wire)
    assert (request.task_id, request.task_description, request.role) == ("t1", "fix", "DEVELOPER")
    assert (request.rounds, request.num_agents) == (2, 4)
    constraints = request.constraints
    assert (constraints.rubric, list(constraints.requirements)) == ("r", ["a", "b"])
    assert dict(constraints.metadata) == {"k": "v"}
    assert (constraints.max_iterations, constraints.timeout_seconds) == (5, 300)
    assert not request.HasField("enable_tools") and not request.HasField("repo")
    assert request.SerializeToString(deterministic=True) == wire
