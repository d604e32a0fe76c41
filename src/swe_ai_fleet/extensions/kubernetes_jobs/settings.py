"""Settings of a workspace runner, in addition to the fleet's: `FLEET_RUNNER_<NAME>` in the environment.

`variables_of` writes the fleet's settings as environment variables for another process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field, JsonValue
from pydantic_settings import BaseSettings, SettingsConfigDict

from swe_ai_fleet.settings import Settings

EVERY_TENANT = "*"


class RunnerSettings(BaseSettings):
    """Settings of a [workspace runner](workspace-runner.md) and of its jobs' containers. Maps are JSON.

    It reads these from the environment, beside the fleet's own.
    """

    model_config = SettingsConfigDict(env_prefix="FLEET_RUNNER_", extra="ignore", populate_by_name=True, frozen=True)

    backend: Literal["kubernetes", "local"] = Field(
        default="kubernetes", description="How jobs run: as Kubernetes Jobs, or as processes beside the runner."
    )
    takes: Literal["jobs", "commands"] = Field(
        default="jobs",
        description="jobs = those of orchestrators, on `agent.jobs.>`; commands = tasks of clients, on "
        "`agent.cmd.execute`, without an orchestrator.",
    )
    concurrency: int = Field(default=50, ge=1, description="The most jobs of one runner at a time.")
    max_deliveries: int = Field(
        default=5, ge=1, description="Deliveries before a message goes to `agent.dlq.<consumer>`."
    )
    ack_wait_seconds: float = Field(
        default=30.0, ge=1, description="Seconds without a sign of a runner after which another one adopts its jobs."
    )
    drain_seconds: float = Field(
        default=20.0, ge=0, description="Seconds after a SIGTERM in which jobs may still end here."
    )
    image: str = Field(default="", description="Image of the agent container; needed with Kubernetes.")
    clone_image: str = Field(
        default="",
        description="Image of the cloning container (it needs `python -m workers.cloning`); empty = that of the agent.",
    )
    pull_policy: Literal["IfNotPresent", "Always", "Never"] = Field(
        default="IfNotPresent", description="The image pull policy of nodes."
    )
    pull_secrets: tuple[str, ...] = Field(default=(), description="Secrets for pulling images.")
    image_secrets: dict[str, str] = Field(
        default_factory=dict[str, str],
        description="Secret for pulling the images that tasks name, by tenant (`*` = every other).",
    )
    namespace: str = Field(default="", description="Namespace of the Jobs; empty = the runner's own, else `default`.")
    tenant_namespaces: dict[str, str] = Field(
        default_factory=dict[str, str], description="Namespaces by tenant; others use `namespace`."
    )
    git_secrets: dict[str, str] = Field(
        default_factory=dict[str, str],
        description="Secret with git credentials by tenant (`*` = every other), mounted into the cloning container "
        "only; keys `username`, `password` and `hosts` (which hosts may see it), or the same behind `<reference>.`; "
        "`ssh-privatekey` and `known_hosts` for ssh.",
    )
    protocols: str = Field(default="https,ssh", description="Protocols of repositories that may be cloned.")
    hosts: str = Field(
        default="*",
        description="Hosts of repositories that may be cloned, comma-separated patterns; one at a private address must "
        "be named by itself.",
    )
    agent_config: tuple[str, ...] = Field(
        default=(), description="ConfigMaps whose keys become variables of both containers (`FLEET_…`)."
    )
    agent_secrets: tuple[str, ...] = Field(
        default=(), description="Secrets whose keys become variables of the agent container, such as model keys."
    )
    nats_secret: str = Field(
        default="", description="Secret whose keys become variables of both containers: their NATS credentials."
    )
    files_secret: str = Field(
        default="", description="Secret mounted at /etc/fleet in both containers: certificates, an nkey."
    )
    agent_env: dict[str, str] = Field(
        default_factory=dict[str, str], description="Plain variables of the agent container."
    )
    service_account: str = Field(
        default="", description="Service account of the Pods (its token is not mounted); empty = the namespace's."
    )
    runtime_class: str = Field(default="", description="Runtime class of the Pods, such as kata; empty = the node's.")
    user_namespaces: bool = Field(
        default=False,
        description="Run Pods in user namespaces with an unmasked /proc, as bubblewrap needs.",
    )
    seccomp_profile: str = Field(
        default="", description="Seccomp profile on the nodes, such as fleet/agent.json; empty = the runtime's default."
    )
    apparmor_profile: str = Field(
        default="", description="AppArmor profile on the nodes, such as fleet-agent; empty = the runtime's default."
    )
    tenant_runtime_classes: dict[str, str] = Field(
        default_factory=dict[str, str], description="Runtime classes by tenant; others use `runtime_class`."
    )
    priority_class: str = Field(default="", description="Priority class of the Pods.")
    run_as: int = Field(default=10_001, ge=1, description="User and group that containers run as.")
    cpu: str = Field(default="500m", description="CPU request of an agent container.")
    cpu_limit: str = Field(default="2", description="CPU limit of an agent container.")
    memory: str = Field(default="1Gi", description="Memory request of an agent container.")
    memory_limit: str = Field(default="4Gi", description="Memory limit of an agent container, killed beyond it.")
    workspace_size: str = Field(default="10Gi", description="Size limit of `/workspace`.")
    scratch_size: str = Field(default="10Gi", description="Size limit of a job's home and `/tmp`.")
    node_selector: dict[str, str] = Field(default_factory=dict[str, str], description="Labels of the nodes to use.")
    tolerations: tuple[dict[str, JsonValue], ...] = Field(default=(), description="Taints that Pods tolerate.")
    margin_seconds: float = Field(
        default=1_800.0,
        ge=0,
        description="Seconds of a Job beyond its task's limit: for scheduling, pulling, cloning, set-up.",
    )
    keep_seconds: int = Field(default=600, ge=0, description="Seconds for which failed Jobs are kept for inspection.")
    grace_seconds: int = Field(default=30, ge=1, description="Seconds between SIGTERM and SIGKILL of a container.")
    pull_deadline_seconds: float = Field(
        default=180.0, gt=0, description="Seconds after which an image that cannot be pulled fails the job."
    )
    schedule_deadline_seconds: float = Field(
        default=900.0, gt=0, description="Seconds after which a Pod that cannot be scheduled fails the job."
    )
    lost_node_seconds: int = Field(
        default=60, ge=0, description="Seconds after which a Pod on an unreachable node counts as lost."
    )
    kubeconfig: Path | None = Field(
        default=None, description="Outside of a cluster: the kubeconfig; empty = KUBECONFIG or ~/.kube/config."
    )

    def namespace_of(self, tenant: str) -> str:
        """The namespace of a tenant's Jobs; `namespace` must be set."""
        return self.tenant_namespaces.get(tenant, self.namespace)

    def git_secret_of(self, tenant: str) -> str:
        """The secret with a tenant's git credentials; empty: none."""
        return self.git_secrets.get(tenant, self.git_secrets.get(EVERY_TENANT, ""))

    def image_secret_of(self, tenant: str) -> str:
        """The secret that opens a tenant's registries; empty: none."""
        return self.image_secrets.get(tenant, self.image_secrets.get(EVERY_TENANT, ""))


def variables_of(settings: Settings) -> Mapping[str, str]:
    """Every setting that differs from its default, as a variable; a process started with them has the same settings.

    Except the keys that sign audit heads and NATS logins of hosts, which only orchestrators have.
    """
    plain = settings.model_dump(mode="json", exclude_defaults=True, exclude={"audit_signing_key", "nats_issuer_file"})
    return {
        f"FLEET_{name.upper()}": value if isinstance(value, str) else json.dumps(value)
        for name, value in plain.items()
        if value is not None
    } | {"FLEET_HOME": str(settings.home)}
