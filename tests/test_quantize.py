"""`seeddelta.quantize`: from an original model to a SeedΔ file, the same bytes however it gets there."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seeddelta
import tiny_llama
from llama_helpers import load_small, logits_of, tokens_of
from seeddelta.calibrate import capture, capture_gradient, groups, write_covariance
from seeddelta.calibrate.engine import BlockEngine
from seeddelta.calibrate.text import bundled_text, excerpt, read_texts, read_windows, shares, text_files
from seeddelta.cli.main import main
from seeddelta.convert import memory, quantize, sequential
from seeddelta.convert.plan import make_plan
from seeddelta.convert.prices import price
from seeddelta.convert.quality import chosen
from seeddelta.convert.recipe import Recipe
from seeddelta.errors import EvaluationError, ImatrixError, MemoryWarning, NotAvailableError, RecipeError
from seeddelta.gguf.model_file import read_header

pytest.importorskip("llama_cpp")
OPTIONS: dict[str, Any] = {"ctx": 64, "chunks": 4, "bits": 4, "threads": 1, "effort": "fast", "progress": False}


@pytest.fixture(scope="module")
def made(tiny_dense: Path, tiny_text: Path, model_dir: Path) -> Path:
    path = model_dir / "tiny-quantize.seeddelta.gguf"
    report = seeddelta.quantize(tiny_dense, path, text=tiny_text, **OPTIONS)
    assert {row.method for row in report.tensors} == {"feedback"}
    return path


def test_it_is_what_imatrix_and_build_make(tiny_dense: Path, tiny_text: Path, made: Path, tmp_path: Path) -> None:
    tokens = read_windows(tiny_dense, tiny_text, "text", OPTIONS["ctx"], OPTIONS["chunks"]).tokens.ravel()
    captured = capture(tiny_dense, tokens, ctx=OPTIONS["ctx"], threads=2, progress=False)
    write_covariance(tmp_path / "cov.gguf", captured)
    built = tmp_path / "built.gguf"
    recipe = Recipe(input=tiny_dense, output=built, bits=4, effort="fast", hessian=tmp_path / "cov.gguf")
    seeddelta.build(recipe, progress=False)
    ours, theirs = seeddelta.open_seeddelta(made), seeddelta.open_seeddelta(built)
    assert set(ours.tensors) == set(theirs.tensors)
    for name, tensor in theirs.tensors.items():
        for suffix, array in tensor.arrays.items():
            np.testing.assert_array_equal(ours.tensors[name].arrays[suffix], array, name)


@pytest.mark.parametrize("calibrate", ["dense", "sequential"])
def test_gradients_that_are_measured_on_the_way(
    tiny_dense: Path, tiny_text: Path, made: Path, tmp_path: Path, calibrate: str
) -> None:
    given, measured = tmp_path / "given.gguf", tmp_path / "measured.gguf"
    priced = partial(price, recipe=Recipe(input=tiny_dense, output=given))
    capture_gradient(
        tiny_dense, tiny_text, tmp_path / "gradient.gguf", ctx=OPTIONS["ctx"], threads=2, price=priced, progress=False
    )
    options = OPTIONS | {"text": tiny_text, "calibrate": calibrate}
    seeddelta.quantize(tiny_dense, given, gradient=tmp_path / "gradient.gguf", **options)
    report = seeddelta.quantize(tiny_dense, measured, gradient="auto", **options)
    assert measured.read_bytes() == given.read_bytes()
    assert all(row.metrics.rel_grad is not None for row in report.tensors if row.name.startswith("blk."))
    assert not measured.with_name("measured.gguf.parts").exists()
    codes = [seeddelta.open_seeddelta(path).tensors["blk.0.attn_q.weight"].arrays["codes"] for path in (made, measured)]
    assert not np.array_equal(*codes)


def test_gradients_of_other_models_are_refused_at_once(
    smollm2_quantized: Path, tiny_text: Path, tmp_path: Path
) -> None:
    other = tiny_llama.write_mpt(tmp_path / "mpt.gguf", smollm2_quantized)
    for dry_run in (True, False):
        with pytest.raises(NotAvailableError, match="mpt"):
            seeddelta.quantize(
                other, tmp_path / "out.gguf", text=tiny_text, gradient="auto", dry_run=dry_run, **OPTIONS
            )
    assert not list(tmp_path.glob("out*"))


def test_it_runs_and_says_what_it_was_measured_on(tiny_dense: Path, made: Path, tiny_text: Path) -> None:
    dense, ours = load_small(tiny_dense), load_small(made)
    tokens = tokens_of(dense, 40)
    expected, found = logits_of(dense, tokens), logits_of(ours, tokens)
    assert np.linalg.norm(found - expected) < 0.35 * np.linalg.norm(expected)
    assert ours.seeddelta.metrics()
    metadata = read_header(made).metadata
    assert metadata["seeddelta.calibration.text"] == tiny_text.name
    assert metadata["seeddelta.calibration.chunks"] == OPTIONS["chunks"]
    assert [path.name for path in made.parent.iterdir() if path.name.startswith(made.name)] == [made.name]


@pytest.mark.parametrize("change", [{"threads": 3}, {"executor": "threads:2"}, {"chunks": 4}])
def test_bytes_do_not_depend_on_the_machine(
    tiny_dense: Path, tiny_text: Path, made: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    path = tmp_path / made.name
    seeddelta.quantize(tiny_dense, path, text=tiny_text, **(OPTIONS | change))
    assert path.read_bytes() == made.read_bytes()


def test_bytes_do_not_depend_on_the_memory(
    tiny_dense: Path, tiny_text: Path, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With room for one covariance at a time every block is run more than once."""
    runs = []
    original = BlockEngine.run

    def counted(self: BlockEngine, group: groups.Group, summed: Any, **options: Any) -> Any:
        runs.append(group.first)
        return original(self, group, summed, **options)

    monkeypatch.setattr(BlockEngine, "run", counted)
    monkeypatch.setattr(memory, "sums_limit", lambda *_: 0)
    monkeypatch.setattr(quantize, "sums_limit", lambda *_: 40_000)
    path = tmp_path / made.name
    seeddelta.quantize(tiny_dense, path, text=tiny_text, **OPTIONS)
    assert path.read_bytes() == made.read_bytes()
    assert min(runs.count(0), runs.count(1)) >= 3
    monkeypatch.setattr(quantize, "sums_limit", lambda *_: 0)
    with pytest.raises(ImatrixError, match="--ram"):
        seeddelta.quantize(tiny_dense, path, text=tiny_text, **(OPTIONS | {"resume": False}))
    assert path.read_bytes() == made.read_bytes()


@pytest.mark.parametrize("step", [0, 1])
def test_a_run_that_was_stopped_goes_on(
    tiny_dense: Path, tiny_text: Path, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    path, original, runs = tmp_path / made.name, quantize.encode_all, []

    def stops(recipe: Any, plan: Any, *rest: Any, **more: Any) -> Any:
        if any(name.startswith(f"blk.{step}.") for name in plan.targets):
            original(recipe, quantize.replace(plan, targets=dict(list(plan.targets.items())[:2])), *rest, **more)
            raise KeyboardInterrupt
        return original(recipe, plan, *rest, **more)

    monkeypatch.setattr(quantize, "encode_all", stops)
    with pytest.raises(KeyboardInterrupt):
        seeddelta.quantize(tiny_dense, path, text=tiny_text, **OPTIONS)
    assert not path.exists()
    monkeypatch.setattr(quantize, "encode_all", original)
    run = BlockEngine.run

    def counted(self: BlockEngine, group: groups.Group, summed: Any, **options: Any) -> Any:
        runs.append(group.first)
        return run(self, group, summed, **options)

    monkeypatch.setattr(BlockEngine, "run", counted)
    report = seeddelta.quantize(tiny_dense, path, text=tiny_text, **OPTIONS)
    assert path.read_bytes() == made.read_bytes()
    assert runs == [0, 1][step:]
    assert report.tensors_restored == 2 + 7 * step
    assert list(tmp_path.iterdir()) == [path]


def test_damaged_work_is_made_again(
    tiny_dense: Path, tiny_text: Path, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, original = tmp_path / made.name, quantize.finish
    monkeypatch.setattr(quantize, "finish", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        seeddelta.quantize(tiny_dense, path, text=tiny_text, **OPTIONS)
    part = next((tmp_path / f"{path.name}.parts").glob("blk.0.ffn_up*"))
    part.write_bytes(part.read_bytes()[:-8])
    monkeypatch.setattr(quantize, "finish", original)
    seeddelta.quantize(tiny_dense, path, text=tiny_text, **OPTIONS)
    assert path.read_bytes() == made.read_bytes()


def test_a_model_that_is_run_as_a_whole(smollm2_quantized: Path, tiny_text: Path, tmp_path: Path) -> None:
    """gemma2 of two layers: the second block is of another kind because of its number."""
    model = tiny_llama.write_gemma2(tmp_path / "gemma2.gguf", smollm2_quantized)
    report = seeddelta.quantize(model, tmp_path / "out.gguf", text=tiny_text, **OPTIONS)
    assert {row.method for row in report.tensors} == {"feedback"}
    with pytest.raises(
        RecipeError, match=r"gemma2.gguf: its layers do not run by themselves.* calibrate=sequential out"
    ):
        seeddelta.quantize(model, tmp_path / "two.gguf", text=tiny_text, **OPTIONS, calibrate="sequential")


def test_command(
    tiny_dense: Path, tiny_text: Path, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / made.name
    arguments = [
        "quantize",
        str(tiny_dense),
        "-o",
        str(path),
        "--bits",
        "4",
        "--text",
        str(tiny_text),
        "--ctx",
        "64",
        "-t",
        "1",
        "--quality",
        "fast",
    ]
    assert main([*arguments, "--chunks", "4", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "dry run" in shown
    assert "it takes about 1 minute," in " ".join(shown.split())
    assert not path.exists()
    assert main([*arguments, "--chunks", "4", "-q"]) == 0
    assert path.read_bytes() == made.read_bytes()
    assert main([*arguments, "--chunks", "4000"]) == 1
    assert "longer text" in capsys.readouterr().err


def test_what_is_lost(tiny_dense: Path, tiny_text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On chunks that are held out, and on another text; nothing is compared where it is not wanted."""
    path, report = tmp_path / "out.gguf", tmp_path / "report.json"
    model = shutil.copy(tiny_dense, tmp_path / "a-name-without-its-ending")
    arguments = ["quantize", str(model), "-o", str(path), "--bits", "4", "--text", str(tiny_text), "--ctx", "64"]
    arguments += ["-t", "1", "--chunks", "4", "--json", str(report), "--quality", "fast"]
    assert main([*arguments, "--check", "2"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"held out of {tiny_text.name}, 62 tokens scored: KL divergence 0." in shown
    assert "the text of the package, 62 tokens scored: KL divergence 0." in shown
    found = json.loads(report.read_text(encoding="utf-8"))["losses"]
    assert [loss["tokens"] for loss in found] == [62, 62]
    assert all(0 < loss["divergence"]["value"] < 1 for loss in found)
    assert main([*arguments, "--check", "0", "--no-resume"]) == 0
    assert "nats" not in capsys.readouterr().out
    assert json.loads(report.read_text(encoding="utf-8"))["losses"] == []


def test_chunks_that_are_held_out(tiny_dense: Path) -> None:
    used = read_windows(tiny_dense, bundled_text(), "text", 64, 4).tokens[:, 1:]
    text, chunks = excerpt(tiny_dense, bundled_text(), 64, 3, calibrated=4)
    again = read_windows(tiny_dense, text, "held out", 64, None)
    assert chunks == 3
    assert again.chunks >= 3
    shown = " ".join(map(str, again.tokens.ravel()))
    assert not any(" ".join(map(str, window[20:30])) in shown for window in used)
    assert excerpt(tiny_dense, bundled_text(), 64, 3, calibrated=10**6) == (b"", 0)


def test_several_texts_have_equal_parts(tiny_dense: Path, tiny_text: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("Some other words that are not in the first one. " * 80, encoding="utf-8")
    windows = read_texts(tiny_dense, [tiny_text, other], 64, 5)
    alone = [read_windows(tiny_dense, text, text.name, 64, share) for text, share in ((tiny_text, 2), (other, 3))]
    np.testing.assert_array_equal(windows.tokens, np.concatenate([one.tokens for one in alone]))
    assert windows.name == f"{tiny_text.name} + other.txt"
    assert windows.sha256 not in {one.sha256 for one in alone}
    assert read_texts(tiny_dense, [other], 64, 3).identity() == alone[1].identity()
    assert text_files(None) == text_files("package") == text_files(()) == [bundled_text()]
    assert text_files(["package", other]) == [bundled_text(), other]
    assert shares(None, [tiny_text, other]) == [None, None]
    with pytest.raises(EvaluationError, match="1 chunks are fewer than the 2 texts"):
        shares(1, [tiny_text, other])


def test_several_texts_are_calibrated_on_and_checked(
    tiny_dense: Path, tiny_text: Path, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / made.name
    arguments = ["quantize", str(tiny_dense), "-o", str(path), "--bits", "4", "--chunks", "4", "--ctx", "64"]
    arguments += ["--text", str(tiny_text), "--text", "package", "--set", "gradient=auto", "--check", "1"]
    arguments += ["--quality", "fast"]
    assert main(arguments) == 0
    assert read_header(path).metadata["seeddelta.calibration.text"] == f"{tiny_text.name} + calibration.txt"
    shown = " ".join(capsys.readouterr().out.split())
    for text in (f"held out of {tiny_text.name}", "held out of the package's calibration text", "Python's help"):
        assert f"{text}, 31 tokens scored: KL divergence 0." in shown
    one = tmp_path / "one.seeddelta.gguf"
    seeddelta.quantize(tiny_dense, one, text=tiny_text, gradient="auto", **OPTIONS)
    codes = [seeddelta.open_seeddelta(file).tensors["blk.0.attn_q.weight"].arrays["codes"] for file in (path, one)]
    assert not np.array_equal(*codes)


def test_the_text_of_the_package_is_enough(smollm2_quantized: Path) -> None:
    """For the chunks of the default, with a tokenizer of 49k tokens; and it has more than one alphabet."""
    windows = read_windows(smollm2_quantized, bundled_text(), "bundled", 512, None)
    assert windows.chunks > 2 * quantize.CHUNKS
    assert 300_000 < bundled_text().stat().st_size < 600_000
    content = bundled_text().read_text(encoding="utf-8")
    for sign in ("def ", "Assistant:", "—" if "—" in content else "--", "ж", "の", "的", "ب"):
        assert sign in content


def test_sequential(
    tiny_dense: Path, tiny_text: Path, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bytes for any threads, after a stop, and with sums in files."""
    path, options = tmp_path / made.name, OPTIONS | {"calibrate": "sequential", "chunks": 24}
    seeddelta.quantize(tiny_dense, path, text=tiny_text, **options)
    assert read_header(path).metadata["seeddelta.calibration.mode"] == "sequential"
    first = path.read_bytes()
    path.unlink()
    original = quantize.encode_all

    def stops(recipe: Any, plan: Any, *rest: Any, **more: Any) -> Any:
        if "blk.1.attn_output.weight" in plan.targets:
            raise KeyboardInterrupt
        return original(recipe, plan, *rest, **more)

    monkeypatch.setattr(quantize, "encode_all", stops)
    with pytest.raises(KeyboardInterrupt):
        seeddelta.quantize(tiny_dense, path, text=tiny_text, **options)
    monkeypatch.setattr(quantize, "encode_all", original)
    monkeypatch.setattr(quantize, "sums_limit", lambda *_: 0)
    folders, made = [], sequential.Moments

    def in_files(n_in: int, n_out: int, threads: int, folder: Path | None) -> Any:
        folders.append(folder)
        return made(n_in, n_out, threads, folder)

    monkeypatch.setattr(sequential, "Moments", in_files)
    report = seeddelta.quantize(tiny_dense, path, text=tiny_text, **(options | {"threads": 2}))
    assert folders
    assert None not in folders
    assert path.read_bytes() == first
    assert report.tensors_restored >= 7


def test_as_many_jobs_as_the_memory_allows(tiny_dense: Path, tmp_path: Path) -> None:
    """Its matrices are next to nothing beside what a process takes."""
    plan = make_plan(Recipe(input=tiny_dense, output=tmp_path / "out.gguf", bits=4), measured=False)
    sizes = [int(shares * memory.PROCESS_BYTES) for shares in (0.5, 1.5, 3.5, 99)]
    assert [memory.jobs_within(plan, ram, 4) for ram in sizes] == [1, 1, 3, 4]


def test_a_matrix_that_does_not_fit_is_named(tiny_dense: Path, tiny_text: Path, made: Path, tmp_path: Path) -> None:
    """PROCESS_BYTES leaves nothing of 400 MB; the covariances of so small a model fit into what rounding leaves."""
    path = tmp_path / made.name
    with pytest.warns(MemoryWarning, match=r"'token_embd.weight'.*--ram"):
        seeddelta.quantize(tiny_dense, path, text=tiny_text, **(OPTIONS | {"ram": "400.5M"}))
    assert path.read_bytes() == made.read_bytes()


def test_an_estimate_grows_with_the_work(tiny_dense: Path, tiny_text: Path, tmp_path: Path) -> None:
    options = {"text": tiny_text, "ctx": 64, "bits": 4, "threads": 1}
    small = quantize.estimate_quantize(tiny_dense, tmp_path / "a", chunks=2, **options)
    large = quantize.estimate_quantize(tiny_dense, tmp_path / "a", chunks=40, **options)
    assert small.seconds > 0
    assert small.disk < large.disk
    assert small.memory == large.memory
    assert not list(tmp_path.iterdir())


def test_what_it_does_itself_cannot_be_given(tiny_dense: Path, tiny_text: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="quantize measures the covariance itself"):
        seeddelta.quantize(tiny_dense, tmp_path / "out.gguf", text=tiny_text, hessian=tmp_path / "cov.gguf")


def test_quality_stands_for_other_options() -> None:
    assert chosen("normal", None, {"bits": 4}) == ("dense", {"bits": 4})
    assert chosen("fast", None, {}) == ("dense", {"effort": "fast"})
    assert chosen("fast", None, {"effort": "high"})[1] == {"effort": "high"}
    way, options = chosen("best", None, {})
    assert way == "sequential"
    assert "auto" in str(options["gradient"])
    assert chosen("best", "dense", {"gradient": "g.gguf"}) == ("dense", {"gradient": "g.gguf"})
    assert chosen("best", None, {"base_kind": "prng_block"})[1] == {"base_kind": "prng_block"}
    with pytest.raises(RecipeError, match="quality 'good' is not known"):
        chosen("good", None, {})


def test_best_is_sequential_with_gradients(tiny_dense: Path, tiny_text: Path, tmp_path: Path) -> None:
    paths = tmp_path / "word.gguf", tmp_path / "options.gguf"
    shared: dict[str, Any] = {"text": tiny_text, "ctx": 64, "chunks": 4, "bits": 4, "progress": False}
    seeddelta.quantize(tiny_dense, paths[0], quality="best", **shared)
    seeddelta.quantize(tiny_dense, paths[1], calibrate="sequential", gradient="auto", **shared)
    metadata = [read_header(path).metadata for path in paths]
    assert metadata[0]["seeddelta.calibration.mode"] == "sequential"
    assert "seeddelta.gradient.sha256" in metadata[0]
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_best_goes_on_without_gradients_where_there_are_none(
    smollm2_quantized: Path, tiny_text: Path, tmp_path: Path
) -> None:
    model = tiny_llama.write_mpt(tmp_path / "m.gguf", smollm2_quantized)
    with pytest.warns(seeddelta.errors.CalibrationWarning, match="quality best goes on without gradients"):
        seeddelta.quantize(
            model, tmp_path / "o.gguf", quality="best", text=tiny_text, ctx=64, chunks=4, bits=4, progress=False
        )
    metadata = read_header(tmp_path / "o.gguf").metadata
    assert metadata["seeddelta.calibration.mode"] == "sequential"
    assert "seeddelta.gradient.sha256" not in metadata
