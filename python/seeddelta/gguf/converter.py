"""Models as safetensors, through llama.cpp's own convert_hf_to_gguf.py: a temporary GGUF while they are converted."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import SourceModelError
from .hub import fetch_safetensors, is_address, located

_LAST_LINES = 12  # of the converter's output, in the message of a failure


@contextmanager
def dense_gguf(
    model: str | os.PathLike[str],
    converter: str | os.PathLike[str] | None,
    folder: Path,
    say: Callable[[str], object] = lambda line: None,
) -> Iterator[Path]:
    """The model as a GGUF file: itself, or what the hub has under its address.

    With `converter` the model is a folder of safetensors, or a repository with them; it is converted to BF16 in
    `folder` by the running Python, and that file is removed in the end. `say` gets the converter's output line by line.
    Raises SourceModelError when the converter fails, with its last lines, and what `located` raises.
    """
    if converter is None:
        yield located(model)
        return
    source = fetch_safetensors(model) if is_address(model) else Path(model)
    _check(source, Path(converter))
    name = str(model).partition(":/")[2] if is_address(model) else source.absolute().name
    with tempfile.TemporaryDirectory(prefix=".converted.", dir=folder) as temporary:
        made = Path(temporary, f"{Path(name).name.replace(':', '-')}-BF16.gguf")
        _convert(source, Path(converter), made, say)
        yield made


def _check(source: Path, converter: Path) -> None:
    if not converter.is_file():
        raise SourceModelError(f"{converter}: no such file; give llama.cpp's convert_hf_to_gguf.py with --converter")
    if not source.is_dir():
        raise SourceModelError(
            f"{source}: --converter is for a folder of safetensors with config.json and tokenizer; leave it out"
        )


def _convert(source: Path, converter: Path, made: Path, say: Callable[[str], object]) -> None:
    command = [sys.executable, str(converter), str(source), "--outtype", "bf16", "--outfile", str(made)]
    last: deque[str] = deque(maxlen=_LAST_LINES)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", stdin=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                last.append(line.rstrip())
                say(last[-1])
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0 or not made.is_file():
        raise SourceModelError(
            f"{source}: {converter.name} cannot convert it (exit status {process.returncode}); its last lines:\n"
            + "\n".join(last)
        )
