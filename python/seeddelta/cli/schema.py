"""`seeddelta schema`: the settings of the commands as JSON schema, for editors and other programs."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from ..errors import ConfigError
from ..settings import Settings


def schema_of(tree: type[Settings]) -> dict[str, Any]:
    """JSON schema of a tree of settings, as files for --config are."""
    return tree.model_json_schema()


def command(
    name: Annotated[str, typer.Argument(metavar="[COMMAND]", help="Command whose settings are shown.")] = "",
) -> None:
    """Print the JSON schema of the settings of a command.

    Example: seeddelta schema build > build.schema.json
    """
    from .main import COMMANDS, settings_tree

    trees = {one: tree for one in COMMANDS if (tree := settings_tree(one)) is not None}
    if name and name not in trees:
        raise ConfigError(f"{name}: is no command with settings; choose from {', '.join(trees)}")
    found = schema_of(trees[name]) if name else {one: schema_of(tree) for one, tree in trees.items()}
    typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
