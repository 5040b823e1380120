"""The program `seeddelta`: one typer application, one module a command.

To add a command, write a module with a function `command` (typer annotations, docstring = help) and add its name to
PANELS. Modules are imported when the program starts, so they must import heavy things inside the function.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import SeedDeltaError, needs_extra, one_line
from . import streams

if TYPE_CHECKING:
    import typer

# headings of the help, and the commands below each
PANELS = {
    "Convert": ("quantize", "imatrix", "build", "dequantize"),
    "Run": ("run", "chat", "serve", "exec"),
    "Measure": ("eval", "bench", "report", "demo"),
    "Files": ("inspect", "verify", "card", "schema"),
    "Experiments": ("sparsify",),
}
# command -> module with the function `command`
COMMANDS = {name: f"seeddelta.cli.{name}" for names in PANELS.values() for name in names}


def make_app(commands: dict[str, str] | None = None) -> typer.Typer:
    """Typer application with the given commands (default: all of COMMANDS).

    Raises MissingDependencyError when typer or pydantic is not installed.
    """
    with needs_extra("cli"):
        import pydantic  # noqa: F401 (their settings are made of it)
        import rich  # noqa: F401 (the commands print tables with it)
        import typer

        from ._help import Command, Group
    app = typer.Typer(
        name="seeddelta",
        cls=Group,
        help="Smaller and faster LLMs on CPUs: convert GGUF models to 2-6 bits per weight and run them in llama.cpp.",
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,
    )

    def print_version(value: bool) -> None:
        if value:
            from .. import __version__

            typer.echo(f"seeddelta {__version__}")
            raise typer.Exit

    # as a default, not in Annotated: typer evaluates annotations with the module's names, and it is imported here
    version_option = typer.Option(False, "--version", callback=print_version, is_eager=True, help="Print the version.")

    @app.callback()
    def root(version: bool = version_option) -> None:
        pass

    for name, path in (COMMANDS if commands is None else commands).items():
        module = importlib.import_module(path)
        options: dict[str, Any] = getattr(module, "COMMAND_OPTIONS", None) or getattr(module.command, "options", {})
        panel = next((panel for panel, names in PANELS.items() if name in names), None)
        app.command(name, **({"rich_help_panel": panel, "cls": Command} | options))(module.command)
    return app


def settings_tree(name: str) -> Any:
    """The settings class of a command, None where it has a signature of its own."""
    return getattr(importlib.import_module(COMMANDS[name]).command, "tree", None)


def run_guarded(run: Callable[[], Any], program: str = "seeddelta") -> int:
    """Run a command: an error is one line on stderr and exit code 1; SEEDDELTA_DEBUG=1 shows the traceback.

    Returns the exit code of the process.
    """
    streams.prepare()
    before = warnings.formatwarning
    warnings.formatwarning = lambda message, *_: f"{program}: warning: {one_line(message)}\n"  # no line of source
    try:
        code = _exit_code(run, program)
    finally:
        warnings.formatwarning = before
    command = sys.modules.get("seeddelta.cli._command")
    return streams.finish(code, wrote_files=command is not None and command.wrote_files())


def _exit_code(run: Callable[[], Any], program: str) -> int:
    try:
        result = run()
    except SeedDeltaError as error:
        if os.environ.get("SEEDDELTA_DEBUG", "") not in ("", "0"):
            raise
        print(f"{program}: error: {one_line(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        return 130
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except Exception as error:
        if (told := _usage(error, program)) is not None:
            print(told, file=sys.stderr)
            return int(getattr(error, "exit_code", 2))
        if os.environ.get("SEEDDELTA_DEBUG", "") not in ("", "0"):
            raise
        what = f"{type(error).__name__}: {one_line(error)}"
        print(f"{program}: unexpected error: {what} (SEEDDELTA_DEBUG=1 shows where; please report it)", file=sys.stderr)
        return 1
    return result if isinstance(result, int) else 0


def _usage(error: Exception, program: str) -> str | None:
    """What typer says of options that cannot be, in a line; None for other errors.

    Typer's class is not named, since where it comes from (click, or typer's own copy) is the release's.
    """
    if not hasattr(error, "format_message"):
        return None
    message = str(error.format_message())
    context = getattr(error, "ctx", None)
    command, ask = (program, "-h") if context is None else (context.command_path, context.help_option_names[0])
    told = f"{message[:1].lower()}{one_line(message[1:]).rstrip('.')}"
    return f"{program}: error: {told}{'' if told.endswith('?') else ';'} {command} {ask} lists the options"


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the console script. Returns the exit code."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    # the others' modules, which take half a second to import, are needed for the list of commands alone
    name = arguments[0] if arguments else None
    commands = {name: COMMANDS[name]} if name in COMMANDS else None
    # commands that tell how they were called find it in their context
    return run_guarded(
        lambda: make_app(commands)(args=arguments, prog_name="seeddelta", obj=arguments, standalone_mode=False)
    )


if __name__ == "__main__":
    sys.exit(main())
