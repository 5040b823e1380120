"""`llama-seeddelta-build`: the builder under the name and flags of the original plan (no subcommand)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from ..errors import needs_extra
from .main import run_guarded


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the console script. Returns the exit code."""
    program = "llama-seeddelta-build"

    def run() -> Any:
        with needs_extra("cli"):
            import rich  # noqa: F401
            import typer
        from . import build

        app = typer.Typer(name=program, add_completion=False, pretty_exceptions_enable=False)
        app.command(**build.command.options)(build.command)  # type: ignore[attr-defined]
        return app(args=None if argv is None else list(argv), prog_name=program, standalone_mode=False)

    return run_guarded(run, program)


if __name__ == "__main__":
    sys.exit(main())
