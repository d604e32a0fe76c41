"""The nkeys of users on NATS: seeds in files, public keys in the server's configuration."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any, cast

from swe_ai_fleet.domain.errors import PreconditionFailed

_SEED_BYTES = 32


def new_seed(*, account: bool = False) -> str:
    """The seed of a new user, or of an account."""
    import nkeys

    library = cast("Any", nkeys)
    kind = library.PREFIX_BYTE_ACCOUNT if account else library.PREFIX_BYTE_USER
    return bytes(library.encode_seed(secrets.token_bytes(_SEED_BYTES), kind)).decode() + "\n"


def public_key(path: Path) -> str:
    """The public key of the seed in a file. Raises PreconditionFailed where there is none."""
    import nkeys

    library = cast("Any", nkeys)
    try:
        pair = library.from_seed(bytearray(path.read_bytes().strip()))
        return bytes(pair.public_key).decode().rstrip("=")
    except (OSError, nkeys.NkeysError, ValueError) as error:
        raise PreconditionFailed(
            f"{path} holds no nkey seed: {error}", field="init", hint="restore it, or `fleet init --rotate nats`"
        ) from error
