"""Every base with every residual inside llama.cpp: text is generated, the kernels run, and what they compute is what
the file stands for. The model is the start of SmolLM2, so that a case takes a second."""

from __future__ import annotations

import shutil
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seeddelta
from description_tables import changed
from gguf import GGUFValueType
from llama_helpers import divergence, load, logits_of, tokens_of
from seeddelta.gguf.model_file import read_header
from seeddelta.gguf.reader import open_seeddelta
from seeddelta.gguf.source import open_source
from seeddelta.gguf.writer import PlannedTensor, Typed, copied_metadata, write_gguf

pytest.importorskip("llama_cpp")

LAYERS, TOKENS, EMBEDDING = 1, 1024, "token_embd.weight"
TARGETS = ("attn_k", "attn_output", "ffn_down")
TOLERANCE = 2e-3  # nats; what rounding the activations to 8 bits makes of three products
BASES = ("prng_block", "fht_struct", "lanes", "none")
SCHEMES = ("coo", "block", "codebook_resid", "none")
OPTIONS: dict[str, dict[str, Any]] = {
    "coo": {"K": 40},
    "block": {"K": 3, "block": 32},
    "codebook_resid": {"K": 12, "codebook_size": 48},
    "none": {},
}
CASES = {
    f"{base}-{scheme}": {"base_kind": base, "scheme": scheme, "bits": 2, **OPTIONS[scheme]}
    for base, scheme in product(BASES, SCHEMES)
    if (base, scheme) != ("none", "none")
}
for name, scale in (("prng_block", 0.005), ("fht_struct", 0.0003)):  # fitted ones are next to nothing
    CASES |= {case: options | {"base_scale": scale} for case, options in CASES.items() if case.startswith(name)}
CASES["prng_block-coo-int8"] = CASES["prng_block-coo"] | {"vals": "int8"}
CASES["lanes-block-int8"] = CASES["lanes-block"] | {"vals": "int8", "block": 64, "row_scale": "f32"}
for per in ("row", "block"):
    chosen = {"base_kind": "prng_block", "seed_per": per, "seed_search": 512, "block": 8}
    CASES[f"prng_block-seed-per-{per}"] = chosen | {"scheme": "none"}
    CASES[f"prng_block-coo-seed-per-{per}"] = chosen | {"scheme": "coo", "K": 40}


@pytest.fixture(scope="module")
def model(short_f16: Path, model_dir: Path) -> Path:
    """SmolLM2 cut after its first layer and its first tokens."""
    source = open_source(short_f16)
    keys: dict[str, Any] = dict(copied_metadata(source.header))
    tokens = source.header.metadata["tokenizer.ggml.tokens"][:TOKENS]
    merges = [m for m in source.header.metadata["tokenizer.ggml.merges"] if m.replace(" ", "") in set(tokens)]
    kinds = source.header.metadata["tokenizer.ggml.token_type"][:TOKENS]
    keys |= {
        "llama.block_count": Typed(LAYERS, GGUFValueType.UINT32),
        "llama.vocab_size": Typed(TOKENS, GGUFValueType.UINT32),
        "tokenizer.ggml.tokens": Typed(tokens, GGUFValueType.ARRAY, GGUFValueType.STRING),
        "tokenizer.ggml.merges": Typed(merges, GGUFValueType.ARRAY, GGUFValueType.STRING),
        "tokenizer.ggml.token_type": Typed([int(kind) for kind in kinds], GGUFValueType.ARRAY, GGUFValueType.INT32),
    }
    kept = [
        PlannedTensor(name, (TOKENS, *info.shape[1:]) if name == EMBEDDING else info.shape, info.type)
        for name, info in source.tensors.items()
        if not name.startswith("blk.") or int(name.split(".")[1]) < LAYERS
    ]
    path = model_dir / "smollm2-start.gguf"
    write_gguf(path, keys, kept, lambda tensor: [source.raw(tensor.name)[: tensor.nbytes]])
    return path


@pytest.fixture(scope="module")
def dense_logits(model: Path) -> np.ndarray[Any, Any]:
    return logits(model)


def logits(path: Path) -> np.ndarray[Any, Any]:
    llm = load(path, n_ctx=64, n_batch=64)
    result = logits_of(llm, tokens_of(llm, 24))
    llm.close()
    return result


def without(part: str, path: Path, target: Path) -> Path:
    """Copy of a SeedΔ file whose base scales or residual values are 0."""
    if part == "base":
        return changed(path, target, lambda keys, arrays, table: table.update(scale=[0.0] * len(table["scale"])))
    shutil.copyfile(path, target)
    for name, info in read_header(target).tensors.items():
        if name.rpartition(".")[2] in ("d_val", "b_val", "r_vals"):
            with target.open("r+b") as file:
                file.seek(info.offset)
                file.write(bytes(info.nbytes))
    return target


def share(path: Path, other: Path) -> float:
    """Smallest relative difference of a weight in two files."""
    with open_seeddelta(path) as a, open_seeddelta(other) as b:
        weights = [
            (t.to_weight().dequantize(), b.tensors[name].to_weight().dequantize()) for name, t in a.tensors.items()
        ]
    return min(float(np.linalg.norm(w - v) / np.linalg.norm(w)) for w, v in weights)


@pytest.mark.parametrize("case", CASES)
def test_serves_what_the_file_stands_for(case: str, model: Path, dense_logits: Any, tmp_path: Path) -> None:
    options = CASES[case]
    recipe = seeddelta.Recipe(
        input=model, output=tmp_path / "m.gguf", targets=TARGETS, no_checkpoint=True, seeddelta_gap=9, **options
    )
    report = seeddelta.build(recipe, progress=False)
    assert all(row.metrics is not None and 0 < row.metrics.rel_l2 < 1.2 for row in report.tensors)
    with open_seeddelta(recipe.output) as file:
        kinds = {(t.description.base.kind, t.description.residual.scheme) for t in file.tensors.values()}
    assert kinds == {(options["base_kind"], options["scheme"])}

    llm = load(recipe.output, n_ctx=64, n_batch=64)
    ours = logits_of(llm, tokens_of(llm, 24))
    stock = logits(seeddelta.dequantize(recipe.output, tmp_path / "dense.gguf", progress=False))
    assert divergence(stock, ours) < TOLERANCE
    # a base or a residual that is silently off would be seen, as the original model is
    assert divergence(dense_logits, ours) > 10 * TOLERANCE
    for part, kind in (("base", options["base_kind"]), ("residual", options["scheme"])):
        if kind != "none":
            assert share(recipe.output, without(part, recipe.output, tmp_path / "off.gguf")) > 0.05, part

    before = llm.seeddelta.counters()
    reply = llm.create_completion("The capital of France is", max_tokens=3, temperature=0)
    decodes = reply["usage"]["completion_tokens"]
    assert decodes > 0
    after = llm.seeddelta.counters()
    assert len(after) == LAYERS * len(TARGETS)
    for name, counts in after.items():
        assert counts["calls"] == before[name]["calls"] + decodes, name
        assert counts["dense_calls"] == counts["nonfinite_events"] == 0, name
    check_kinds(llm.seeddelta.metrics(), options["base_kind"], options["scheme"], "seed_per" in options)
    llm.close()


def check_kinds(metrics: dict[str, Any], base: str, scheme: str, seeds_chosen: bool) -> None:
    """All products are of the one base and the one scheme."""
    prefix, total = "seeddelta.calls.", metrics["seeddelta.calls"]
    ran = {key.removeprefix(prefix): n for key, n in metrics.items() if key.startswith(prefix) and n > 0}
    assert ran.pop("seed_choice", 0) == (total if seeds_chosen else 0)
    if (base, scheme) == ("none", "codebook_resid"):
        assert ran == {}
        assert metrics["statecells.calls"] == total
        assert metrics["statecells.weights"] == metrics["seeddelta.weights"]
    else:
        assert ran == {kind: total for kind in (base, scheme) if kind != "none"}
        assert metrics["statecells.calls"] == metrics["statecells.weights"] == 0
