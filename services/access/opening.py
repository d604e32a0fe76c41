"""Who comes in, by the settings."""

from __future__ import annotations

import structlog

from services.access.book import AccessBook
from services.auth import Authenticator, OneToken
from swe_ai_fleet.domain.task import DEFAULT_TENANT
from swe_ai_fleet.orchestrator.quotas import Rules
from swe_ai_fleet.settings import Settings

_log = structlog.get_logger(__name__)


async def open_access(settings: Settings, token: str) -> AccessBook | OneToken:
    """The access file's book, or where there is no such file one token for everybody.

    Args:
        settings: Which file, and where the server listens.
        token: What is kept on this machine: everybody's, or beside a file that of whoever starts the fleet.

    Raises:
        InvalidRequest: The file cannot be read, or is not one.
    """
    if settings.tls_cert is None and not settings.loopback:
        _log.warning(
            "tokens and what they open go over the network for everybody to read",
            listen=settings.listen,
            hint="set FLEET_TLS_CERT and FLEET_TLS_KEY, or let a proxy or a mesh speak TLS",
        )
    if settings.access_file is None:
        if not settings.loopback:
            _log.warning(
                "one token lets everybody do everything, from other machines too",
                listen=settings.listen,
                hint="set FLEET_ACCESS_FILE, see docs/access.md",
            )
        return OneToken(token)
    return await AccessBook.open(settings.access_file, local=token)


def knows(access: AccessBook | OneToken, tenant: str) -> bool:
    """Whether there is such a tenant: the default one, and those of the access file."""
    return tenant == DEFAULT_TENANT or (isinstance(access, AccessBook) and tenant in access.tenants)


def rules_of(access: Authenticator) -> Rules | None:
    """What holds for each tenant, as the access file says it now; None where there is no such file."""
    return access.rules if isinstance(access, AccessBook) else None
