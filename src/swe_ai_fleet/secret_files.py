"""Secrets by reference: a setting that is a secret may be named by the file that holds it."""

from __future__ import annotations

import json
import os
import stat
import tomllib
from pathlib import Path
from typing import Any

import structlog
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from swe_ai_fleet.domain.errors import InvalidRequest

SUFFIX = "_file"
MAX_BYTES = 1024 * 1024
_log = structlog.get_logger(__name__)


class SecretFiles(PydanticBaseSettingsSource):
    """Secret settings that are named by a file: `FLEET_<NAME>_FILE` in the environment, `<name>_file` in fleet.toml.

    Settings that are secrets are those that are not shown (`repr=False`). A file holds the value, or the JSON of a
    setting that has structure; the newline at its end does not count. Instantiating raises InvalidRequest, naming the
    file's setting, for one that cannot be read, is empty, or stands beside the value itself.
    """

    def __init__(self, settings_cls: type[BaseSettings], toml: Path) -> None:
        super().__init__(settings_cls)
        self._table = _toml(toml)

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """The value of one setting, None where no file is named."""
        if field.repr:
            return None, field_name, False
        name = f"{field_name}{SUFFIX}"
        variable = f"{self.config.get('env_prefix', '')}{field_name}".upper()
        path = os.environ.get(f"{variable}{SUFFIX.upper()}", "")
        if path and os.environ.get(variable, ""):
            raise InvalidRequest(
                f"{variable} and {variable}{SUFFIX.upper()} are both set", field=name, hint="unset one of them"
            )
        path = path or str(self._table.get(name, ""))
        if not path:
            return None, field_name, False
        secret = read_secret(Path(path), name)
        if field.annotation is str:
            return secret, field_name, False
        try:
            return json.loads(secret), field_name, False
        except ValueError:
            # What stands there is not repeated.
            raise InvalidRequest(f"{path} holds no JSON", field=name, hint="as the setting itself takes it") from None

    def __call__(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, field in self.settings_cls.model_fields.items():
            value, key, _ = self.get_field_value(field, name)
            if value is not None:
                found[key] = value
        return found


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
        _log.warning("secret_readable_by_everybody", file=str(path), setting=name, mend=f"chmod o-r {path}")
    return text


def _toml(path: Path) -> dict[str, Any]:
    """The settings' own file, as far as it can be read; whoever reads the settings in it tells of faults."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
