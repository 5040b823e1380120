"""What `seeddelta.load` refuses, and what `seeddelta run` says at its end, in every state of a model."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seeddelta
from seeddelta.cli.main import main
from seeddelta.errors import ConfigError
from tiny_llama import write_llama

pytest.importorskip("llama_cpp")
from llama_cpp import Llama
from seeddelta.runtime.model import SeedDeltaLlama


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory, smollm2_quantized: Path) -> Path:
    return write_llama(tmp_path_factory.mktemp("arguments") / "dense.gguf", smollm2_quantized)


@pytest.fixture(scope="module")
def tiny(dense: Path) -> Path:
    path = dense.with_name("tiny.gguf")
    seeddelta.build(seeddelta.Recipe(input=dense, output=path, bits=4, targets="all"), progress=False)
    return path


@pytest.mark.parametrize(
    ("keyword", "message"),
    [
        ("kwta", r"option of the run time: config=seeddelta\.RuntimeConfig\(kwta="),
        ("n_thread", "did you mean n_threads"),
        ("fallbak", "did you mean fallback"),
        ("xyzzy", "see llama_cpp.Llama and seeddelta.RuntimeConfig"),
    ],
)
@pytest.mark.parametrize("plain", [True, False])
def test_unknown_keywords(tiny: Path, dense: Path, keyword: str, message: str, plain: bool) -> None:
    options: dict[str, Any] = {keyword: True}
    with pytest.raises(ConfigError, match=message):
        seeddelta.load(dense if plain else tiny, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_ctx": "2048"}, "n_ctx='2048': give a whole number"),
        ({"n_ctx": None}, "n_ctx=None: give a whole number"),
        ({"config": "exact"}, "config='exact': give a seeddelta.RuntimeConfig, or its options as a dict"),
        ({"config": {"atention": "exact"}}, "atention"),
    ],
)
def test_values_of_other_types(tiny: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        seeddelta.load(tiny, **options)


def test_a_config_may_be_a_dict(tiny: Path) -> None:
    for config, ours in (({}, True), ({"attention": "llama"}, False)):
        llm = seeddelta.load(tiny, n_ctx=64, config=config)
        llm.eval([1, 2])
        assert ("attention.exact" in llm.seeddelta.metrics()) == ours
        llm.close()


def run(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["run", "-p", "The sea", "-n", "3", "-t", "1", "-v", *arguments]) == 0
    return capfd.readouterr().err


def test_summary_when_every_tensor_misses_the_gap(tiny: Path, dense: Path, capfd: pytest.CaptureFixture[str]) -> None:
    said = run(capfd, "-m", str(tiny), "--seeddelta-gap", "0.005", "--seeddelta-fallback", str(dense))
    assert " 0 products" in said
    assert "converted matrices" not in said


def test_summary_without_proc_sparse(dense: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "proc.gguf"
    recipe = seeddelta.Recipe(input=dense, output=path, proc_sparse=True, targets="ffn", seeddelta_gap=9)
    seeddelta.build(recipe, progress=False)
    assert "converted matrices" in run(capfd, "-m", str(path))
    assert " 0 products" in run(capfd, "-m", str(path), "--no-proc-sparse", "--seeddelta-fallback", str(dense))


@pytest.mark.parametrize(
    "arguments", [["--kwta-k", "0.5"], ["--state-pack", "ternary"], ["--event-driven=on"], ["--n-predict", "1"]]
)
def test_summary_of_columns(dense: Path, arguments: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert "weights by columns" in run(capfd, "-m", str(dense), "--columns", "f16", *arguments)


def test_every_counter_has_its_sum(tiny: Path) -> None:
    llm = seeddelta.load(tiny, n_ctx=32, n_batch=32, verbose=False)
    llm.eval(range(5, 25))
    counters, metrics = llm.seeddelta.counters(), llm.seeddelta.metrics()
    names = set.union(*map(set, counters.values()))
    assert {"calls", "tokens", "rewrites", "dense_calls", "blocks"} <= names
    assert metrics["seeddelta.calls"] > 0
    for name in names:
        assert metrics[f"seeddelta.{name}"] == sum(counts[name] for counts in counters.values())


def test_the_gap_of_a_build_is_that_of_a_run(dense: Path, tmp_path: Path) -> None:
    """The figure that the builder compares with its gap is in the file, and the run time compares the same one: with
    an importance, and with a covariance, it is another one than that of the plain norms."""
    from seeddelta.calibrate import capture, write_covariance

    text = tmp_path / "text.txt"
    text.write_text("The old city lay between two rivers, and its people went to sea. " * 60)
    covariance = tmp_path / "covariance"
    write_covariance(covariance, capture(dense, text, ctx=64, chunks=3, progress=False))
    path = tmp_path / "weighted.gguf"
    report = seeddelta.build(
        seeddelta.Recipe(input=dense, output=path, bits=2, targets="all", hessian=covariance, seeddelta_gap=9),
        progress=False,
    )
    errors = {row.name: row.metrics.error for row in report.tensors if row.metrics is not None}
    plain = {row.name: row.metrics.rel_l2 for row in report.tensors if row.metrics is not None}
    with seeddelta.open_seeddelta(path) as file:
        assert {name: tensor.description.norms.error for name, tensor in file.tensors.items()} == errors
    gap = float(np.median(list(errors.values())))
    far = {name for name, error in errors.items() if error > gap}
    assert far != {name for name, error in plain.items() if error > gap}
    again = seeddelta.Recipe(
        input=dense, output=tmp_path / "b.gguf", bits=2, targets="all", hessian=covariance, seeddelta_gap=gap
    )
    assert {row.name for row in seeddelta.build(again, progress=False).kept_dense} == far
    config = seeddelta.RuntimeConfig(gap=gap, fallback=dense)
    assert set(seeddelta.load(path, config=config, verbose=False, n_ctx=32, n_batch=32).seeddelta.dense) == far


@pytest.mark.parametrize("plain", [True, False])
def test_context_beyond_that_of_the_training(
    tiny: Path, dense: Path, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model has 256: a longer context is warned of, unless each sequence has less or positions are scaled."""
    path = str(dense if plain else tiny)
    with pytest.warns(RuntimeWarning, match="n_ctx is 512, but .* contexts of at most 256") as found:
        seeddelta.load(path, n_ctx=512).close()
    assert [Path(one.filename) for one in found] == [Path(__file__)]  # where it was loaded
    closed = []
    monkeypatch.setattr(SeedDeltaLlama, "close", lambda llm: closed.append(llm) or Llama.close(llm))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning, match="n_ctx is 512"):
            seeddelta.load(path, n_ctx=512)
    assert len(closed) == 1
    monkeypatch.undo()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        seeddelta.load(path, n_ctx=256).close()
        seeddelta.load(path, n_ctx=512, parallel=2).close()
        seeddelta.load(path, n_ctx=512, rope_freq_scale=0.5).close()
