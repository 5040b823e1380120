"""What `mkdocs build` makes by itself: the reference of the command line, and text in place of links out of docs/."""

from __future__ import annotations

import re
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from seeddelta.cli._command import help_of, usage_of
from seeddelta.cli.main import COMMANDS, make_app
from seeddelta.settings import Setting

_OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+((?:benchmarks|research|notebooks|README|\.ci)[^)#]*)[^)]*\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add reference/cli.md."""
    files.append(File.generated(config, "reference/cli.md", content=cli_reference()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Files of the repository are no part of the site: name them."""
    return _OUTSIDE.sub(lambda found: f"{found[1]} (`{found[2]}`)", markdown)


def cli_reference() -> str:
    """Markdown of every command: its help, and a table of its options."""
    group: Any = typer.main.get_command(make_app())
    parts = [
        "# Commands",
        "",
        "Made from the program's own settings. `seeddelta COMMAND --help` shows the usual ones, `--help-all` all.",
        "",
        "A setting can also be given as `--set SETTING=VALUE`, where the groups before its name may be left out "
        "(`--set event.delta_theta=0.3`), or in a YAML file, `--config FILE`. Flags win over the file, and run-time "
        "settings can be environment variables, too: `SEEDDELTA_KWTA_K=0.5` is `--kwta-k 0.5`.",
        "",
    ]
    for name in COMMANDS:
        command = group.commands[name]
        context = command.make_context(name, [], resilient_parsing=True)
        usage = " ".join(["seeddelta", name, *command.collect_usage_pieces(context)])
        parts += [f"## {name}", "", f"    {usage}", "", _help(command.help or ""), ""]
        settings = getattr(command, "settings", ())
        if settings:
            rows = [_setting_row(setting) for setting in settings]
            parts += ["| option | setting | |", "| --- | --- | --- |", *rows, ""]
            continue
        rows = [row for parameter in command.get_params(context) if (row := _row(parameter))]
        parts += ["| option | |", "| --- | --- |", *rows, ""]
    return "\n".join(parts)


def _help(text: str) -> str:
    """Paragraphs; examples become code."""
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n")]
    return "\n\n".join(
        f"    {part.removeprefix('Example: ')}" if part.startswith("Example: ") else part for part in paragraphs
    )


def _row(parameter: Any) -> str:
    if getattr(parameter, "hidden", False):
        return ""
    metavar = parameter.metavar or ""
    if parameter.param_type_name == "option":
        names = " ".join(filter(None, (", ".join(parameter.opts + parameter.secondary_opts), metavar)))
    else:
        names = metavar or str(parameter.name).upper()
    text, default = getattr(parameter, "help", None) or "", parameter.default
    told = default is None or default is False or default in ((), []) or callable(default) or "[default" in text
    if not told:
        text += f" [default: {default}]"
    return f"| `{_cell(names)}` | {_cell(text)} |"


def _setting_row(setting: Setting) -> str:
    """Flags, name for --set and --config, and all of the help."""
    return f"| `{_cell(usage_of(setting))}` | `{setting.name}` | {_cell(help_of(setting))} |"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())
