"""The `fleet` command."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from swe_ai_fleet.cli.listing import ENTRIES, GROUPS, SECTIONS, top
from swe_ai_fleet.extension_registry import CommandEntry, extensions

ALL_GROUPS = {
    **GROUPS,
    **{words: about for extension in extensions().values() for words, about in extension.groups.items()},
}
ALL_ENTRIES = {
    **ENTRIES,
    **{words: entry for extension in extensions().values() for words, entry in extension.commands.items()},
}
"""The commands of `fleet` and of its extensions."""
_GOAL_COMMAND = "goal"
_MOST = 2**31


class _Commands(Mapping[str, Any]):
    """The commands and groups of a group by their names; each is created, and its code imported, on first access."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._made: dict[str, Any] = {}
        self.abouts = {
            words.rpartition(" ")[2]: about
            for words, about in (*((words, entry.about) for words, entry in ALL_ENTRIES.items()), *ALL_GROUPS.items())
            if words.rpartition(" ")[0] == group
        }

    def __getitem__(self, name: str) -> Any:
        words = f"{self._group} {name}".lstrip()
        if name not in self._made and words in ALL_GROUPS:
            self._made[name] = typer.main.get_group(_group(words, ALL_GROUPS[words]))
        elif name not in self._made:
            self._made[name] = _command(name, words, ALL_ENTRIES[words])
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.abouts)

    def __len__(self) -> int:
        return len(self.abouts)


class _PlainReader:
    """Reads strings and bounded integers itself; everything else as Typer does, which imports pydantic for it."""

    def __init__(self, whole: Callable[[], Any]) -> None:
        self._whole = whole

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        several = param.multiple or param.nargs == -1
        kind, info = param.type_descriptor.annotation, param.type_descriptor.parameter_info
        if value is None:
            return () if several else None
        if kind is str and type(value) is str and not several:
            return value
        if kind == list[str] and type(value) in (list, tuple):
            return list(value)
        if kind is int and str(value).isdecimal() and (info.min or 0) <= int(value) <= (info.max or _MOST):
            return int(value)
        return self._whole().coerce(value, param=param, ctx=ctx)


class _PlainParameters:
    def get_params(self, ctx: Any) -> list[Any]:
        read: Any = super()
        params: list[Any] = read.get_params(ctx)
        for parameter in params:
            if not isinstance(parameter.get_runtime_param, partial):
                parameter.get_runtime_param = partial(_PlainReader, parameter.get_runtime_param)
        return params


class _Command(_PlainParameters, TyperCommand):
    pass


class _Group(_PlainParameters, TyperGroup):
    """A group whose help imports none of its commands."""

    def __init__(self, **read: Any) -> None:
        super().__init__(**read)
        self.commands: Any = _Commands("" if self.name == "fleet" else str(self.name))
        self.name = str(self.name).rpartition(" ")[2]

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        limit = formatter.width - 6 - max(map(len, self.commands))
        abouts: dict[str, str] = self.commands.abouts
        sections: Mapping[str, str] = SECTIONS if self.name == "fleet" else {}
        grouped = {title: [name for name in names.split() if name in abouts] for title, names in sections.items()}
        rest = [name for name in abouts if not any(name in names for names in grouped.values())]
        for title, names in (*grouped.items(), ("Commands", rest)):
            if not names:
                continue
            with formatter.section(title):
                formatter.write_dl(
                    [(name, TyperCommand(name, help=abouts[name]).get_short_help_str(limit)) for name in names]
                )

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        # Only a completion after a command's whole name needs its code.
        from typer._click.shell_completion import CompletionItem

        abouts = self.commands.abouts.items()
        names = [CompletionItem(name, help=about) for name, about in abouts if name.startswith(incomplete)]
        return names + super(TyperGroup, self).shell_complete(ctx, incomplete)


class _GoalFirst(_Group):
    """A group whose first word is a goal if it is none of its commands."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] != "--help":
            args = [_GOAL_COMMAND, *args]
        return super().parse_args(ctx, args)


def _group(words: str, about: str, **more: Any) -> typer.Typer:
    kind = _GoalFirst if words == "plan" else _Group
    return typer.Typer(name=words, cls=kind, help=about, no_args_is_help=True, rich_markup_mode=None, **more)


def _command(name: str, words: str, entry: CommandEntry) -> Any:
    # Imported objects stay alive: the garbage collector need not examine them.
    gc.disable()
    from swe_ai_fleet.cli.command import command_of

    run = command_of(words, entry)
    gc.freeze()
    gc.enable()
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    examples = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in entry.examples)
    alone.command(name, cls=_Command, help=entry.about, epilog=examples)(run)
    return typer.main.get_command(alone)


def _configured(
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File of settings. Default: FLEET_CONFIG, or fleet.toml in FLEET_HOME."),
    ] = None,
) -> None:
    if config is not None:
        os.environ["FLEET_CONFIG"] = str(config)


app = _group(
    "fleet",
    "Several coding agents solve a task in parallel; evidence picks the winner; every step is audited.",
    add_completion=True,
    pretty_exceptions_enable=False,
    epilog=top(),
    callback=_configured,
)

if __name__ == "__main__":
    app()
