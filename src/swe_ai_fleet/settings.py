"""Settings: read once from the environment (`FLEET_…`) or `fleet.toml`, passed down as plain values."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import AliasChoices, Field, JsonValue
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)


def _named(*names: str) -> AliasChoices:
    """The setting's own name first, then the names that an earlier system used for it."""
    return AliasChoices(*names)


class Settings(BaseSettings):
    """What an installation decides. Each field is `FLEET_<NAME>` in the environment or `<name>` in `fleet.toml`."""

    model_config = SettingsConfigDict(
        env_prefix="FLEET_", toml_file="fleet.toml", extra="ignore", populate_by_name=True, frozen=True
    )

    home: Path = Field(
        default_factory=lambda: default_home(),
        description="Where everything local is kept: NATS store, repository caches, environments, workspaces.",
    )
    model_url: str = Field(
        default="",
        validation_alias=_named("FLEET_MODEL_URL", "model_url", "VLLM_URL"),
        description="Base URL of an OpenAI-compatible server, such as http://127.0.0.1:8000/v1.",
    )
    model: str = Field(
        default="",
        validation_alias=_named("FLEET_MODEL", "model", "VLLM_MODEL"),
        description="Model name; empty = the first one the server lists.",
    )
    model_api_key: str = Field(
        default="",
        validation_alias=_named("FLEET_MODEL_API_KEY", "model_api_key", "FIREWORKS_API_KEY"),
        description="Bearer key of the model server.",
        repr=False,
    )
    model_timeout_seconds: float = Field(default=600.0, gt=0, description="Longest wait for one completion.")
    nats_url: str = Field(
        default="",
        validation_alias=_named("FLEET_NATS_URL", "nats_url", "NATS_URL"),
        description="NATS server; empty = an embedded one under `home`.",
    )
    nats_token: str = Field(default="", description="Token of the NATS server named by `nats_url`.", repr=False)
    ray_address: str = Field(
        default="",
        validation_alias=_named("FLEET_RAY_ADDRESS", "ray_address", "RAY_ADDRESS"),
        description="Ray cluster; empty = a private local one.",
    )
    listen: str = Field(default="127.0.0.1:50055", description="Address of the gRPC server; port 0 = any free one.")
    max_agents: int = Field(default=300, ge=1, description="Most agents one task may ask for, and the fleet runs.")
    agents_per_actor: int = Field(default=64, ge=1, description="Agents that share one Ray actor; 1 = one actor each.")
    max_executions: int = Field(default=200, ge=1, description="Most executions driven at once.")
    cpu_slots: int = Field(default=0, ge=0, description="Heavy commands at once on a node; 0 = twice its CPUs.")
    sandbox: Literal["auto", "bubblewrap", "landlock", "none"] = Field(
        default="auto", description="auto = the stronger of bubblewrap and landlock that works; none must be named."
    )
    max_processes: int = Field(default=512, ge=16, description="Processes of one sandbox session.")
    max_cpus: float = Field(default=2.0, gt=0, description="CPUs that one sandbox session may use.")
    max_disk_bytes: int = Field(
        default=10 * 1024**3, ge=1024**2, description="Bytes that a workspace, its home and its /tmp may hold together."
    )
    repository_roots: str = Field(
        default="/", description="Directories, separated by ':', under which server-side repositories may lie."
    )
    setup_hosts: str = Field(
        default="*", description="Hosts that set-up commands may reach, comma-separated; * = every public one."
    )
    setup_private_hosts: str = Field(
        default="", description="Hosts at private addresses that set-up commands may reach all the same (a mirror)."
    )
    setup_variables: str = Field(
        default="",
        description="Variables of the server, comma-separated, that set-up commands get (an index, a proxy).",
    )
    tool_hosts: str = Field(
        default="", description="Hosts that tools and checks may reach where a task does not say; empty = none."
    )
    grantable_hosts: str = Field(
        default="*", description="Hosts that a task may let its tools and checks reach; * = every public one."
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
    wikipedia_url: str = Field(default="", description="The api.php that `search_wikipedia` asks; empty = none.")
    plugins: str = Field(
        default="",
        description="Plug-ins (entry points of `swe_ai_fleet.tools`), comma-separated, whose tools agents get.",
    )
    mcp_servers: tuple[dict[str, JsonValue], ...] = Field(
        default=(),
        description='MCP servers whose tools agents get, as JSON: [{"name": …, "command": […], "tools": ["*"]}, …].',
        repr=False,
    )
    audit_key: str = Field(
        default="", description="Key of the digests of full tool arguments; empty = a random one a run.", repr=False
    )
    log_level: str = Field(default="info", description="debug, info, warning or error.")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

    @property
    def loopback(self) -> bool:
        """Whether the server listens on this machine only."""
        host = self.listen.rpartition(":")[0].strip("[]")
        return host in ("localhost", "::1") or host.startswith("127.")

    @property
    def secrets(self) -> tuple[str, ...]:
        """Values to mask wherever text leaves the process."""
        return tuple(value for value in (self.model_api_key, self.nats_token, self.audit_key) if value)


def default_home() -> Path:
    """`$XDG_STATE_HOME/swe-ai-fleet`, else `~/.local/state/swe-ai-fleet`."""
    import os

    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "swe-ai-fleet"


def listed(text: str) -> tuple[str, ...]:
    """The parts of a setting that holds several, separated by commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())
