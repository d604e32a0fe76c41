"""Containers for agents, on a docker or podman engine that an installation names."""

from swe_ai_fleet.extension_registry import Extension

EXTENSION = Extension(tools="toolkit:ContainerPack")
