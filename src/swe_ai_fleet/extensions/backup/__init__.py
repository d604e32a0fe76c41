"""Backups of a fleet's data in NATS to files, and their restoration."""

from swe_ai_fleet.extension_registry import Extension, entry

EXTENSION = Extension(
    commands={
        "backup": entry(
            "extensions.backup.commands:backup",
            "Save everything that the fleet stores in NATS to a new directory, while it runs.",
            "fleet backup backups/2026-01-31",
        ),
        "restore": entry(
            "extensions.backup.commands:restore",
            "Restore a backup to an empty NATS server, and verify it; no fleet may run meanwhile.",
            "fleet restore backups/2026-01-31 --check 100",
        ),
    }
)
