"""The edge of the process: reads settings, runs the event loop, prints every fault as one line, sets the exit code."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import typer

from swe_ai_fleet.cli.options import with_option
from swe_ai_fleet.cli.screen import CommandFault, Exit, Screen, fault_of
from swe_ai_fleet.client_settings import CONFIGURATION, ClientSettings, configuration_file
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.watching.text import one_line

if TYPE_CHECKING:
    from swe_ai_fleet.settings import Settings

S = TypeVar("S", "Settings", ClientSettings)


def run_command(
    work: Callable[[Screen, Settings], Coroutine[object, object, Exit]], *, json: bool, log_level: str = "error"
) -> None:
    """Run a command to its end and exit with its code.

    Args:
        log_level: The level at which parts of a fleet in this process log to standard error, as text; empty: the level
            and the format of the settings. A level `debug` in the settings takes precedence.
    """
    _run(work, _settings, json=json, log_level=log_level)


def run_client(work: Callable[[Screen, ClientSettings], Coroutine[object, object, Exit]], *, json: bool) -> None:
    """The same for a command that only calls a running fleet."""
    _run(work, ClientSettings.read, json=json, log_level="error")


def _run(
    work: Callable[[Screen, S], Coroutine[object, object, Exit]], read: Callable[[], S], *, json: bool, log_level: str
) -> None:
    screen, debugging = Screen.open(json=json), False
    try:
        try:
            settings = read()
        except ValueError as error:
            raise CommandFault(f"{configuration_file()} cannot be read: {error}") from None
        if settings.home.exists() and not settings.home.is_dir():
            raise CommandFault(f"{settings.home} is not a directory", field="FLEET_HOME")
        # Earlier versions read settings from the working directory, where a repository may have placed them.
        local_file = Path(CONFIGURATION)
        if local_file.is_file() and local_file.resolve() != configuration_file().resolve():
            screen.note(
                f"{CONFIGURATION} in this directory is not read; if it is yours: fleet --config {CONFIGURATION} ..."
            )
        debugging = settings.log_level.lower() == "debug"
        if debugging or not log_level or "structlog" in sys.modules:
            _log_to_stderr(settings, settings.log_level if debugging and log_level else log_level)
        else:
            # asyncio warns about every TLS connection that ends, which is of no use.
            logging.getLogger("asyncio").setLevel(logging.ERROR)
        if whole := sys.modules.get("swe_ai_fleet.settings"):
            for text in whole.unknown_names(os.environ):
                screen.note(one_line(text), style="yellow")
        code = asyncio.run(work(screen, settings))
    except (CommandFault, FleetError) as error:
        fault = with_option(error if isinstance(error, CommandFault) else fault_of(error))
        screen.fault(fault)
        code = fault.exit_code
    except (KeyboardInterrupt, asyncio.CancelledError):
        screen.fault(CommandFault("interrupted", exit_code=Exit.STOPPED))
        code = Exit.STOPPED
    except BrokenPipeError:
        # The reader of our output has closed it; without this Python would complain at exit too.
        sys.stdout = None
        code = Exit.ACCEPTED
    except Exception as error:  # noqa: BLE001 - the edge of the process
        if isinstance(error, OSError) and error.filename and error.strerror:
            fault = CommandFault(f"{os.fsdecode(error.filename)}: {error.strerror}")
            screen.fault(fault)
            raise typer.Exit(int(fault.exit_code)) from None
        # Only on request: a traceback may show the values of variables, secrets among them.
        if debugging and (structlog := sys.modules.get("structlog")):
            structlog.get_logger().debug("a command failed with an internal fault", exc_info=True)
        message = f"internal fault: {type(error).__name__}: {error}"
        screen.fault(CommandFault(message, exit_code=Exit.NOT_ACCEPTED, hint="FLEET_LOG_LEVEL=debug shows where"))
        code = Exit.NOT_ACCEPTED
    raise typer.Exit(int(code))


def _settings() -> Settings:
    from pydantic import ValidationError

    from swe_ai_fleet.settings import Settings

    try:
        return Settings()
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        raise CommandFault(
            f"setting {name}: {first['msg']}", hint=f"see the FLEET_ variables and {configuration_file()}"
        ) from None


def _log_to_stderr(settings: Settings | ClientSettings, level: str) -> None:
    from swe_ai_fleet.telemetry.logs import configure_logging

    try:
        if level:
            configure_logging(level, "text")
            return
        from swe_ai_fleet.runtime.tool_services import secret_mask

        whole = cast("Settings", settings)
        configure_logging(whole.log_level, whole.log_format, mask=secret_mask(whole))
    except ValueError as error:
        raise CommandFault(str(error), field="FLEET_LOG_LEVEL") from None
