"""Settings of the commands that look into files or change them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from .measuring import QUIET
from .tree import JSON, JSON_HELP, Flag, Settings


class InspectSettings(Settings):
    """`seeddelta inspect`."""

    path: Annotated[Path, Flag(argument=True, metavar="FILE")] = Field(description="SeedΔ or plain GGUF file.")
    as_json: Annotated[Path | None, JSON] = Field(default=None, description=JSON_HELP)


class VerifySettings(Settings):
    """`seeddelta verify`."""

    path: Annotated[Path, Flag(argument=True, metavar="FILE")] = Field(description="SeedΔ file.")
    source: Annotated[Path | None, Flag(shown=True, metavar="DENSE.GGUF")] = Field(
        default=None, description="Dense model that it was made from."
    )
    imatrix: Annotated[Path | None, Flag(shown=True)] = Field(
        default=None, description="Importance matrix of the build: weighted norms, too."
    )
    hessian: Annotated[Path | None, Flag(shown=True)] = Field(
        default=None, description="Covariance of the build: weighted norms, too."
    )
    as_json: Annotated[Path | None, JSON] = Field(default=None, description=JSON_HELP)
    quiet: Annotated[bool, QUIET] = Field(default=False, description="No progress bar; nothing where all agrees.")


class DequantizeSettings(Settings):
    """`seeddelta dequantize`."""

    source: Annotated[Path, Flag(argument=True, metavar="MODEL")] = Field(description="SeedΔ or quantized GGUF model.")
    output: Annotated[Path, Flag(output="file", names=("--output", "-o"))] = Field(
        description="Plain GGUF model to write."
    )
    type: Annotated[str, Flag(shown=True, metavar="TYPE")] = Field(
        default="f16", description="Type of the matrices: f32, f16, bf16, q8_0, q5_1 … q4_0."
    )
    quiet: Annotated[bool, QUIET] = Field(default=False, description="No progress bar.")


class CardSettings(Settings):
    """`seeddelta card`."""

    model: Annotated[Path, Flag(argument=True, metavar="MODEL")] = Field(description="SeedΔ file.")
    evaluation: Annotated[Path | None, Flag(names=("--eval",), shown=True)] = Field(
        default=None, description="What `seeddelta eval --json` printed; makes a table."
    )
    base_model: Annotated[str | None, Flag(shown=True, metavar="OWNER/NAME")] = Field(
        default=None, description="The model on the hub that it was made from."
    )
    license: Annotated[str | None, Flag(shown=True)] = Field(
        default=None, description="License as the hub calls it. Default: what the file says."
    )
    output: Annotated[Path | None, Flag(output="file", names=("--output", "-o"), shown=True)] = Field(
        default=None, description="Write it here, README.md for one. Default: stdout."
    )
