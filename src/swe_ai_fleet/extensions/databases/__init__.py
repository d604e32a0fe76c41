"""Databases for agents: SQLite files, PostgreSQL, Redis and Neo4j, by the names of configured connections."""

from swe_ai_fleet.extension_registry import Extension

EXTENSION = Extension(tools="toolkit:DatabasePack")
