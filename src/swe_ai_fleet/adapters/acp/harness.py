"""Harnesses: programs of others that speak the Agent Client Protocol, as an installation's settings name them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from swe_ai_fleet.domain.environment import Environment, Mount
from swe_ai_fleet.domain.errors import InvalidRequest, PreconditionFailed
from swe_ai_fleet.sandbox.interactive import InteractiveCommand

INSTALLED = "/opt/harness"
"""Where a harness sees its installation."""
MAX_HOME_CHARS = 8 * 1024 * 1024
MAX_HOME_FILES = 500
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Harness:
    """How a program is started in the sandbox.

    In arguments, variables and the files of `home`, `{model_url}` stands for the base URL of the model API that it
    reaches, and `{model}` for the model's name there.

    Attributes:
        command: Its argv.
        version: Which version this is; shown with its candidates.
        directory: Its installation on this host, which it sees read-only at /opt/harness; empty: below /usr.
        variables: Set for it, over the sandbox's own. Nothing secret: it can read them.
        home: A directory whose text files are copied into the home that each of its runs has; empty: that begins empty.
    """

    command: tuple[str, ...]
    version: str = ""
    directory: str = ""
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    home: str = ""

    def check(self, name: str) -> None:
        """Raises InvalidRequest naming the setting that is malformed."""
        where = f"harnesses.{name}"
        if not _NAME.fullmatch(name):
            raise InvalidRequest(
                f"{name[:64]!r} cannot name a harness", field="harnesses", hint="lower-case letters, digits, - and ."
            )
        if not self.command:
            raise InvalidRequest("a harness without a command", field=f"{where}.command", hint="its argv, as a list")
        for key, path in (("directory", self.directory), ("home", self.home)):
            if path and not Path(path).is_absolute():
                raise InvalidRequest(f"{path!r} is no absolute path", field=f"{where}.{key}")

    def started(
        self, environment: Environment, *, gateway: Path | None = None, model: str = "", read_only: bool = False
    ) -> InteractiveCommand:
        """The command over a workspace with this environment, and the socket of its model.

        Raises PreconditionFailed where something of the installation is missing.
        """

        def filled(text: str) -> str:
            return text.replace("{model_url}", "{gateway}/v1").replace("{model}", model)

        if self.directory and not Path(self.directory).is_dir():
            raise PreconditionFailed(f"the harness is not installed: there is no directory {self.directory}")
        return InteractiveCommand(
            argv=tuple(map(filled, self.command)),
            variables={name: filled(value) for name, value in self.variables.items()},
            mounts=(Mount(source=self.directory, target=INSTALLED),) if self.directory else (),
            environment=environment,
            gateway=gateway,
            files={path: filled(text) for path, text in self.home_files().items()},
            read_only_workspace=read_only,
        )

    def home_files(self) -> Mapping[str, str]:
        """The texts of its home template by relative path. Raises PreconditionFailed."""
        files: dict[str, str] = {}
        root = Path(self.home)
        if self.home and not root.is_dir():
            raise PreconditionFailed(f"the home template of the harness is missing: {self.home}")
        for folder, _, names in os.walk(root) if self.home else ():
            for name in names:
                path = Path(folder, name)
                if path.is_symlink() or not path.is_file():
                    raise PreconditionFailed(f"the home template of the harness has more than plain files: {path}")
                try:
                    files[str(path.relative_to(root))] = path.read_text()
                except (OSError, UnicodeError) as error:
                    raise PreconditionFailed(f"{path} cannot be read as text: {error}") from None
                if len(files) > MAX_HOME_FILES or sum(map(len, files.values())) > MAX_HOME_CHARS:
                    raise PreconditionFailed(f"the home template of the harness is too large: {self.home}")
        return files
