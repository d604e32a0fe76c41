"""Runs commands in workspaces, confined."""

from swe_ai_fleet.domain.command import NetworkGrant
from swe_ai_fleet.sandbox.attacks import Attack
from swe_ai_fleet.sandbox.cpu_slots import CpuSlots
from swe_ai_fleet.sandbox.network import ProxyRefusal, RefusalReason
from swe_ai_fleet.sandbox.policy import ControlGroups, IsolationLevel, SandboxPolicy
from swe_ai_fleet.sandbox.processes import prepare_for_processes
from swe_ai_fleet.sandbox.sandbox import (
    Sandbox,
    SandboxReport,
    choose_isolation_level,
    default_slots,
    examine_sandbox,
    open_workspace,
)
from swe_ai_fleet.sandbox.workspace import LocalWorkspace

__all__ = [
    "Attack",
    "ControlGroups",
    "CpuSlots",
    "IsolationLevel",
    "LocalWorkspace",
    "NetworkGrant",
    "ProxyRefusal",
    "RefusalReason",
    "Sandbox",
    "SandboxPolicy",
    "SandboxReport",
    "choose_isolation_level",
    "default_slots",
    "examine_sandbox",
    "open_workspace",
    "prepare_for_processes",
]
