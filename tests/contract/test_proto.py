"""The proto keeps the names, numbers and types that clients already rely on."""

import importlib.util
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import pytest
from google.protobuf import struct_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

from fleet.orchestrator.v1 import orchestrator_pb2 as pb

ROOT = Path(__file__).resolve().parents[2]
GENERATOR = ROOT / "scripts" / "generate_proto.py"
FILE = FileDescriptorProto.FromString(pb.DESCRIPTOR.serialized_pb)
MESSAGES = {message.name: message for message in FILE.message_type}
(SERVICE,) = FILE.service
FIRST_NEW_NUMBER = 20

# Message, then `name number type` of each field that is promised.
KEPT_FIELDS = """
DeliberateRequest
  task_id 1 string
  task_description 2 string
  role 3 string
  constraints 4 TaskConstraints
  rounds 5 int32
  num_agents 6 int32
  repo 20 RepoRef
  context 21 string
  model_profile 22 string
  approval 23 ApprovalPolicy
  enable_tools 24 optional bool
  planning_mode 25 PlanningMode
  environment 26 EnvironmentSpec
  memory 27 MemoryOptions
  tools 28 repeated string
  attempt 29 int32
DeliberateResponse
  task_id 1 string
  results 2 repeated DeliberationResult
  winner_id 3 string
  duration_ms 4 int64
  metadata 5 map string string
  execution_id 20 string
  status 21 DeliberationStatus
  audit_head 22 string
  usage 23 Usage
OrchestrateRequest
  task_id 1 string
  task_description 2 string
  role 3 string
  constraints 4 TaskConstraints
  options 5 OrchestratorOptions
  case_id 6 string
  story_id 7 string
  plan_id 8 string
  context_options 9 ContextOptions
  repo 20 RepoRef
  context 21 string
  model_profile 22 string
  approval 23 ApprovalPolicy
  delivery 24 Delivery
  enable_tools 25 optional bool
  planning_mode 26 PlanningMode
  environment 27 EnvironmentSpec
  memory 28 MemoryOptions
  tools 29 repeated string
  attempt 30 int32
OrchestrateResponse
  winner 1 DeliberationResult
  candidates 2 repeated DeliberationResult
  execution_id 3 string
  duration_ms 4 int64
  metadata 5 map string string
  status 20 DeliberationStatus
  commit_sha 21 string
  branch 22 string
  subtasks 23 repeated SubtaskResult
  audit_head 24 string
  usage 25 Usage
TaskConstraints
  rubric 1 string
  requirements 2 repeated string
  metadata 3 map string string
  max_iterations 4 int32
  timeout_seconds 5 int32
  max_tool_calls 20 int32
  max_tokens 21 int64
  allowed_tools 22 repeated string
  denied_tools 23 repeated string
  allowed_paths 24 repeated string
  checks 25 repeated CheckSpec
  network 26 NetworkPolicy
  abort_on_error 27 bool
  mcp_servers 28 repeated McpServer
McpServer
  name 1 string
  command 2 repeated string
  url 3 string
  variables 4 map string string
  tools 5 repeated string
  allowed_hosts 6 repeated string
OrchestratorOptions
  enable_peer_review 1 bool
  deliberation_rounds 2 int32
  enable_architect_selection 3 bool
  custom_params 4 map string string
  num_agents 20 int32
  derive_subtasks 21 bool
  architect_top_k 22 int32
DeliberationResult
  proposal 1 Proposal
  checks 2 CheckSuite
  score 3 double
  rank 4 int32
  candidate_id 20 string
  patch 21 Patch
  artifacts 22 Artifacts
  operations 23 repeated ToolOperation
  critiques 24 repeated Critique
  stop_reason 25 StopReason
  usage 26 Usage
  audit_head 27 string
  duplicates 28 repeated string
Proposal
  author_id 1 string
  author_role 2 string
  content 3 string
  created_at_ms 4 int64
  revisions 5 repeated string
CheckSuite
  policy 1 PolicyResult
  lint 2 LintResult
  dryrun 3 DryRunResult
  additional_checks 4 repeated CheckResult
  all_passed 5 bool
  duration_ms 20 int64
  skipped_reason 21 string
PolicyResult
  passed 1 bool
  violations 2 repeated string
  message 3 string
  duration_ms 20 int64
  skipped_reason 21 string
LintResult
  passed 1 bool
  error_count 2 int32
  warning_count 3 int32
  errors 4 repeated string
  duration_ms 20 int64
  skipped_reason 21 string
DryRunResult
  passed 1 bool
  output 2 string
  exit_code 3 int32
  message 4 string
  duration_ms 20 int64
  skipped_reason 21 string
CheckResult
  check_type 1 string
  passed 2 bool
  score 3 double
  message 4 string
  details 5 map string string
  duration_ms 20 int64
  skipped_reason 21 string
GetDeliberationResultRequest
  task_id 1 string
GetDeliberationResultResponse
  task_id 1 string
  status 2 DeliberationStatus
  results 3 repeated DeliberationResult
  winner_id 4 string
  duration_ms 5 int64
  error_message 6 string
  metadata 7 map string string
DeliberationUpdate
  status 1 DeliberationStatus
  progress_percent 2 int32
  current_step 3 string
  current_agent 4 string
  partial_result 5 DeliberationResult
  sequence 20 uint64
  event 21 ExecutionEvent
  final 22 DeliberateResponse
GetStatusRequest
  include_stats 1 bool
GetStatusResponse
  status 1 string
  uptime_seconds 2 int64
  stats 3 OrchestratorStats
  components 20 repeated ComponentStatus
OrchestratorStats
  total_deliberations 1 int64
  total_orchestrations 2 int64
  avg_deliberation_time_ms 3 double
  active_councils 4 int32
  role_counts 5 map string int64
RegisterAgentRequest
  agent_id 1 string
  role 2 string
  capabilities 3 AgentCapabilities
  endpoint 4 string
  metadata 5 map string string
RegisterAgentResponse
  success 1 bool
  message 2 string
  council_id 3 string
AgentCapabilities
  supported_tasks 1 repeated string
  model_profile 2 string
  max_concurrent_tasks 3 int32
  languages 4 repeated string
UnregisterAgentRequest
  agent_id 1 string
  role 2 string
UnregisterAgentResponse
  success 1 bool
  message 2 string
CreateCouncilRequest
  role 1 string
  num_agents 2 int32
  config 3 CouncilConfig
CreateCouncilResponse
  council_id 1 string
  agents_created 2 int32
  agent_ids 3 repeated string
CouncilConfig
  deliberation_rounds 1 int32
  enable_peer_review 2 bool
  model_profile 3 string
  custom_params 4 map string string
  agent_type 5 string
ListCouncilsRequest
  role_filter 1 string
  include_agents 2 bool
ListCouncilsResponse
  councils 1 repeated CouncilInfo
CouncilInfo
  council_id 1 string
  role 2 string
  num_agents 3 int32
  agents 4 repeated AgentInfo
  status 5 string
  model 6 string
DeleteCouncilRequest
  role 1 string
DeleteCouncilResponse
  success 1 bool
  message 2 string
  agents_removed 3 int32
DeriveSubtasksRequest
  case_id 1 string
  plan_id 2 string
  roles 3 repeated string
  strategy 4 string
  task_description 20 string
  repo 21 RepoRef
DeriveSubtasksResponse
  tasks 1 repeated AtomicTask
  derivation_id 2 string
  total_tasks 3 int32
AtomicTask
  task_id 1 string
  role 2 string
  description 3 string
  dependencies 4 repeated string
  constraints 5 TaskConstraints
  case_id 6 string
  plan_id 7 string
  priority 8 int32
GetTaskContextRequest
  task_id 1 string
  case_id 2 string
  story_id 3 string
  role 4 string
  phase 5 string
  options 6 GetContextOptions
  repo 20 RepoRef
  token_budget 21 int32
GetTaskContextResponse
  context_text 1 string
  blocks 2 ContextBlocks
  token_count 3 int32
  version_hash 4 string
ContextBlocks
  system 1 string
  context 2 string
  tools 3 string
  history 4 string
"""

# RPC, kind, request, reply.
RPCS = """
Deliberate unary DeliberateRequest DeliberateResponse
StreamDeliberation server DeliberateRequest DeliberationUpdate
Orchestrate unary OrchestrateRequest OrchestrateResponse
StreamOrchestration server OrchestrateRequest OrchestrationUpdate
SubmitTask unary SubmitTaskRequest SubmitTaskResponse
GetDeliberationResult unary GetDeliberationResultRequest GetDeliberationResultResponse
GetArtifact server GetArtifactRequest GetArtifactResponse
UploadRepository client UploadRepositoryRequest RepoRef
GetExecution unary GetExecutionRequest GetExecutionResponse
ListExecutions unary ListExecutionsRequest ListExecutionsResponse
StreamExecution server StreamExecutionRequest ExecutionEvent
CancelExecution unary CancelExecutionRequest CancelExecutionResponse
ResolveApproval unary ResolveApprovalRequest ResolveApprovalResponse
JudgePatches unary JudgePatchesRequest JudgePatchesResponse
DeliverCandidate unary DeliverCandidateRequest DeliverCandidateResponse
RegisterAgent unary RegisterAgentRequest RegisterAgentResponse
UnregisterAgent unary UnregisterAgentRequest UnregisterAgentResponse
CreateCouncil unary CreateCouncilRequest CreateCouncilResponse
ListCouncils unary ListCouncilsRequest ListCouncilsResponse
DeleteCouncil unary DeleteCouncilRequest DeleteCouncilResponse
ProcessPlanningEvent unary ProcessPlanningEventRequest ProcessPlanningEventResponse
DeriveSubtasks unary DeriveSubtasksRequest DeriveSubtasksResponse
GetTaskContext unary GetTaskContextRequest GetTaskContextResponse
GetStatus unary GetStatusRequest GetStatusResponse
GetMetrics unary GetMetricsRequest GetMetricsResponse
"""

# buf.yaml excepts the file from the naming rules of requests and replies; these alone may use that.
UNUSUAL_NAMES = {"StreamDeliberation", "StreamOrchestration", "StreamExecution", "UploadRepository"}

STATUSES = {
    "UNKNOWN": 0,
    "PENDING": 1,
    "IN_PROGRESS": 2,
    "COMPLETED": 3,
    "FAILED": 4,
    "TIMEOUT": 5,
    "CANCELLED": 6,
    "AWAITING_APPROVAL": 7,
    "REJECTED": 8,
    "NO_WINNER": 20,
}

NAMED_FIELDS = {
    "ToolOperation": "tool operation params success output error exit_code duration_ms started_at step audit_seq",
    "EnvironmentSpec": "setup_commands variables path_directories container_image",
    "RepoRef": "url path ref commit subdirectory credential_ref",
}


def kept_messages() -> dict[str, dict[str, tuple[int, str]]]:
    messages: dict[str, dict[str, tuple[int, str]]] = {}
    fields: dict[str, tuple[int, str]] = {}
    for line in KEPT_FIELDS.strip().splitlines():
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


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_proto", GENERATOR)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", kept_messages())
def test_kept_messages_keep_names_numbers_and_types(name: str) -> None:
    kept = kept_messages()[name]
    found = fields_of(MESSAGES[name])
    assert {field: found.get(field) for field in kept} == kept
    added = {field: number for field, (number, _) in found.items() if field not in kept}
    assert all(number >= FIRST_NEW_NUMBER for number in added.values()), added


def test_statuses_keep_their_numbers() -> None:
    expected = {f"DELIBERATION_STATUS_{name}": number for name, number in STATUSES.items()}
    found = dict(pb.DeliberationStatus.items())
    assert {name: found.get(name) for name in expected} == expected


def test_orchestration_updates_are_shaped_as_deliberation_updates() -> None:
    expected = fields_of(MESSAGES["DeliberationUpdate"]) | {"final": (22, "OrchestrateResponse")}
    assert fields_of(MESSAGES["OrchestrationUpdate"]) == expected


@pytest.mark.parametrize(("name", "fields"), NAMED_FIELDS.items())
def test_new_messages_have_the_promised_fields(name: str, fields: str) -> None:
    assert set(fields.split()) <= set(fields_of(MESSAGES[name]))


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
    assert found == [tuple(line.split()) for line in RPCS.strip().splitlines()]


def test_only_the_listed_rpcs_use_the_naming_exceptions() -> None:
    unusual = {
        rpc.name
        for rpc in SERVICE.method
        if (local_name(rpc.input_type), local_name(rpc.output_type)) != (f"{rpc.name}Request", f"{rpc.name}Response")
    }
    assert unusual == UNUSUAL_NAMES


def test_only_the_kept_enum_starts_with_unknown() -> None:
    first = {enum.name: enum.value[0].name for enum in FILE.enum_type}
    assert first.pop("DeliberationStatus") == "DELIBERATION_STATUS_UNKNOWN"
    assert all(name.endswith("_UNSPECIFIED") for name in first.values()), first


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


def test_tool_arguments_keep_nested_values() -> None:
    arguments = {"files": [{"path": "a.py", "lines": [1, 2]}], "force": False}
    operation = pb.ToolOperation(params=struct_pb2.Struct())
    operation.params.update(arguments)
    assert pb.ToolOperation.FromString(operation.SerializeToString()).params == arguments


def test_generated_code_is_up_to_date() -> None:
    done = run(sys.executable, GENERATOR, "--check")
    assert done.returncode == 0, done.stderr


def test_drift_names_what_is_missing_left_over_and_different(generator: ModuleType) -> None:
    assert generator.drift({"a": "x\n"}, {"a": "x\n"}) == []
    lines = generator.drift({"a": "x\n", "old": ""}, {"a": "y\n", "new": ""})
    assert lines[0] == "differs: a"
    assert {"  -x", "  +y", "missing: new", "left over: old"} <= set(lines)


def test_buf_lint_passes() -> None:
    done = run(Path(sysconfig.get_path("scripts")) / "buf", "lint")
    assert done.returncode == 0, done.stdout + done.stderr
