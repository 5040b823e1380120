"""The package as a Python programmer meets it: names, signatures, helps and errors."""

from __future__ import annotations

import ast
import importlib
import inspect
import pickle
from pathlib import Path

import pytest
import seeddelta
from seeddelta.convert.recipe import Recipe
from seeddelta.errors import MissingFileError, RecipeError

SHOWN = ("load", "quantize", "evaluate", "bench")


def test_names_are_the_public_ones() -> None:
    assert dir(seeddelta) == sorted(seeddelta.__all__)
    assert all(getattr(seeddelta, name) is not None for name in dir(seeddelta))


@pytest.mark.parametrize("name", SHOWN)
def test_helps(name: str) -> None:
    """Every parameter is explained and there is an example whose keywords the function has."""
    pytest.importorskip("llama_cpp")
    function = getattr(seeddelta, name)
    parameters = inspect.signature(function).parameters
    text = inspect.getdoc(function) or ""
    sections = text.split("\nArgs:\n")[1].split("\nRaises:\n")[0]
    assert all(parameter in sections for parameter in parameters)
    example = text.split("\nExamples:\n")[1]
    (call,) = (node for node in ast.walk(ast.parse(_code(example))) if _called(node) == name)
    assert {keyword.arg for keyword in call.keywords} <= {*parameters, *Recipe.model_fields, "n_ctx"}


def _code(example: str) -> str:
    return "\n".join(line.removeprefix("    >>> ") for line in example.splitlines() if line.startswith("    >>> "))


def _called(node: ast.AST) -> str | None:
    own = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value)
    return node.func.attr if own == "seeddelta" else None


def test_quantize_has_the_usual_options_by_name() -> None:
    parameters = inspect.signature(seeddelta.quantize).parameters
    assert {"bits", "size", "preset", "quality", "text", "ram", "threads", "dry_run"} <= set(parameters)


def test_options_that_are_not_known(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"setting 'bit' is not known; did you mean bits\?"):
        seeddelta.quantize("model.gguf", tmp_path / "out.gguf", bit=4)
    with pytest.raises(RecipeError, match="calibrate 'odd' is not known"):
        seeddelta.quantize("model.gguf", tmp_path / "out.gguf", calibrate="odd")


def test_a_missing_file_is_one_of_pythons_errors(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    missing = tmp_path / "none.gguf"
    for call in (
        lambda: seeddelta.load(missing),
        lambda: seeddelta.quantize(missing, tmp_path / "out.gguf"),
        lambda: seeddelta.evaluate([missing]),
        lambda: seeddelta.bench([missing]),
        lambda: seeddelta.open_seeddelta(missing),
        lambda: seeddelta.dequantize(missing, tmp_path / "out.gguf"),
    ):
        with pytest.raises(FileNotFoundError, match=r"none\.gguf: no such file") as raised:
            call()
        assert isinstance(raised.value, seeddelta.SeedDeltaError)
    again = pickle.loads(pickle.dumps(MissingFileError("a: no such file")))
    assert (type(again), str(again)) == (MissingFileError, "a: no such file")


def test_loading_is_quiet(tiny_dense: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("llama_cpp")
    seeddelta.load(tiny_dense).close()
    assert capfd.readouterr() == ("", "")
    seeddelta.load(tiny_dense, verbose=True).close()
    assert "llama_model_loader" in capfd.readouterr().err


def test_bench(tiny_dense: Path) -> None:
    pytest.importorskip("llama_cpp")
    found = seeddelta.bench([tiny_dense], threads=1, reps=2, n_prompt=16, n_gen=4)
    (speed,) = found.models[0].speed
    assert (speed.n_prompt, speed.n_gen, len(speed.prompt), len(speed.generation)) == (16, 4, 2, 2)
    assert found.models[0].perplexity is None


def test_a_package_that_is_called_shows_its_function() -> None:
    package = importlib.import_module("seeddelta.evaluate")
    assert inspect.signature(package) == inspect.signature(package.evaluate)
    assert package.__doc__ == package.evaluate.__doc__


def test_bits_of_0_are_out_of_range(tiny_dense: Path, tmp_path: Path) -> None:
    """They are given, and not the same as none."""
    with pytest.raises(RecipeError, match="bits"):
        seeddelta.quantize(tiny_dense, tmp_path / "o.gguf", bits=0)
