"""Scores of continuations, and tasks of lm-evaluation-harness, which are made of these."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seeddelta
from llama_helpers import load_small, logits_of
from seeddelta.errors import EvaluationError
from seeddelta.evaluate.continuations import score_continuation
from seeddelta.session.decoder import Decoder

pytest.importorskip("llama_cpp")


@pytest.fixture(scope="module")
def llm(smollm2_quantized: Path) -> Any:
    llm = load_small(smollm2_quantized, logits_all=True)
    yield llm
    llm.close()


def test_scores_of_a_continuation(llm: Any) -> None:
    tokens = llm.tokenize(b"The capital of France is Paris, a city on the river Seine.")
    logits = logits_of(llm, tokens).astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    expected = (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))[np.arange(5, len(tokens) - 1), tokens[6:]]
    decoder = Decoder(llm)
    whole = score_continuation(decoder, tokens, 6)
    np.testing.assert_allclose(whole.log_probs, expected, atol=1e-4)
    again = score_continuation(decoder, tokens, 6, keep=5)  # the beginning is in the cache
    np.testing.assert_allclose(again.log_probs, whole.log_probs, atol=0.02)
    likeliest = [*tokens[:6], int(logits[5].argmax())]
    assert score_continuation(decoder, likeliest, 6).greedy
    assert not score_continuation(decoder, [*tokens[:6], tokens[2]], 6).greedy
    with pytest.raises(EvaluationError, match="do not fit a context"):
        score_continuation(decoder, [1] * 1000, 6)


FACTS = [
    ("The capital of France is", ["Paris", "Banana"]),
    ("Two and two make", ["four", "purple"]),
    ("The sun rises in the", ["east", "spoon"]),
    ("Water boils when it is", ["hot", "green"]),
    ("The opposite of black is", ["white", "table"]),
    ("A dog has four", ["legs", "moons"]),
]


@pytest.fixture
def facts(tmp_path: Path) -> Path:
    """A folder with a task of the harness, made of local files."""
    pytest.importorskip("lm_eval")
    lines = [
        {"question": question, "choices": choices[:: 1 - 2 * (at % 2)], "answer": at % 2}
        for at, (question, choices) in enumerate(FACTS)
    ]
    data = tmp_path / "facts.jsonl"
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "facts.yaml").write_text(f"""\
task: facts
dataset_path: json
dataset_kwargs: {{data_files: {{validation: {data}}}}}
validation_split: validation
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
""")
    return tmp_path


def scores_of(model: Path, facts: Path, name: str) -> tuple[float, list[float]]:
    """Accuracy and log-likelihoods by the harness's own command line."""
    arguments = ["--model", "seeddelta", "--model_args", f"path={model},n_ctx=256,threads=2", "--tasks", "facts"]
    arguments += ["--include_path", str(facts), "--output_path", str(facts / name), "--log_samples"]
    paths = [str(Path(seeddelta.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "HF_DATASETS_OFFLINE": "1"}
    command = [sys.executable, "-m", "seeddelta.evaluate.lm_eval", *arguments]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    folder = facts / name
    result = json.loads(next(folder.rglob("results_*.json")).read_text())
    lines = [json.loads(line) for line in next(folder.rglob("samples_facts_*.jsonl")).read_text().splitlines()]
    lines.sort(key=lambda line: line["doc_id"])
    found = [float(one[0]) for line in lines for one in line["filtered_resps"]]
    return result["results"]["facts"]["acc,none"], found


@pytest.mark.slow
def test_the_harness_and_the_dequantized_model(smollm2_seeddelta: Path, smollm2_dequantized: Path, facts: Path) -> None:
    """Ours and stock llama.cpp on the same weights: what differs is the rounding of activations to 8 bits."""
    accuracy, ours = scores_of(smollm2_seeddelta, facts, "ours")
    stock_accuracy, stock = scores_of(smollm2_dequantized, facts, "stock")
    assert len(ours) == 2 * len(FACTS)
    assert accuracy == stock_accuracy
    np.testing.assert_allclose(ours, stock, rtol=0.05, atol=0.15)  # measured: 0.35 of -12
    assert np.abs(np.subtract(ours, stock)).mean() < 0.15  # measured: 0.08
