"""Help of the program and its commands: a usage line, the docstring, and one section of options for each heading."""

from __future__ import annotations

import shutil
import textwrap
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

_WIDEST = 120
_COLUMN = 28  # characters for the names of options; a longer one has its help on the next line
_EXAMPLES = ("Example:", "Then:")


class Command(TyperCommand):
    """A command whose help has no frames and no names of Python types."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _help_without_arguments(self, ctx, args)
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        shown: list[Any] = [param for param in self.get_params(ctx) if not getattr(param, "hidden", False)]
        arguments = [param for param in shown if param.param_type_name == "argument"]
        options = [param for param in shown if param.param_type_name != "argument"]
        formatter.width = _width()
        usage = [*(one.metavar or "" for one in arguments), "[OPTIONS]"]
        usage.sort(key=lambda word: word.startswith("--"))  # what follows `--` are no options of ours
        formatter.write_usage(ctx.command_path, " ".join(usage))
        _write_docstring(formatter, self.help or "")
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [(one.metavar or "", one.help) for one in arguments]}
        for option in options:
            panel = getattr(option, "rich_help_panel", None) or "Options"
            if "--help" in option.opts and len(options) > 1:
                panel = getattr(options[-2], "rich_help_panel", None) or panel  # beside --help-all
            sections.setdefault(panel, []).append((names_of(option), option.help or ""))
        _write_sections(formatter, sections)


class Group(TyperGroup):
    """The program, with its commands by heading."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _help_without_arguments(self, ctx, args)
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.width = _width()
        formatter.write_usage(ctx.command_path, "COMMAND [OPTIONS]")
        _write_docstring(formatter, self.help or "")
        sections: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            first = " ".join((command.help or "").split("\n\n")[0].split())
            sections.setdefault(command.rich_help_panel or "Commands", []).append((name, first))
        shown: list[Any] = [one for one in self.get_params(ctx) if not getattr(one, "hidden", False)]
        options = [(names_of(one), one.help or "") for one in shown]
        _write_sections(formatter, sections | {"Options": options})


def _help_without_arguments(command: Any, ctx: Any, args: list[str]) -> None:
    """Typer leaves it to the printer of its own help, which this is not."""
    if not args and command.no_args_is_help and not ctx.resilient_parsing:
        typer.echo(command.get_help(ctx))
        raise typer.Exit(2)


def _width() -> int:
    return max(60, min(shutil.get_terminal_size().columns, _WIDEST) - 1)


def names_of(option: Any) -> str:
    """The names of an option, and what stands for its value."""
    names = [*sorted(option.opts, key=len), *option.secondary_opts]
    value = "" if getattr(option, "is_flag", False) or getattr(option, "count", False) else option.metavar or ""
    return ", ".join(names) + (f" {value}" if value else "")


def _write_docstring(formatter: Any, text: str) -> None:
    """Paragraphs, and examples below each other, whose lines are not filled up."""
    paragraphs = [" ".join(one.split()) for one in text.split("\n\n") if one.strip()]
    for paragraph in paragraphs:
        if not paragraph.startswith(_EXAMPLES):
            formatter.write("\n" + textwrap.fill(paragraph, formatter.width) + "\n")
    examples = [one for one in paragraphs if one.startswith(_EXAMPLES)]
    formatter.write("\n" if examples else "")
    for example in examples:
        lines = textwrap.wrap(
            example, formatter.width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
        )
        formatter.write("\n".join(lines) + "\n")


def _write_sections(formatter: Any, sections: dict[str, list[tuple[str, str]]]) -> None:
    rows = [row for entries in sections.values() for row in entries]
    column = min(_COLUMN, max((len(name) for name, _ in rows), default=0))
    for heading, entries in sections.items():
        if entries:
            formatter.write(f"\n{heading}\n")
        for name, text in entries:
            # names of one width in all sections, so that the helps are below each other
            lines = textwrap.wrap(text, formatter.width - column - 4, break_on_hyphens=False) or [""]
            if len(name) > column:
                formatter.write(f"  {name}\n")
                name = ""
            for number, line in enumerate(lines):
                formatter.write(f"  {name if number == 0 else '':{column}}  {line}".rstrip() + "\n")
