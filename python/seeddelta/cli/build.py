"""`seeddelta build`: the options are the fields of Recipe, the help texts their descriptions."""

from __future__ import annotations

import inspect
from typing import Annotated, Any, Optional

import typer
from typer.core import TyperCommand

from ..convert.recipe import Recipe, read_yaml
from ..errors import RecipeError

# field -> flags, where they are not just --the-field; the --seeddelta-* ones are the names of the seed's patch plan
FLAGS: dict[str, tuple[str, ...]] = {
    "input": ("--input", "-i"),
    "output": ("--output", "-o"),
    "K": ("--K",),
    "scheme": ("--scheme", "--seeddelta-scheme"),
    "vals": ("--vals", "--seeddelta-vals"),
    "row_scale": ("--row-scale", "--seeddelta-row-scale"),
    "threads": ("--threads", "-t"),
    "resume": ("--resume/--no-resume",),
}
METAVARS = {
    "base_kind": "prng_block|fht_struct|trellis|lanes|none",
    "scheme": "coo|block|codebook|none",
    "vals": "fp16|int8",
    "row_scale": "f16|f32",
    "bits": "1|1.5|2|2.5|3|4|5|6",
    "tensor_type": "REGEX=RATE",
    "target_bpw": "BITS",
    "target_size": "SIZE",
    "state_bits": "12|14|16",
    "block": "8|16|32|64",
    "seed_per": "tensor|row|block",
    "layers": "A-B",
    "layout": "auto|row|column",
    "column_tensor": "REGEX",
    "K": "N|auto",
    "executor": "threads[:N]|processes[:N]|dask://host:port",
    "checkpoint": "DIR",
    "rotation_block": "N|auto",
    "proc_target": "mlp|attn|both",
    "proc_block": "32|64",
}
# typed by the command line; the rest are strings that the recipe checks
_TYPES: dict[str, Any] = {
    "dry_run": bool, "proc_sparse": bool, "tensor_type": list[str],
    "column_tensor": list[str], "no_checkpoint": bool, "resume": Optional[bool],  # noqa: UP045
}  # fmt: skip
_EMPTY: dict[Any, Any] = {bool: False, list[str]: []}
_NOT_SHOWN = ("layers", "K", "imatrix", "report_json", "base_scale", "scheme", "dry_run", "input", "output", "hessian",
              "tensor_type", "proc_sparse", "column_tensor", "target_bpw", "target_size", "checkpoint",
              "no_checkpoint")  # fmt: skip


class BuildCommand(TyperCommand):
    """Takes what the seeds write: `--row-scale` alone or with f16 or f32, and `--proc-sparse=on`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        spelled = ["--proc-sparse" if argument == "--proc-sparse=on" else argument for argument in args]
        return super().parse_args(ctx, expand_row_scale(spelled))


COMMAND_OPTIONS: dict[str, Any] = {"cls": BuildCommand, "no_args_is_help": True}


def expand_row_scale(args: list[str]) -> list[str]:
    """Arguments in which a bare --row-scale has the value f16."""
    expanded = []
    for at, argument in enumerate(args):
        expanded.append(argument)
        if argument in FLAGS["row_scale"] and (at + 1 == len(args) or args[at + 1] not in ("f16", "f32")):
            expanded.append("f16")
    return expanded


def run_build(options: dict[str, Any], *, quiet: bool = False) -> None:
    """Build from the options that were given, with a progress bar and a table of the result."""
    from rich.console import Console

    from ..convert import build

    recipe = Recipe(**options)
    report = build(recipe, progress=not quiet)
    if quiet:
        return
    console = Console()
    if not console.is_terminal:
        console = Console(width=150)
    console.print(report.to_table())
    bits = (
        f"{report.bits_per_weight:.3f} bits a converted weight, {report.model_bits_per_weight:.3f} over the whole model"
    )
    if recipe.dry_run:
        size = report.model_bytes_after / 2**20
        console.print(
            f"dry run: {recipe.output} is not written; it would have {size:.1f} MiB of tensors, {bits}; in memory they "
            f"take as much when the model runs, the dense ones {report.model_bytes_before / 2**20:.1f} MiB",
            soft_wrap=True,
        )
    else:
        size = report.file_bytes / 2**20
        console.print(f"{recipe.output}: {size:.1f} MiB, {bits}", soft_wrap=True)
    if report.kept_dense:
        console.print(
            f"{len(report.kept_dense)} tensors are kept dense, beyond --seeddelta-gap {recipe.seeddelta_gap:g}"
        )


def command(**given: Any) -> None:
    """Convert a dense GGUF model into a SeedΔ file.

    Example: seeddelta build -i model-f16.gguf -o model.seeddelta.gguf --bits 4
    """
    config, quiet = given.pop("config", None), bool(given.pop("quiet", False))
    given.pop("seeddelta", None)  # the builder makes nothing else
    statecells = bool(given.pop("statecells", False))
    options = {} if config is None else read_yaml(config)
    for name, value in given.items():  # what was not given is None, False or [], but --no-resume is False, too
        if value not in (None, False, []) or (name == "resume" and value is False):
            options[name] = _convert(name, value)
    if statecells:
        options = _statecells(options)
    missing = [FLAGS[name][1] for name in ("input", "output") if name not in options]
    if missing:
        raise RecipeError(f"{' and '.join(missing)} must be given; see --help")
    run_build(options, quiet=quiet)


def _statecells(options: dict[str, Any]) -> dict[str, Any]:
    """Options with the preset statecells. Raises RecipeError for those that make another kind of weight."""
    for name, wanted in (
        ("preset", ("statecells",)),
        ("base_kind", ("none",)),
        ("scheme", ("codebook", "codebook_resid")),
    ):
        if options.get(name, wanted[0]) not in wanted:
            raise RecipeError(
                f"--statecells makes a codebook the whole weight; leave out --{name.replace('_', '-')} {options[name]}"
            )
    return options | {"preset": "statecells"}


def _convert(name: str, value: Any) -> Any:
    """Numbers for fields that are numbers or literals of numbers; pydantic checks the rest."""
    if name in _TYPES or not isinstance(value, str):
        return value
    if name in ("state_bits", "block", "K", "rotation_block", "seed", "proc_block"):
        try:
            return int(value, 0)
        except ValueError:
            return value
    return value


def _parameters() -> list[inspect.Parameter]:
    parameters = []
    for name, field in Recipe.model_fields.items():
        flags = FLAGS.get(name, (f"--{name.replace('_', '-')}",))
        text = field.description or ""
        if name not in _NOT_SHOWN:
            text = f"{text} [default: {field.default}]"
        option = typer.Option(*flags, help=text, metavar=METAVARS.get(name), show_default=False)
        annotation = _TYPES.get(name, Optional[str])  # noqa: UP045 (older typer cannot read `str | None`)
        parameters.append(_parameter(name, annotation, option, _EMPTY.get(annotation)))
    more = {
        "config": (
            Optional[str],  # noqa: UP045
            typer.Option("--config", "--recipe", help="YAML file of options; those given here win."),
            None,
        ),
        "quiet": (bool, typer.Option("--quiet", "-q", help="No progress bar and no table."), False),
        "seeddelta": (
            bool,
            typer.Option("--seeddelta", help="Accepted for the seed's command line; always on."),
            False,
        ),
        "statecells": (
            bool,
            typer.Option(
                "--statecells",
                help="A codebook as the whole weight: --preset statecells, docs/guide/statecells.md.",
            ),
            False,
        ),
    }
    return parameters + [_parameter(name, *rest) for name, rest in more.items()]


def _parameter(name: str, annotation: Any, option: Any, default: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=Annotated[annotation, option])


# typer reads the signature: one option for each field of the recipe
command.__signature__ = inspect.Signature(_parameters())  # type: ignore[attr-defined]
command.__annotations__ = {parameter.name: parameter.annotation for parameter in _parameters()}
