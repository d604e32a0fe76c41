"""Repositories of one node on git: pinned, cloned into the sandbox, delivered to."""

from swe_ai_fleet.adapters.git_workspace.bundles import read_header, unpack_branch
from swe_ai_fleet.adapters.git_workspace.clone import CloneBounds, GitClone
from swe_ai_fleet.adapters.git_workspace.disk_space import Ages, RemovedCounts, TenantDisk
from swe_ai_fleet.adapters.git_workspace.image_registry import RegistryRules
from swe_ai_fleet.adapters.git_workspace.image_store import ImageRules, ImageStore
from swe_ai_fleet.adapters.git_workspace.image_unpacking import ImageLimits
from swe_ai_fleet.adapters.git_workspace.locations import TENANT, Credential, LocationPolicy
from swe_ai_fleet.adapters.git_workspace.provider import GitWorkspaceProvider
from swe_ai_fleet.adapters.git_workspace.remote import CredentialLookup, mounted_credentials
from swe_ai_fleet.adapters.git_workspace.setup import SetupPolicy

__all__ = [
    "TENANT",
    "Ages",
    "CloneBounds",
    "Credential",
    "CredentialLookup",
    "GitClone",
    "GitWorkspaceProvider",
    "ImageLimits",
    "ImageRules",
    "ImageStore",
    "LocationPolicy",
    "RegistryRules",
    "RemovedCounts",
    "SetupPolicy",
    "TenantDisk",
    "mounted_credentials",
    "read_header",
    "unpack_branch",
]
