"""How much of a text the rows have that are frequent in the calibration text.

python research/frequent_rows/coverage.py model.gguf wiki.test.txt …
"""

from __future__ import annotations

import argparse
from pathlib import Path

import llama_cpp
import numpy as np
from seeddelta.calibrate.text import bundled_text, read_windows
from seeddelta.convert.frequent import SHARES, Frequent
from seeddelta.gguf.names import EMBEDDING

MOST = 600_000  # bytes of a text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("texts", type=Path, nargs="+")
    options = parser.parse_args()
    llm = llama_cpp.Llama(str(options.model), vocab_only=True, verbose=False)

    def counted(path: Path) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.bincount(llm.tokenize(path.read_bytes()[:MOST]), minlength=llm.n_vocab())

    found = Frequent.of(EMBEDDING, (llm.n_vocab(), 1), read_windows(options.model, bundled_text(), "", 512, 1).counts)
    assert found is not None, "the vocabulary is small"
    print("| text |", " | ".join(f"{share:.0%} of the tiles" for share in SHARES), "|")
    print("| predicted |", " | ".join(f"{found.fine(share).share:.3f}" for share in SHARES), "|")
    for path in options.texts:
        counts = counted(path)
        shares = (counts[found.fine(share).rows(len(counts))].sum() / counts.sum() for share in SHARES)
        print(f"| {path.name} |", " | ".join(f"{share:.3f}" for share in shares), "|")


if __name__ == "__main__":
    main()
