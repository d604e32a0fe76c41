"""Containers for agents, on a docker or podman engine that an installation names."""

from swe_ai_fleet.extensions import Extension

EXTENSION = Extension(tools="toolkit:ContainerPack")
