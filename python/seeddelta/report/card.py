"""A model's page on the Hugging Face hub, from what its file and a comparison say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import EvaluationError, SourceModelError, needs_extra, one_line
from ..evaluate.measurements import read_measurements
from ..evaluate.table import headings, model_values, settings_text
from ..gguf import schema
from ..gguf.hub import located
from ..gguf.model_file import read_header
from ..gguf.reader import is_seeddelta, open_seeddelta
from ..inspection.summary import origin_of, summarize


def model_card(
    path: Path, *, base_model: str | None = None, license: str | None = None, evaluation: Path | None = None
) -> str:
    """Markdown with the hub's metadata in front.

    Args:
        path: a SeedΔ file, or its address on the hub.
        base_model: `owner/name` of the model that it was made from.
        license: as the hub calls it; default: what the file says.
        evaluation: what `seeddelta eval --json` printed. The file is found in it by its name.

    Raises SourceModelError for a file that is not SeedΔ, EvaluationError for an evaluation that does not fit.
    """
    with needs_extra("hub"):
        from huggingface_hub import ModelCard, ModelCardData
    path = located(path)
    if not is_seeddelta(path):
        raise SourceModelError(f"{path}: not a SeedΔ file; make one with `seeddelta quantize`")
    found = summarize(open_seeddelta(path))
    metadata = read_header(path).metadata
    data = ModelCardData(
        base_model=base_model,
        base_model_relation=None if base_model is None else "quantized",
        license=license or metadata.get("general.license"),
        library_name="seeddelta",
        pipeline_tag="text-generation",
        tags=["gguf", "seeddelta", "quantized"],
    )
    name = metadata.get("general.name") or path.name.removesuffix(".seeddelta.gguf")
    lines = [f"---\n{data.to_yaml()}\n---", *_body(path, name, found)]
    if evaluation is not None:
        lines += _measurements(path, evaluation)
    return str(ModelCard("\n".join(lines) + "\n"))


def _body(path: Path, name: str, found: Mapping[str, Any]) -> Iterator[str]:
    yield f"# {name} as SeedΔ"
    yield (
        f"{found['bytes'] / 1e6:.0f} MB; {found['weights'] / 1e6:.1f} million of {found['model_weights'] / 1e6:.1f} "
        f"million weights at {found['bits_per_weight']:.2f} bits, {found['model_bits_per_weight']:.2f} bits per "
        "weight over the whole model.\n"
    )
    yield "## How to run it\n```bash\npip install 'seeddelta[cli,llama,serve]'"
    yield f'seeddelta run {path.name} -p "Once upon a time" -n 64'
    yield f"seeddelta serve {path.name}\n```\n"
    yield "## How it was made"
    yield "| | |\n| --- | --- |"
    source = found["keys"].get(schema.KEY_SOURCE_SHA256)
    facts = [fact for fact in origin_of(found) if fact[0] not in ("model", "checksums")]
    for label, text in [*facts, *([] if source is None else [("SHA-256 of the original", source)])]:
        cell = one_line(text).replace("|", "\\|")
        yield f"| {label} | {cell} |"
    yield "\n| matrices | number | bits per weight | relative error |\n| --- | --- | --- | --- |"
    for role in found["roles"]:
        yield f"| {role['role']} | {role['tensors']} | {role['bits_per_weight']:.2f} | {role['rel_l2']:.4f} |"


def _measurements(path: Path, evaluation: Path) -> Iterator[str]:
    series = read_measurements(evaluation)[0]
    paths = [Path(model["path"]).name for model in series.models]
    if path.name not in paths:
        raise EvaluationError(f"{evaluation}: has no model {path.name}, only {', '.join(paths)}")
    yield "\n## How good it is"
    yield f"{settings_text(series)}.\n"
    columns = headings(series)
    yield f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}"
    for model in series.models:
        values = model_values(model, series)
        yield f"| {' | '.join(cell(values) for cell in columns.values())} |"
