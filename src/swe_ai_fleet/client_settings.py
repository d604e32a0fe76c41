"""Where settings are read from, and those that a command needs that only calls a running fleet.

Standard library only: what reads and checks all settings takes longer to load than such a command may take.
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swe_ai_fleet.domain.errors import InvalidRequest

CONFIGURATION = "fleet.toml"
PREFIX = "FLEET_"
SUFFIX = "_file"
MAX_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Those of `swe_ai_fleet.settings.Settings` that say which fleet is called, and how."""

    home: Path
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_client_cert: Path | None = None
    tls_client_key: Path | None = None
    context_url: str = ""
    context_token: str = field(default="", repr=False)
    log_level: str = "info"

    @classmethod
    def read(cls) -> ClientSettings:
        """From the environment, else the operator's file.

        Raises InvalidRequest naming a setting that is not a string, ValueError for a file that is not TOML.
        """
        path = configuration_file()
        table = tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        texts = {name: _text(name, table) for name in cls.__dataclass_fields__}
        if named := secret_file("context_token", table):
            texts["context_token"] = read_secret(named, f"context_token{SUFFIX}")
        texts_set: dict[str, Any] = {name: text for name, text in texts.items() if text is not None}
        paths = {name: Path(text) for name, text in texts_set.items() if name == "home" or name.startswith("tls_")}
        values: dict[str, Any] = {"home": default_home(), **texts_set, **paths}
        return cls(**values)


def _text(name: str, table: Mapping[str, Any]) -> str | None:
    value: Any = table.get(name)
    value = os.environ.get(f"{PREFIX}{name.upper()}", value)
    if value is not None and type(value) is not str:
        hint = f"see FLEET_{name.upper()} and {configuration_file()}"
        raise InvalidRequest("it must be a string", field=name, hint=hint)
    return value


def secret_file(name: str, table: Mapping[str, Any]) -> Path | None:
    """The file that a secret setting is named by: `FLEET_<NAME>_FILE` in the environment, `<name>_file` in the table.

    Raises InvalidRequest where it stands beside the value itself.
    """
    variable = f"{PREFIX}{name}".upper()
    path = os.environ.get(f"{variable}{SUFFIX.upper()}", "")
    if path and os.environ.get(variable, ""):
        raise InvalidRequest(
            f"{variable} and {variable}{SUFFIX.upper()} are both set", field=f"{name}{SUFFIX}", hint="unset one of them"
        )
    path = path or str(table.get(f"{name}{SUFFIX}", ""))
    return Path(path) if path else None


def read_secret(path: Path, name: str) -> str:
    """The secret in a file, without the newline at its end.

    A file that everybody on the machine can read is told in the log. Raises InvalidRequest naming the setting `name`.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InvalidRequest(
            f"{path} cannot be read: {error.strerror or error}", field=name, hint="a file with the secret in it"
        ) from None
    if len(content) > MAX_BYTES:
        raise InvalidRequest(f"{path} is too large for a secret", field=name, hint=f"at most {MAX_BYTES} bytes")
    try:
        text = content.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise InvalidRequest(f"{path} holds no text", field=name, hint="UTF-8") from None
    if not text:
        raise InvalidRequest(f"{path} is empty", field=name, hint="a file with the secret in it")
    if mode & stat.S_IROTH:
        import structlog

        log = structlog.get_logger(__name__)
        log.warning("secret_readable_by_everybody", file=str(path), setting=name, fix=f"chmod o-r {path}")
    return text


def configuration_file() -> Path:
    """The operator's file: the one that FLEET_CONFIG names, else `fleet.toml` in FLEET_HOME, which need not be there.

    What lies in the working directory is a repository's, and decides nothing. Raises InvalidRequest where the named
    file is missing.
    """
    if named := os.environ.get("FLEET_CONFIG", ""):
        path = Path(named).expanduser()
        if not path.is_file():
            raise InvalidRequest(f"there is no file {named}", field="config", hint="FLEET_CONFIG or --config names it")
        return path
    home = os.environ.get("FLEET_HOME", "")
    return (Path(home).expanduser() if home else default_home()) / CONFIGURATION


def default_home() -> Path:
    """`$XDG_STATE_HOME/swe-ai-fleet`, else `~/.local/state/swe-ai-fleet`."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "swe-ai-fleet"


def read_file(path: Path) -> dict[str, Any]:
    """The settings' own file, as far as it can be read; whoever reads the settings in it tells of faults."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
