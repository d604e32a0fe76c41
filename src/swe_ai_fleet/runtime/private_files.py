"""Files that only their owner can read (keys, tokens, cards), written atomically; keys are never overwritten.

The seed of a NATS nkey is in such a file, its public key in the server's configuration.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from swe_ai_fleet.domain.errors import PreconditionFailed


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read; a reader sees the old or the new content."""
    _draft(path, text).replace(path)


def keep_private(path: Path, make: Callable[[], str]) -> bool:
    """Write a file that does not exist yet; False where it does, and stays as it is."""
    if path.exists():
        return False
    draft = _draft(path, make())
    try:
        # Unlike renaming, this does not replace a file that another process has just written.
        path.hardlink_to(draft)
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    return True


def stored_token(path: Path) -> str:
    """The token in a file, made at the first start; processes that start at once get the same one."""
    keep_private(path, lambda: secrets.token_urlsafe(32))
    return path.read_text().strip()


def _draft(path: Path, text: str) -> Path:
    """A file with the text and a unique name, beside `path`."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        # After a loss of power, an empty key file would never be written again.
        os.fsync(file.fileno())
    return draft


def new_seed(*, account: bool = False) -> str:
    """The seed of a new user's nkey, or of an account's."""
    import nkeys

    library = cast("Any", nkeys)
    kind = library.PREFIX_BYTE_ACCOUNT if account else library.PREFIX_BYTE_USER
    return bytes(library.encode_seed(secrets.token_bytes(32), kind)).decode() + "\n"


def public_key(path: Path, *, as_user: bool = False) -> str:
    """The public key of the seed in a file; `as_user`: of an account's seed used as a user's.

    Raises PreconditionFailed where there is no seed.
    """
    import nkeys

    library = cast("Any", nkeys)
    try:
        seed = bytearray(path.read_bytes().strip())
        if as_user:
            seed = library.encode_seed(library.decode_seed(seed)[1], library.PREFIX_BYTE_USER)
        return bytes(library.from_seed(bytearray(seed)).public_key).decode().rstrip("=")
    except (OSError, nkeys.NkeysError, ValueError) as error:
        raise PreconditionFailed(
            f"{path} contains no nkey seed: {error}", field="init", hint="restore it, or `fleet init --rotate nats`"
        ) from error
