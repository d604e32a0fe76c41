"""The settings of an installation: read once from the environment (`FLEET_…`) or `fleet.toml`, passed on as values."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal
from urllib.parse import SplitResult, urlsplit, urlunsplit

from pydantic import AliasChoices, Field, JsonValue, field_validator
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from swe_ai_fleet.client_settings import (
    PREFIX,
    SUFFIX,
    configuration_file,
    default_home,
    read_file,
    read_secret,
    secret_file,
)
from swe_ai_fleet.domain.errors import InvalidRequest

_PAGE_ADDRESSES = ("127.0.0.1:8000", "localhost:8000", "[::1]:8000")
_FREE = "127.0.0.1:0"
_BYTES_LIMIT = "Most bytes of {} in NATS; 0 = no separate limit. No new task is accepted above 90 %."


def _aliases_of(*names: str) -> AliasChoices:
    """The setting's own name first, then its names in an earlier system."""
    return AliasChoices(*names)


class SecretFiles(PydanticBaseSettingsSource):
    """Reads secret settings from files: `FLEET_<NAME>_FILE` in the environment, `<name>_file` in fleet.toml.

    Secret settings are those with `repr=False`. A file contains the value, or the JSON of a structured setting; a
    newline at its end is ignored. Instantiating raises InvalidRequest, naming the file's setting, for a file that is
    unreadable or empty, or set together with the value itself.
    """

    def __init__(self, settings_cls: type[BaseSettings], toml: Path) -> None:
        super().__init__(settings_cls)
        self._table = read_file(toml)

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """The value of one setting, None without a file."""
        if field.repr:
            return None, field_name, False
        path = secret_file(field_name, self._table)
        if path is None:
            return None, field_name, False
        name = f"{field_name}{SUFFIX}"
        secret = read_secret(path, name)
        if field.annotation is str:
            return secret, field_name, False
        try:
            return json.loads(secret), field_name, False
        except ValueError:
            # The content is secret, so the message does not repeat it.
            raise InvalidRequest(
                f"{path} is not JSON", field=name, hint="use the format of the setting itself"
            ) from None

    def __call__(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, field in self.settings_cls.model_fields.items():
            value, key, _ = self.get_field_value(field, name)
            if value is not None:
                values[key] = value
        return values


class Settings(BaseSettings):
    """The settings of an installation.

    Each field is `FLEET_<NAME>` in the environment, or `<name>` in the file of `configuration_file`.
    """

    model_config = SettingsConfigDict(
        env_prefix="FLEET_",
        extra="ignore",
        populate_by_name=True,
        frozen=True,
        # The error for a malformed secret must not show its value.
        hide_input_in_errors=True,
    )

    home: Path = Field(
        default_factory=default_home,
        description="Directory of all local data: NATS store, repository caches, environments, workspaces.",
    )
    model_url: str = Field(
        default="",
        validation_alias=_aliases_of("FLEET_MODEL_URL", "model_url", "VLLM_URL"),
        description="Base URL of an OpenAI-compatible server, such as http://127.0.0.1:8000/v1; or the URLs of "
        "several servers with the same model, separated by commas. dns+http://NAME:PORT/v1 means a server at each "
        "address of a name, file:/PATH a file with one URL per line; changes of both are followed.",
    )
    model: str = Field(
        default="",
        validation_alias=_aliases_of("FLEET_MODEL", "model", "VLLM_MODEL"),
        description="Model name; empty = the first one the server lists.",
    )
    model_api_key: str = Field(
        default="",
        description="API key of the model server, sent to no other address.",
        repr=False,
    )
    fireworks_api_key: str = Field(
        default="",
        validation_alias=_aliases_of("FLEET_FIREWORKS_API_KEY", "fireworks_api_key", "FIREWORKS_API_KEY"),
        description="API key of Fireworks, sent to no other server; without a model URL it selects Fireworks.",
        repr=False,
    )
    gemini_api_key: str = Field(
        default="",
        validation_alias=_aliases_of("FLEET_GEMINI_API_KEY", "gemini_api_key", "GEMINI_API_KEY"),
        description="API key of Gemini, sent to no other server.",
        repr=False,
    )
    openai_api_key: str = Field(
        default="",
        validation_alias=_aliases_of("FLEET_OPENAI_API_KEY", "openai_api_key", "OPENAI_API_KEY"),
        description="API key of OpenAI, sent to no other server.",
        repr=False,
    )
    model_timeout_seconds: float = Field(default=600.0, gt=0, description="Longest wait for one completion.")
    model_patience_seconds: float = Field(
        default=3600.0,
        ge=0,
        description="How long a model call waits for a server that is down or overloaded, unless `access_file` sets "
        "it for the tenant.",
    )
    model_max_in_flight: int = Field(
        default=0, ge=0, description="Maximum number of concurrent model calls in the whole fleet; 0 = no limit."
    )
    model_tokens_per_minute: int = Field(
        default=0,
        ge=0,
        description="Maximum tokens per minute, prompt and completion, in the whole fleet; 0 = no limit.",
    )
    model_session_headers: str = Field(
        default="X-Session-ID, x-session-affinity, x-smg-routing-key",
        description="Headers that tell routers to which agent run a model call belongs; empty: none.",
    )
    model_prices: dict[str, dict[str, float]] = Field(
        default_factory=dict[str, dict[str, float]],
        description='Prices per million tokens by model, as JSON: {"MODEL": {"prompt": 0.5, "completion": 1.5, '
        '"cached": 0.1}}; "*" is every other model. Empty: no prices.',
    )
    model_record_tokens: bool = Field(
        default=False,
        description="Record token ids and log-probabilities of prompts and replies, for training; a server without "
        "them is asked only once.",
    )
    model_profiles: dict[str, dict[str, str]] = Field(
        default_factory=dict[str, dict[str, str]],
        description='Other models that tasks may select by name, as JSON: {"small": {"model": …, "url": …, "api_key": '
        '…, "record_tokens": "true"}}, or "api_key_file": …; missing values are those of the settings above, the key '
        "only for the same address. A profile named verifier scores candidates.",
        repr=False,
    )
    vllm_python: str | None = Field(
        default=None,
        description="Python interpreter of the environment with vLLM, for `fleet up --vllm`; empty = this one.",
    )
    planning_mode: Literal["simple", "agentic", "hybrid"] = Field(
        default="agentic",
        validation_alias=_aliases_of("FLEET_PLANNING_MODE", "planning_mode", "PLANNER_MODE"),
        description="How agents plan unless the task sets it: one plan, step by step, or by the task's complexity.",
    )
    hybrid_threshold: float = Field(
        default=0.7,
        ge=0,
        le=1,
        validation_alias=_aliases_of("FLEET_HYBRID_THRESHOLD", "hybrid_threshold", "HYBRID_COMPLEXITY_THRESHOLD"),
        description="Complexity (0 to 1) from which on a hybrid agent works step by step.",
    )
    parallel_calls: bool = Field(
        default=True,
        validation_alias=_aliases_of("FLEET_PARALLEL_CALLS", "parallel_calls", "AGENTIC_ENABLE_PARALLEL"),
        description="Whether the tool calls of one reply may run in parallel.",
    )
    sub_agents: int = Field(default=8, ge=0, description="Maximum number of sub-agents of one run, over all levels.")
    sub_agent_depth: int = Field(default=2, ge=0, description="Levels of sub-agents below a run.")
    sub_agent_seconds: float = Field(default=90.0, gt=0, description="Time limit of one sub-agent.")
    result_cache_mb: int = Field(
        default=32,
        ge=0,
        description="MiB of memory per process for lookup results that runs share; 0 = nothing is shared.",
    )
    chat_max_iterations: int = Field(
        default=5,
        ge=1,
        validation_alias=_aliases_of("FLEET_CHAT_MAX_ITERATIONS", "chat_max_iterations", "AGENTIC_MAX_ITERATIONS"),
        description="Maximum number of model replies of a chat or planning request.",
    )
    chat_max_tool_calls: int = Field(
        default=20,
        ge=1,
        validation_alias=_aliases_of("FLEET_CHAT_MAX_TOOL_CALLS", "chat_max_tool_calls", "AGENTIC_MAX_TOOL_CALLS"),
        description="Maximum number of tool calls of a chat or planning request.",
    )
    chat_timeout_seconds: float = Field(
        default=60.0,
        gt=0,
        validation_alias=_aliases_of("FLEET_CHAT_TIMEOUT_SECONDS", "chat_timeout_seconds", "AGENTIC_TIMEOUT_SECONDS"),
        description="Time limit of a chat or planning request.",
    )
    nats_url: str = Field(
        default="",
        validation_alias=_aliases_of("FLEET_NATS_URL", "nats_url", "NATS_URL"),
        description="NATS server; empty = an embedded one under `home`.",
    )
    nats_token: str = Field(default="", description="Token of the NATS server named by `nats_url`.", repr=False)
    nats_nkey_file: Path | None = Field(
        default=None, description="File with the nkey seed with which this process logs in to NATS, instead of a token."
    )
    nats_issuer_file: Path | None = Field(
        default=None,
        description="File with the nkey seed of the account that NATS trusts to identify hosts of agents; only for "
        "orchestrators. Empty: hosts log in with `nats_token`, which gives access to everything.",
    )
    nats_login: str = Field(
        default="",
        description="Login of a host of agents at NATS; set by the process that starts it.",
        repr=False,
    )
    nats_ca: Path | None = Field(
        default=None, description="PEM file of the authority that signed the certificate of NATS; makes TLS required."
    )
    nats_cert: Path | None = Field(default=None, description="PEM client certificate for NATS.")
    nats_key: Path | None = Field(default=None, description="PEM key of `nats_cert`.")
    stream_replicas: int = Field(
        default=1, ge=1, le=5, description="NATS servers that keep a copy of each stream; 3 for a cluster of three."
    )
    event_days: float = Field(
        default=90.0,
        ge=0,
        description="Days that events, results and their blobs are kept; blobs a day longer. 0 = forever. Must be "
        "longer than any execution, including the time people take to approve.",
    )
    event_bytes: int = Field(default=0, ge=0, description=_BYTES_LIMIT.format("the events of executions"))
    result_bytes: int = Field(default=0, ge=0, description=_BYTES_LIMIT.format("results"))
    blob_bytes: int = Field(default=0, ge=0, description=_BYTES_LIMIT.format("blobs"))
    nats_bytes: int = Field(
        default=0,
        ge=0,
        description="Maximum bytes in total of the NATS server that `fleet up` starts: 1000000000 or more, because "
        "space for buckets and the three limits above is reserved at once; 0 = most of the free disk space. An "
        "external server has its account's limit.",
    )
    ray_address: str = Field(
        default="",
        validation_alias=_aliases_of("FLEET_RAY_ADDRESS", "ray_address", "RAY_ADDRESS"),
        description="Ray cluster; empty = a private local one.",
    )
    ray_token: str = Field(
        default="",
        description="Token of that cluster, which is then called with RAY_AUTH_MODE=token; empty = as set in the "
        "environment.",
        repr=False,
    )
    ray_resources: dict[str, float] = Field(
        default_factory=dict[str, float],
        description='Ray resources that a host of agents needs, as JSON, such as {"agent_host": 1}: hosts then run '
        "only on nodes with them, and an autoscaler sees the demand. Empty = on any node.",
    )
    ray_idle_seconds: float = Field(
        default=0.0,
        ge=0,
        description="Idle time after which a host of agents stops, so that the cluster can shrink; one always stays. "
        "0 = all stay.",
    )
    listen: str = Field(default="127.0.0.1:50055", description="Address of the gRPC server; port 0 = any free one.")
    access_file: Path | None = Field(
        default=None,
        description="TOML file with tenants, their quotas, tokens, JWT issuers and certificates; reloaded when it "
        "changes. Empty: one token for all callers, in `home`.",
    )
    tls_cert: Path | None = Field(
        default=None, description="PEM certificate chain of gRPC and HTTP servers; reloaded when it changes."
    )
    tls_key: Path | None = Field(default=None, description="PEM key of `tls_cert`.")
    tls_client_ca: Path | None = Field(
        default=None,
        description="PEM file of the authority that signs client certificates of callers; see `access_file`.",
    )
    tls_ca: Path | None = Field(
        default=None, description="PEM file of the authority that signed the certificates of the servers called."
    )
    tls_client_cert: Path | None = Field(default=None, description="PEM client certificate for those servers.")
    tls_client_key: Path | None = Field(default=None, description="PEM key of `tls_client_cert`.")
    metrics_listen: str = Field(
        default="127.0.0.1:9090",
        description="Address of this process's Prometheus metrics, or the next free port behind it. Empty = none.",
    )
    otlp_endpoint: str = Field(
        default="",
        validation_alias=_aliases_of("FLEET_OTLP_ENDPOINT", "otlp_endpoint", "OTEL_EXPORTER_OTLP_ENDPOINT"),
        description="Base URL of an OpenTelemetry collector (OTLP over HTTP), such as http://127.0.0.1:4318; "
        "empty = no traces.",
    )
    trace_content: bool = Field(
        default=False, description="Whether traces include prompts, replies and tool arguments (masked)."
    )
    probe_listen: str = Field(
        default="",
        description="Address of an additional gRPC health service without TLS, for Kubernetes probes, which do not "
        "support TLS; empty = only at the server's own address.",
    )
    http_listen: str = Field(
        default="",
        description="Address of the HTTP gateway and its page; empty = 127.0.0.1:8000, or any free port if that is "
        "taken, is the address of a model server (as without `model_url`) or the port of `listen` is 0; off = none.",
    )
    http_hosts: str = Field(
        default="",
        description="Host names of the gateway, besides the address it listens on, comma-separated; requests for "
        "other hosts are refused.",
    )
    http_origins: str = Field(
        default="", description="Origins of other web pages that may call the gateway, comma-separated; empty = none."
    )
    http_requests_per_minute: int = Field(
        default=1_200, ge=1, description="Maximum requests per minute from one client of the gateway."
    )
    http_max_watchers: int = Field(
        default=2_000, ge=1, description="Maximum number of concurrent event streams and WebSockets of one gateway."
    )
    orchestrator_url: str = Field(
        default="", description="host:port of the orchestrator, for a gateway that runs as a separate process."
    )
    orchestrator_token: str = Field(default="", description="Token of that orchestrator.", repr=False)
    webhook_private_hosts: str = Field(
        default="", description="Hosts at private addresses that webhooks may be sent to, comma-separated host:port."
    )
    context_listen: str = Field(
        default="",
        description="Address of the context service; empty = the next port after that of `listen`, or any free one if "
        "that is 0.",
    )
    context_url: str = Field(
        default="",
        description="host:port of a context service that runs elsewhere; empty = one beside the orchestrator.",
    )
    context_token: str = Field(
        default="", description="Token of the context service named by `context_url`.", repr=False
    )
    context_tokens: int = Field(
        default=4_000,
        ge=100,
        description="Token budget of project context and memories for agents, unless a task sets one.",
    )
    embeddings: str = Field(
        default="auto",
        description="How memories are found by meaning: `server` (`embeddings_url`), `local` (the package of the "
        "extra `embeddings`), `none` (by words only); auto = the first available one.",
    )
    embeddings_url: str = Field(
        default="",
        description="Base URL of an OpenAI-compatible server for embeddings, such as http://127.0.0.1:8001/v1.",
    )
    embeddings_model: str = Field(
        default="", description="Model of the server at `embeddings_url`; empty = the first one it lists."
    )
    embeddings_api_key: str = Field(default="", description="API key of the server at `embeddings_url`.", repr=False)
    memory_store: str = Field(
        default="",
        description="Location of the index of memories: empty = a file under `home`; postgresql://… (with pgvector).",
        repr=False,
    )
    memory_limit: int = Field(
        default=20_000, ge=1, description="Maximum number of memories of one namespace; then the oldest are deleted."
    )
    memory_age_days: float = Field(
        default=0.0, ge=0, description="Memories older than this are deleted; 0 = no age limit."
    )
    telegram_token: str = Field(default="", description="Token of the Telegram bot of `fleet telegram`.", repr=False)
    telegram_url: str = Field(default="https://api.telegram.org", description="URL of the Telegram bot API.")
    telegram_chats: str = Field(
        default="", description="Ids of the chats that the bot answers, comma-separated; empty = none."
    )
    workflows: str = Field(
        default="",
        description="Directories with workflow files (*.yaml), comma-separated, in addition to the built-in ones.",
    )
    max_agents: int = Field(
        default=300, ge=1, description="Maximum number of agents of one task, and of the fleet at once."
    )
    agents_per_actor: int = Field(default=64, ge=1, description="Agents that share one Ray actor; 1 = one actor each.")
    approval_timeout_seconds: float = Field(
        default=7 * 86_400.0,
        ge=0,
        description="Time after which an approval expires and counts as rejected. 0 = never.",
    )
    max_executions: int = Field(
        default=200, ge=1, description="Maximum number of executions that one orchestrator runs at once; others wait."
    )
    max_queued: int = Field(default=10_000, ge=1, description="Maximum number of pending executions; more are refused.")
    max_queued_per_caller: int = Field(
        default=2_000, ge=1, description="Maximum number of pending executions of one caller."
    )
    lease_seconds: float = Field(
        default=15.0,
        ge=1,
        description="The executions of an orchestrator that has been silent for this long are taken over.",
    )
    drain_seconds: float = Field(
        default=0.0,
        ge=0,
        description="After SIGTERM an orchestrator accepts nothing new and waits this long for its executions; others "
        "take over the rest. 0 = they take over all at once, which costs each agent its current call.",
    )
    checkpoint_bytes: int = Field(
        default=256 * 1024**2,
        ge=1024**2,
        description="Maximum size of a workspace checkpoint; a larger one is not stored, with an event in the log.",
    )
    checkpoint_seconds: float = Field(
        default=20.0,
        ge=0,
        description="Minimum time between two checkpoints of a workspace; 0 = after every step with a change.",
    )
    councils_file: Path | None = Field(default=None, description="TOML file with the default councils of roles.")
    agent_endpoints: str = Field(
        default="",
        description="Allowed addresses of external agents, comma-separated host:port patterns such as "
        "agents.example.org:50060 or *.example.org:443; a private address must be named exactly. Empty: none.",
    )
    agent_service_token: str = Field(
        default="", description="Bearer token sent to external agents, over TLS only.", repr=False
    )
    harnesses: dict[str, dict[str, JsonValue]] = Field(
        default_factory=dict[str, dict[str, JsonValue]],
        description="Third-party agents that run in the workspace (Agent Client Protocol) by name, as JSON: "
        '{"opencode": {"command": […], "version": …, "directory": …, "variables": {…}, "home": …}}, or as tables '
        "[harnesses.NAME] in the file. Seats of councils and tasks name them as acp:NAME.",
    )
    cpu_slots: int = Field(
        default=0,
        ge=0,
        description="Maximum number of concurrent heavy commands of a tenant on a node; each further tenant adds one. "
        "0 = 2 per CPU.",
    )
    sandbox: Literal["auto", "bubblewrap", "landlock", "none"] = Field(
        default="auto",
        description="auto = the stronger of bubblewrap and landlock that works; none must be set explicitly.",
    )
    max_processes: int = Field(default=512, ge=16, description="Maximum number of processes of one sandbox session.")
    max_cpus: float = Field(default=2.0, gt=0, description="Maximum CPUs of one sandbox session.")
    max_disk_bytes: int = Field(
        default=10 * 1024**3, ge=1024**2, description="Maximum bytes of a workspace, its home and its /tmp together."
    )
    tenant_disk_bytes: int = Field(
        default=50 * 1024**3,
        ge=0,
        description="Maximum bytes of environments, seeds and caches of repositories of one tenant on a node; the "
        "least recently used are deleted before anything is refused. 0 = no limit.",
    )
    upload_max_bytes: int = Field(
        default=512 * 1024**2, ge=1024, description="Maximum bytes of the bundle of an uploaded repository."
    )
    default_repository: str = Field(
        default="",
        description="Repository of tasks that name none, a path or a URL; a tenant's `default_repository` overrides "
        "it. Empty: such tasks are refused.",
    )
    repository_roots: str = Field(
        default="",
        description="Directories, separated by ':', that may contain server-side repositories; {tenant} stands for "
        "the caller's tenant, and is required in each if there is an access file. Empty: the whole machine if only "
        "this machine can call, else none. Repositories below `home` are always refused, except clones of jobs.",
    )
    git_credentials: Path | None = Field(
        default=None,
        description="Directory with a subdirectory per tenant, with the credentials of private repositories "
        "(docs/tenants.md).",
    )
    git_private_hosts: str = Field(
        default="",
        description="Hosts at private addresses whose repositories may be named by URL, comma-separated, without "
        "wildcards, optionally with a port (git.corp.example:8443); all others must be on the public internet.",
    )
    git_known_hosts: Path | None = Field(
        default=None,
        description="Keys of ssh servers in OpenSSH's format, required for ssh URLs; empty = `known_hosts` in `home`.",
    )
    image_registries: str = Field(
        default="",
        description="Registries whose container images tasks may name, comma-separated host or host/repository with "
        "wildcards (docker.io/library/*); a host without wildcards may be at a private address, and with the prefix "
        "http:// be called without TLS. Empty: none.",
    )
    image_folders: str = Field(
        default="",
        description="Directories, separated by ':', whose OCI layouts and docker archives tasks may name; {tenant} "
        "stands for the caller's tenant. Empty: none.",
    )
    image_engine: Path | None = Field(
        default=None, description="Socket of a Docker or Podman engine whose images every caller may name."
    )
    image_credentials: Path | None = Field(
        default=None,
        description="Directory with a subdirectory per tenant, with the credentials of private registries "
        "(docs/environments.md).",
    )
    image_bytes: int = Field(
        default=20 * 1024**3, ge=1024**2, description="Maximum bytes of an unpacked container image."
    )
    image_container: Path | None = Field(
        default=None,
        description="In a Job whose task names an image: the socket for that image's container. Set by the workspace "
        "runner.",
    )
    setup_hosts: str = Field(
        default="*", description="Hosts that set-up commands may reach, comma-separated; * = every public one."
    )
    setup_private_hosts: str = Field(
        default="", description="Hosts at private addresses that set-up commands may also reach (a mirror)."
    )
    setup_variables: str = Field(
        default="",
        description="Environment variables of the server, comma-separated, that set-up commands get (an index, a "
        "proxy).",
    )
    tool_hosts: str = Field(
        default="", description="Hosts that tools and checks may reach unless a task sets its own; empty = none."
    )
    grantable_hosts: str = Field(
        default="*", description="Hosts that a task may allow its tools and checks to reach; * = every public one."
    )
    tool_private_hosts: str = Field(
        default="",
        description="Hosts at private addresses that tools may reach if `tool_hosts` or a task names them.",
    )
    databases: dict[str, str] = Field(
        default_factory=dict[str, str],
        description='Databases that tools may use: URL by name, as JSON, such as {"main": "postgresql://…"}.',
        repr=False,
    )
    writable_databases: str = Field(
        default="", description="Names of the databases that tools may write, comma-separated; others are only read."
    )
    git_remotes: tuple[dict[str, JsonValue], ...] = Field(
        default=(),
        description='Remotes that git tools may use, as JSON: [{"name": "origin", "url": "https://host/path", '
        '"push": ["fleet/*"], "secret": …}, …].',
        repr=False,
    )
    docker: dict[str, JsonValue] = Field(
        default_factory=dict[str, JsonValue],
        description='Containers for agents, as JSON: {"host": "unix:///var/run/docker.sock", '
        '"images": ["python:3.*"]}; empty = none.',
    )
    search_url: str = Field(default="", description="SearXNG-compatible server for `web_search`; empty = none.")
    wikipedia_url: str = Field(default="", description="URL of the api.php for `search_wikipedia`; empty = none.")
    plugins: str = Field(
        default="",
        description="Plug-ins (entry points of `swe_ai_fleet.tools`), comma-separated, whose tools agents and `fleet "
        "tools` get.",
    )
    mcp_servers: tuple[dict[str, JsonValue], ...] = Field(
        default=(),
        description='MCP servers whose tools agents get, as JSON: [{"name": …, "command": […], "tools": ["*"]}, …].',
        repr=False,
    )
    audit_key: str = Field(
        default="", description="Key of the digests of full tool arguments; empty = a random one per run.", repr=False
    )
    audit_signing_key: str = Field(
        default="",
        description="Ed25519 key (PEM, or 32 bytes in base64) that signs the heads of audit chains; empty = a key in "
        "`home`, created at the first start. Use the same for all orchestrators of a fleet.",
        repr=False,
    )
    audit_public_keys: Path | None = Field(
        default=None,
        description="PEM file of earlier public keys that are still trusted, in addition to those in `home`.",
    )
    log_level: str = Field(default="info", description="debug, info, warning or error.")
    log_format: Literal["auto", "json", "text"] = Field(
        default="auto", description="auto = text for terminals, JSON otherwise."
    )
    executor: Literal["ray", "kubernetes"] = Field(
        default="ray",
        description="Where agents run: on Ray, or as Kubernetes Jobs that the workspace runner starts from "
        "`agent.jobs.<tenant>.<priority>`.",
    )

    @field_validator("model_profiles")
    @classmethod
    def _read_keys(cls, profiles: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
        return {name: _with_key(name, profile) for name, profile in profiles.items()}

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        path = configuration_file()
        return (
            init_settings,
            env_settings,
            SecretFiles(settings_cls, path),
            TomlConfigSettingsSource(settings_cls, toml_file=path),
        )

    @property
    def loopback(self) -> bool:
        """Whether the gRPC server listens on this machine only."""
        return on_loopback(self.listen)

    @property
    def alone(self) -> bool:
        """Whether only this machine can submit tasks: gRPC, gateway and NATS are on loopback, without other names."""
        if self.http_hosts or self.access_file is not None or not self.loopback:
            return False
        brokers = [urlsplit(url if "://" in url else f"nats://{url}").hostname or "" for url in listed(self.nats_url)]
        addresses = [f"{host}:0" for host in brokers] + ([self.http_address] if self.http_address else [])
        return all(on_loopback(address) for address in addresses)

    @property
    def context_address(self) -> str:
        """The address of the context service."""
        if self.context_listen:
            return self.context_listen
        host, _, port = self.listen.rpartition(":")
        return f"{host}:{int(port) + 1 if port.isdigit() and int(port) else 0}"

    @property
    def http_address(self) -> str:
        """The address of the gateway; empty: none."""
        if self.http_listen:
            return "" if self.http_listen == "off" else self.http_listen
        return _FREE if self.listen.endswith(":0") else _PAGE_ADDRESSES[0]

    @property
    def http_listen_beside_models(self) -> str:
        """`http_listen` for a process that calls models: never the address of a model server, even of a later one."""
        models = listed(self.model_url) or (f"http://{_PAGE_ADDRESSES[0]}",)
        is_taken = any(urlsplit(url).netloc.rpartition("@")[2] in _PAGE_ADDRESSES for url in models)
        return self.http_listen or (_FREE if is_taken else "")

    @property
    def provider_keys(self) -> dict[str, str]:
        """The keys of model providers, by their names."""
        keys = {"fireworks": self.fireworks_api_key, "gemini": self.gemini_api_key, "openai": self.openai_api_key}
        return {name: key for name, key in keys.items() if key}

    @property
    def secrets(self) -> tuple[str, ...]:
        """The values to mask in all text that leaves the process."""
        profiles = (profile.get("api_key", "") for profile in self.model_profiles.values())
        return tuple(
            value
            for value in (
                self.model_api_key,
                *self.provider_keys.values(),
                self.nats_token,
                self.nats_login,
                *(urlsplit(url).password or "" for url in listed(self.nats_url) if "@" in url),
                self.ray_token,
                self.audit_key,
                self.audit_signing_key,
                self.agent_service_token,
                self.context_token,
                self.orchestrator_token,
                self.embeddings_api_key,
                self.telegram_token,
                *profiles,
            )
            if value
        )


OF_EXTENSIONS: Mapping[str, str] = {
    **dict.fromkeys(("databases", "writable_databases"), "databases"),
    "docker": "containers",
    "mcp_servers": "mcp",
    "harnesses": "acp",
}
"""The settings that mean something where an extension is there alone, and which."""


def on_loopback(address: str) -> bool:
    """Whether an address, `host:port`, is on loopback."""
    host = address.rpartition(":")[0].strip("[]")
    return host in ("localhost", "::1") or host.startswith("127.")


_OTHER_VARIABLES = re.compile(
    f"{PREFIX}(CONFIG|SERVER|TOKEN|CONTEXT_SERVER|(RUNNER|TEST|GIT|JOB|CLONE|BENCH)(_[A-Z_]+)?"
    # The variables that Kubernetes sets in each container for services called fleet-….
    r"|[A-Z_]+_(SERVICE_(HOST|PORT)|PORT)(_.+)?)"
)


def unknown_names(environment: Mapping[str, str]) -> list[str]:
    """A line for each variable or key of the file that looks like a setting but is not, with the nearest setting."""
    fields = Settings.model_fields
    names = {*fields, *(f"{name}{SUFFIX}" for name, field in fields.items() if not field.repr)}
    aliases = {str(alias_name) for field in fields.values() if (alias := _aliases(field)) for alias_name in alias}
    path = configuration_file()
    keys = [name for name in read_file(path) if name.lower() not in names and name not in aliases]
    variables = [
        name
        for name in environment
        if name.startswith(PREFIX)
        and name.removeprefix(PREFIX).lower() not in names
        and not _OTHER_VARIABLES.fullmatch(name)
    ]
    problems = [f"{path} has the unknown setting {name}{_nearest(name, names)}" for name in keys]
    known_variables = {f"{PREFIX}{name}".upper() for name in names}
    return problems + [f"{name} is no setting{_nearest(name, known_variables)}" for name in variables]


def _aliases(field: FieldInfo) -> Sequence[object]:
    return field.validation_alias.choices if isinstance(field.validation_alias, AliasChoices) else ()


def _nearest(name: str, names: Collection[str]) -> str:
    close = get_close_matches(name[:64].upper() if name.isupper() else name[:64].lower(), names, n=1)
    return f"; did you mean {close[0]}?" if close else "; docs/configuration.md has all settings"


def without_login(urls: str) -> str:
    """Comma-separated addresses without their user names and passwords."""
    return ",".join(urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])) for parts in _split(urls))


def _split(urls: str) -> tuple[SplitResult, ...]:
    return tuple(urlsplit(url) if "://" in url else urlsplit(f"nats://{url}") for url in listed(urls))


def _with_key(name: str, profile: dict[str, str]) -> dict[str, str]:
    """A model's profile with the key read from its `api_key_file`."""
    path = profile.get("api_key_file", "")
    rest = {key: value for key, value in profile.items() if key != "api_key_file"}
    # Profiles of several sources are merged: one whose key was read already still has the file's name.
    if not path or rest.get("api_key"):
        return rest
    return {**rest, "api_key": read_secret(Path(path), f"model_profiles.{name}.api_key_file")}


def listed(text: str) -> tuple[str, ...]:
    """The parts of a comma-separated setting."""
    return tuple(part.strip() for part in text.split(",") if part.strip())
