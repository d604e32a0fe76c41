"""All that NATS keeps for a fleet, written to files and read back."""

from swe_ai_fleet.extensions import Extension, entry

EXTENSION = Extension(
    commands={
        "backup": entry(
            "extensions.backup.commands:backup",
            "Save everything that the fleet keeps in NATS into a new directory, while it runs.",
            "fleet backup backups/2026-01-31",
        ),
        "restore": entry(
            "extensions.backup.commands:restore",
            "Put a backup into a NATS server that is empty, and verify it; run it while no fleet runs.",
            "fleet restore backups/2026-01-31 --check 100",
        ),
    }
)
