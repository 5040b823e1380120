"""Calibration of skipping: the division of a budget, and the whole way on a small text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from llama_helpers import TEXT
from seeddelta.cli.main import main
from seeddelta.errors import ConfigError
from seeddelta.settings.skip_file import read_skip_file
from seeddelta.sparsify.allocate import Profile, allocate

LEVELS = np.arange(1, 21) / 20


def profile(cost: int, concentration: float) -> Profile:
    """An input whose energy left out falls as (1 - keep) ** concentration."""
    return Profile("blk.0.ffn_down.weight", 0, "ffn_down", cost, LEVELS, 1 - LEVELS, (1 - LEVELS) ** concentration)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.83, 1.0])
def test_a_budget_is_spent(share: float) -> None:
    profiles = [profile(100, 2), profile(300, 3), profile(50, 6)]
    kept = allocate(profiles, [1.0, 2.0, 0.5], share)
    assert sum(k * p.cost for k, p in zip(kept, profiles, strict=True)) / 450 == pytest.approx(share, abs=1e-9)


def test_the_budget_goes_where_it_matters() -> None:
    """Twice the harm, or twice the weights for the same good."""
    same = [profile(100, 2), profile(100, 2)]
    less, more = allocate(same, [1.0, 4.0], 0.5)
    assert less < 0.5 < more
    cheap, dear = allocate([profile(100, 2), profile(400, 2)], [1.0, 1.0], 0.5)
    assert cheap > dear
    flat, steep = allocate([profile(100, 1.2), profile(100, 6)], [1.0, 1.0], 0.6)
    assert steep < flat


def test_no_neighbor_is_better() -> None:
    """Against all pairs of levels."""
    profiles, harm = [profile(100, 2), profile(150, 4)], [1.0, 0.7]
    kept = allocate(profiles, harm, 0.6)

    def cost(fractions: tuple[float, float]) -> float:
        return sum(h * p.dropped_at(k) for h, p, k in zip(harm, profiles, fractions, strict=True))

    budget = sum(k * p.cost for k, p in zip(kept, profiles, strict=True)) + 1e-9
    for a in LEVELS:
        for b in LEVELS:
            if a * 100 + b * 150 <= budget:
                assert cost((a, b)) >= cost((kept[0], kept[1])) - 0.01


def test_a_share_out_of_range() -> None:
    with pytest.raises(ConfigError, match=r"give 0\.05 to 1"):
        allocate([profile(1, 2)], [1.0], 0.01)


@pytest.mark.slow
def test_sparsify(smollm2_f16: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A file that says what to keep of every input, with thresholds that keep about as much."""
    pytest.importorskip("llama_cpp")
    from llama_helpers import load_small, logits_of, tokens_of
    from seeddelta.runtime import Kwta, RuntimeConfig

    text, path = tmp_path / "valid.txt", tmp_path / "skip.yaml"
    text.write_text(TEXT * 10)
    command = [
        "sparsify",
        str(smollm2_f16),
        "--text",
        str(text),
        "-o",
        str(path),
        "--keep",
        "0.6",
        "--ctx",
        "128",
    ]
    assert main([*command, "--probe-chunks", "1", "--no-per-layer", "-t", "1"]) == 0
    out, err = capfd.readouterr()
    assert "60.0% of the weights" in out
    assert "ffn_down: half of its inputs cost" in err
    file = read_skip_file(path)
    assert len(file.inputs) == 120
    assert file.score == "wina"
    kept = {}
    for select in ("topk", "threshold"):
        config = RuntimeConfig(columns="f16", kwta=Kwta(file=path, select=select), skip_prompt=True)
        llm = load_small(smollm2_f16, 1, config=config)
        logits_of(llm, tokens_of(llm, 32))
        counters = llm.seeddelta.counters()
        weights = {name: np.prod(shape) for name, shape in llm.seeddelta.hook.column_shapes().items()}
        read = {
            name: weights[name] * counts["active_inputs"] / (counts["active_inputs"] + counts["skipped_inputs"])
            for name, counts in counters.items()
        }
        kept[select] = sum(read.values()) / sum(weights.values())
    assert kept["topk"] == pytest.approx(0.6, abs=0.01)
    assert kept["threshold"] == pytest.approx(0.6, abs=0.1)


def test_limits_contradict(smollm2_f16: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "valid.txt"
    text.write_text(TEXT)
    common = ["sparsify", str(smollm2_f16), "--text", str(text), "-o", str(tmp_path / "skip.json")]
    assert main([*common, "--keep", "0.5", "--max-dppl", "2%"]) == 1
    assert "give one of them" in capfd.readouterr().err
    assert main([*common, "--max-dppl", "two"]) == 1
    assert "is no percentage; write for example 2%" in capfd.readouterr().err
