"""`seeddelta quantize`: an original model to a SeedΔ file in one command, block by block."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from ..convert.recipe import QUANTIZE_PRESET, Recipe, with_rate
from ..errors import SeedDeltaError
from ..settings import Flag
from ..settings.calibration import CHUNKS
from ..settings.measuring import QUIET
from ..settings.recipe import INPUT_HELP, PRESET_HELP
from ..settings.tree import STDOUT
from ._command import from_settings
from ._options import put_json

if TYPE_CHECKING:
    from ..evaluate.losses import EmbeddingLoss, Loss

_OWN = ("input", "output", "text", "chunks", "ctx", "ram", "quiet", "check")


class QuantizeSettings(Recipe):
    """A recipe, and what its inputs are measured on."""

    rare: ClassVar[frozenset[str]] = frozenset(("layers", "imatrix", "hessian", "executor"))

    input: Annotated[Path, Flag(argument=True, metavar="MODEL", panel="File")] = Field(description=INPUT_HELP)
    preset: Annotated[str, Flag(shown=True, metavar="NAME", panel="File", decides="nothing")] = Field(
        default=QUANTIZE_PRESET, description=PRESET_HELP
    )
    quality: Annotated[Literal["fast", "normal", "best"], Flag(shown=True, panel="File")] = Field(
        default="normal",
        description="How much work to do; best takes about four times as long, often for a lower KL divergence. It has "
        "sequential calibration and gradients, where the model allows them (alone: --set calibrate=sequential, --set "
        "gradient=auto); fast keeps one encoding of each row in its search (--set effort=fast).",
    )
    text: Annotated[
        tuple[Path, ...],
        Flag(names=("--text", "-f"), shown=True, metavar="FILE|package", repeat=True, panel="Calibration"),
    ] = Field(
        default=(),
        description="Calibration text, like what the model will read. In UTF-8, and never one that you evaluate on. "
        "May be given often: each text gets equally many chunks. Default: package, the mixed text of the package.",
    )
    chunks: Annotated[int, Flag(shown=True, panel="Calibration")] = Field(
        default=CHUNKS, ge=1, description="Chunks of text, taken from all over the texts."
    )
    ctx: Annotated[int, Flag(names=("--ctx", "-c"), panel="Calibration")] = Field(
        default=512, ge=1, description="Tokens a chunk."
    )
    calibrate: Annotated[Literal["dense", "sequential"] | None, Flag(file_only=True)] = Field(
        default=None,
        description="Calibrate each layer on the outputs of the original layers (dense), or on those of the layers "
        "that are already encoded (sequential): lower KL divergence, slower, more memory. Default: as --quality says.",
    )
    check: Annotated[int, Flag(shown=True, metavar="N", panel="Calibration")] = Field(
        default=4,
        ge=0,
        description="Chunks of the text to compare the result with the original on; 0: none. They are held out of the "
        "calibration, and as many are of a text of another kind; -q alone skips it, too.",
    )
    gradient: Annotated[Path | None, Flag(metavar="auto|FILE", file_only=True, decides="choice")] = Field(
        default=None,
        description="Use gradients for feedback of errors between rows: lower KL divergence, slower. auto "
        "measures them first (llama, mistral, qwen, gemma, phi3 and others: see docs/guide/architectures.md), FILE is "
        "from seeddelta imatrix --gradient.",
    )
    resume: Annotated[bool, Flag(shown=True, panel="Run", decides="nothing")] = Field(
        default=True, description="Resume from OUTPUT.parts, where an earlier run stopped."
    )
    ram: Annotated[str, Flag(shown=True, metavar="SIZE", panel="Run")] = Field(
        default="8G",
        examples=["6G"],
        description="Memory to use at most. A matrix that takes more is encoded all the same, with a warning.",
    )
    quiet: Annotated[bool, QUIET] = Field(default=False, description="No progress bar, no table, no comparison.")

    @model_validator(mode="before")
    @classmethod
    def _choose_rate(cls, options: dict[str, Any]) -> dict[str, Any]:
        return with_rate(options)


@from_settings(QuantizeSettings)
def command(settings: QuantizeSettings) -> None:
    """Convert a model to a SeedΔ file: calibrate and encode one layer after the other.

    Memory does not grow with the number of layers. An interrupted run resumes.

    Example: seeddelta quantize model-f16.gguf -o model.seeddelta.gguf

    Example: seeddelta quantize model-f16.gguf -o model.seeddelta.gguf --bits 4 --ram 6G

    Example: seeddelta quantize model-f16.gguf -o model.seeddelta.gguf --bits 4 --quality best

    Example: seeddelta quantize owner/name -o model.seeddelta.gguf
    """
    with settings.with_dense_input(progress=not settings.quiet) as local:
        assert isinstance(local, QuantizeSettings)
        _quantize(local)


def _quantize(settings: QuantizeSettings) -> None:
    from ..convert.quantize import estimate_quantize, quantize
    from ..report.tables import make_console

    measured: dict[str, Any] = settings.model_dump(include={"text", "ctx", "chunks", "ram"})
    measured |= settings.model_dump(exclude_unset=True, exclude={*_OWN, "report_json"})
    report = quantize(settings.input, settings.output, progress=not settings.quiet, **measured)
    checked = settings.check > 0 and not settings.dry_run and (settings.report_json or not settings.quiet)
    try:
        found = _losses(settings, Path(report.files[0])) if checked else []
    except SeedDeltaError as error:  # the file is there, and as it should be
        found = []
        make_console(stderr=True).print(f"not compared with the original model: {error}", soft_wrap=True)
    told = report.model_copy(update={"losses": tuple(loss.to_dict() for loss in found)})
    to = settings.report_json
    if (put_json(None if settings.dry_run and to != STDOUT else to, told.model_dump(mode="json"))) or settings.quiet:
        return
    console = make_console()
    console.print(report.to_table())
    if settings.dry_run:
        needs = estimate_quantize(settings.input, settings.output, **measured)
        console.print(f"dry run: {settings.output} is not written: {report.sizes}", soft_wrap=True)
        console.print(f"it takes {needs}", soft_wrap=True)
    else:
        console.print(f"{settings.output}: {report.sizes}", soft_wrap=True)
        if report.predicted_divergence is not None:
            expected = f"{report.predicted_divergence:.4f} nats"
            console.print(f"predicted from the gradients: KL divergence {expected}", soft_wrap=True)
        for loss in found:
            console.print(str(loss), soft_wrap=True)


def _shown(text: Path) -> str:
    from ..calibrate.text import bundled_text

    return "the package's calibration text" if text == bundled_text() else text.name


def _losses(settings: QuantizeSettings, model: Path) -> list[Loss | EmbeddingLoss]:
    """On chunks of the calibration's texts that it does not use, and on another text.

    Raises as `losses`.
    """
    from ..calibrate.text import bundled_text, excerpt, python_help, shares, text_files
    from ..evaluate.losses import losses

    dense = settings.input
    own = text_files(settings.text)
    texts = {
        f"held out of {_shown(text)}": excerpt(dense, text, settings.ctx, settings.check, calibrated=share or 0)
        for text, share in zip(own, shares(settings.chunks, own), strict=True)
    }
    if bundled_text() in own:
        texts["Python's help"] = excerpt(dense, "\n".join(python_help()).encode(), settings.ctx, settings.check)
    else:
        texts["the text of the package"] = excerpt(dense, bundled_text(), settings.ctx, settings.check)
    return losses(
        dense, model, {name: text for name, text in texts.items() if text[1]}, ctx=settings.ctx,
        threads=settings.threads or None, progress=not settings.quiet,
    )  # fmt: skip
