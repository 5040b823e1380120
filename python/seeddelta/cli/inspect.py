"""`seeddelta inspect`: what is in a SeedΔ file (or in any GGUF)."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ..gguf.header import Header
    from ..gguf.reader import SeedDeltaFile


def command(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="SeedΔ or plain GGUF file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check a file and list its SeedΔ keys and tensors."""
    from ..gguf.header import read_header
    from ..gguf.reader import is_seeddelta, open_seeddelta

    if not is_seeddelta(path):
        summary = {"path": str(path), "seeddelta": False, **_totals(read_header(path))}
        _print_json(summary) if as_json else typer.echo(
            f"{path}: a plain GGUF, no SeedΔ file; {summary['tensors']} tensors, {summary['bytes'] / 2**20:.1f} MiB"
        )
        return
    with open_seeddelta(path) as file:
        summary = _summary(file)
        if as_json:
            _print_json(summary)
        else:
            _print_tables(summary)


def _print_json(summary: dict[str, Any]) -> None:
    typer.echo(json.dumps(summary, indent=2, ensure_ascii=False))


def _totals(header: Header) -> dict[str, Any]:
    return {
        "architecture": header.metadata.get("general.architecture"),
        "tensors": len(header.tensors),
        "bytes": header.file_size,
    }


def _summary(file: SeedDeltaFile) -> dict[str, Any]:
    from ..gguf import schema

    keys = [key for key in file.metadata if key.startswith(schema.PREFIX) and key != schema.KEY_TENSORS]
    tensors = []
    for tensor in file.tensors.values():
        tensors.append(
            tensor.description.model_dump(mode="json")
            | {
                "base_seed": tensor.base_seed,
                "statecells": tensor.description.is_statecells,
                "payload_bytes": tensor.payload_bytes,
                "bits_per_weight": 8 * tensor.payload_bytes / tensor.description.weights,
            }
        )
    weights = sum(tensor.description.weights for tensor in file.tensors.values())
    dense = [file.header.tensors[name] for name in file.dense_tensors]
    dense_bytes, model_weights = sum(info.nbytes for info in dense), weights + sum(prod(info.shape) for info in dense)
    payload = sum(tensor["payload_bytes"] for tensor in tensors)
    return {
        "path": str(file.path),
        "seeddelta": True,
        **_totals(file.header),
        "dense_tensors": len(file.dense_tensors),
        "dense_bytes": dense_bytes,
        "payload_bytes": payload,
        "weights": weights,
        "bits_per_weight": 8 * payload / weights if weights else 0.0,
        "model_weights": model_weights,
        "model_bits_per_weight": 8 * (payload + dense_bytes) / model_weights if model_weights else 0.0,
        "keys": {key: file.metadata[key] for key in keys},
        "converted": tensors,
    }


def _residual(residual: dict[str, Any]) -> str:
    bare = ("scheme", "vals")
    return " ".join(str(value) if key in bare else f"{key}={value}" for key, value in residual.items())


def _print_tables(summary: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console = Console(width=150)
    keys = Table(title=summary["path"], show_header=False)
    for key, value in summary["keys"].items():
        keys.add_row(key, str(value))
    console.print(keys)
    table = Table(title="converted tensors")
    for heading in ("tensor", "shape", "from", "base", "residual", "bits", "rel_l2", "rel_l2_w", ""):
        table.add_column(heading, no_wrap=True)
    for tensor in summary["converted"]:
        base, residual, norms = tensor["base"], tensor["residual"], tensor["norms"]
        rate = (
            f" {base['step_bits']}/{base['values_per_step']} L{base['state_bits']}" if base["kind"] == "trellis" else ""
        )
        if base.get("seed_per", "tensor") != "tensor":
            rate = f" {base['block']}, seed per {base['seed_per']}"
        table.add_row(
            tensor["name"],
            "x".join(map(str, (*filter(None, [tensor["experts"]]), *tensor["shape"]))),
            tensor["source_type"],
            base["kind"] + rate,
            _residual(residual),
            f"{tensor['bits_per_weight']:.3f}",
            f"{norms['err'] / norms['w']:.4f}" if norms["w"] else "0",
            f"{norms['err_w'] / norms['w_w']:.4f}" if norms["w_w"] else "0",
            "unsafe" if tensor["unsafe"] else "statecells" if tensor["statecells"] else "",
        )
    console.print(table)
    console.print(
        f"{len(summary['converted'])} converted tensors: {summary['weights'] / 1e6:.1f}M weights, "
        f"{summary['payload_bytes'] / 2**20:.1f} MiB, {summary['bits_per_weight']:.3f} bits a weight; "
        f"{summary['dense_tensors']} dense tensors: {summary['dense_bytes'] / 2**20:.1f} MiB; "
        f"{summary['model_bits_per_weight']:.3f} bits a weight over the whole model"
    )
