"""Inputs that are kept over a text are those of a run, to what float16 holds, and leave no files."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import tiny_llama
from seeddelta.calibrate.engine import BlockEngine
from seeddelta.calibrate.groups import groups_of
from seeddelta.calibrate.kept_inputs import KeptInputs, kept_bytes
from seeddelta.calibrate.text import Windows
from seeddelta.errors import OutputError
from seeddelta.gguf.source import open_source

pytest.importorskip("llama_cpp")
CHUNKS, CTX = 3, 32


def test_they_are_those_of_a_run(tiny_dense: Path, tmp_path: Path) -> None:
    tokens = np.random.default_rng(0).integers(20, tiny_llama.N_VOCAB, (CHUNKS, CTX)).astype(np.int32)
    groups = groups_of(2, 1)
    engine = BlockEngine(open_source(tiny_dense), Windows(tokens, "", ""), groups, tmp_path)
    with engine.run(groups[0], []):
        states = engine.states_before(1).path.read_bytes()
    down, node = "blk.0.ffn_down.weight", "ffn_inp-0"
    with closing(KeptInputs(engine, groups[0], ["blk.0.attn_q.weight", down], [node])) as kept:
        kept.measure()
        assert engine.states_before(1).path.read_bytes() == states
        columns = tiny_llama.N_EMBD + tiny_llama.N_FF
        written = sum(path.stat().st_size for path in tmp_path.iterdir()) - len(states)
        assert written <= kept_bytes(tokens.size, columns, tiny_llama.N_EMBD)
        with engine.open(groups[0], taken=[down], nodes=[node]) as run:
            for chunk in range(CHUNKS):
                run.advance(engine.fed(groups[0], chunk))
                expected = run.inputs(down)
                size = np.sqrt(np.mean(expected**2, axis=1, keepdims=True))
                assert (np.abs(kept.inputs(down, chunk) - expected) <= 2**-11 * np.abs(expected) + 2**-24 * size).all()
                np.testing.assert_array_equal(kept.values(node, chunk), run.values(node))
        with pytest.raises(OutputError, match="shorter"):
            kept.inputs(down, CHUNKS)
    assert list(tmp_path.iterdir()) == [engine.states_before(1).path]
