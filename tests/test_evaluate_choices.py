"""Multiple-choice tasks: scores of continuations, llama-perplexity's file formats, paired differences."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seeddelta
from llama_helpers import load_small, logits_of
from seeddelta.cli.main import main
from seeddelta.errors import EvaluationError
from seeddelta.evaluate.choices import (
    ChoiceResult,
    Task,
    read_hellaswag,
    read_multiple_choice,
    read_winogrande,
    score_tasks,
)
from seeddelta.evaluate.continuations import score_continuation
from seeddelta.session.decoder import Decoder

pytest.importorskip("llama_cpp")

HELLASWAG = """\
Geography: The capital of France is
2
a kind of blue cheese made of stones.
seventeen times larger than the moon.
Paris, a city on the river Seine.
never going to bark at the piano.
Cooking: To boil an egg, first put it into
1
the newspaper of the next century.
a pot of boiling water.
a letter to the king of the mountain.
the square root of eleven bicycles.
"""
WINOGRANDE = """\
0,"The sun is hot and the ice is cold, so the _ melts the other one in summer.",sun,ice,1
1,The fire burned all night and in the morning the _ was grey.,sea,ash,2
"""


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


def test_formats(tmp_path: Path) -> None:
    swag, wino = tmp_path / "swag.txt", tmp_path / "wino.csv"
    swag.write_text(HELLASWAG)
    wino.write_text(WINOGRANDE)
    first, second = read_hellaswag(swag)
    assert (first.gold, second.gold) == (2, 1)
    assert "".join(first.texts[2]) == "Geography: The capital of France is Paris, a city on the river Seine."
    sun, ash = read_winogrande(wino)
    assert (sun.gold, ash.gold) == (0, 1)
    assert ash.texts[1] == ("The fire burned all night and in the morning the ash", " was grey.")
    for reader, text in ((read_hellaswag, "a\n7\nb\n"), (read_winogrande, "0,no blank,a,b,1\n"), (read_winogrande, "")):
        wino.write_text(text)
        with pytest.raises(EvaluationError, match="task"):
            reader(wino)


def packed_choices(tasks: list[tuple[str, list[str], int]]) -> bytes:
    """llama-perplexity's binary format."""

    def text(value: str) -> bytes:
        return struct.pack("<I", len(value.encode())) + value.encode()

    def answers(values: list[str], right: int) -> bytes:
        labels = struct.pack(f"<{len(values)}i", *(int(i == right) for i in range(len(values))))
        return struct.pack("<I", len(values)) + b"".join(map(text, values)) + labels

    bodies = [text(question) + answers(values, right) + answers([], 0) for question, values, right in tasks]
    begins = [4 + 4 * len(bodies) + sum(map(len, bodies[:at])) for at in range(len(bodies))]
    return struct.pack(f"<{len(bodies) + 1}I", len(bodies), *begins) + b"".join(bodies)


def test_binary_multiple_choice(llm: Any, tmp_path: Path) -> None:
    path = tmp_path / "tasks.bin"
    tasks = [("The capital of France is", ["a blue cheese.", "Paris."], 1), ("Two and two make", ["four.", "süß."], 0)]
    path.write_bytes(packed_choices(tasks))
    found = read_multiple_choice(path)
    assert [task.gold for task in found] == [1, 0]
    assert found[1].texts == (("Two and two make", " four."), ("Two and two make", " süß."))
    assert score_tasks(llm, found).accuracy == 1
    for broken in (path.read_bytes()[:-30], b"", struct.pack("<I", 0), packed_choices([("q", ["a"], 5)])):
        path.write_bytes(broken)
        with pytest.raises(EvaluationError, match="task"):
            read_multiple_choice(path)


def test_answers(llm: Any, tmp_path: Path) -> None:
    swag = tmp_path / "swag.txt"
    swag.write_text(HELLASWAG)
    tasks = read_hellaswag(swag)
    right = score_tasks(llm, tasks)
    assert right.accuracy == 1
    wrong = score_tasks(llm, [Task(task.texts, (task.gold + 1) % 4) for task in tasks])
    assert wrong.accuracy == 0


def test_differences_are_of_pairs() -> None:
    base = ChoiceResult(np.array([True, False, True, False] * 25))
    same = ChoiceResult(base.right.copy())
    assert same.difference(base) == (0.0, 0.0)
    better = ChoiceResult(base.right | (np.arange(100) % 10 == 1))
    change, error = better.difference(base)
    assert change == pytest.approx(0.1)
    assert error == pytest.approx(0.3 / 99**0.5 * (100 / 100) ** 0.5, rel=0.01)
    assert error < base.stderr  # unpaired errors are larger
    assert base.stderr == pytest.approx(0.5 / 99**0.5)


def test_command(smollm2_quantized: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    swag, wino = tmp_path / "swag.txt", tmp_path / "wino.csv"
    swag.write_text(HELLASWAG)
    wino.write_text(WINOGRANDE)
    model = str(smollm2_quantized)
    files = ["--hellaswag", str(swag), "--winogrande", str(wino)]
    assert main(["tasks", "-m", model, "-m", model, *files, "-t", "2", "-c", "256", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["task"], row["tasks"]) for row in rows] == [("hellaswag", 2), ("winogrande", 2)] * 2
    assert rows[0]["accuracy"] == 1
    assert [row["change"] for row in rows] == [None, None, 0, 0]
    assert main(["tasks", "-m", model, *files, "-t", "2", "--limit", "1"]) == 0
    assert "accuracy" in capsys.readouterr().out
    assert main(["tasks", "-m", model]) == 1


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
