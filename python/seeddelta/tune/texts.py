"""The two stretches of text that are used: one to measure on, one that is held out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..calibrate.text import open_vocabulary
from ..errors import EvaluationError
from ..gguf.model_file import read_header
from ..runtime.decoder import Tokens
from ..runtime.session import read_text, tokenize
from ..storage.output import atomic_output
from .options import TuneOptions


@dataclass(frozen=True)
class Texts:
    """Tokens to measure on, i32[chunks · ctx], and the file of the held-out text, None when nothing is compared."""

    tokens: Tokens
    held_out: Path | None


def choose_texts(options: TuneOptions) -> Texts:
    """Both from the end of the text, for `seeddelta imatrix` reads it from the beginning: what the encoder was fitted
    to says too little. The held-out part is the last one; it is written to the folder of the options.

    Raises EvaluationError when the text is too short.
    """
    data = read_text(options.text)
    count, wanted = len(_tokens(options, data)), options.chunks * options.ctx
    own = options.verify_text is None and options.verify_chunks > 0
    held = (options.verify_chunks + 1) * options.ctx if own else 0
    if count < held + wanted:
        raise EvaluationError(
            f"{options.text}: has {count} tokens, and {held + wanted} are needed to measure and to compare; use a "
            "longer text, fewer --chunks or --verify-chunks, or a --verify-text"
        )
    # cut by bytes, at the end of a line: tokens of a stretch are those of the text but for its ends
    cut = len(data) - len(data) * held // count
    cut = data.rfind(b"\n", 0, cut) + 1 or cut
    tokens = _tokens(options, data[:cut])
    if len(tokens) < wanted:
        raise EvaluationError(f"{options.text}: too few tokens are left to measure on; use a longer text")
    if not own:
        return Texts(tokens[-wanted:], options.verify_text if options.verify_chunks else None)
    path = options.folder / "held-out.txt"
    with atomic_output(path) as temporary:
        temporary.write_bytes(data[cut:])
    return Texts(tokens[-wanted:], path)


def _tokens(options: TuneOptions, data: bytes) -> Tokens:
    llm = open_vocabulary(read_header(options.recipe.input).path)
    try:
        return tokenize(llm, data)
    finally:
        llm.close()
