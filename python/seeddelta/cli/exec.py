"""`seeddelta exec`: llama.cpp's own programs with SeedΔ models, by a library that is preloaded."""

from __future__ import annotations

import logging
import os
import platform
import shlex
import shutil
import signal
import sys
from pathlib import Path

import typer

from ..errors import ConfigError, NotAvailableError
from ..gguf.hub import located
from ..settings import settings_of
from ..settings.assign import texts_of
from ..settings.serving import ExecSettings
from ..storage.output import check_outputs, reading
from ._command import environment_of, from_settings
from ._elf import Object, linked, read_object

_log = logging.getLogger(__name__)
LIBRARY = "libseeddelta_llama.so"
# Programs that would do something else than what is asked, and what does it
_REFUSED = {
    "llama-imatrix": "it looks at the inputs of products, and those of SeedΔ weights do not pass through it; use "
    "`seeddelta imatrix` with the original model",
    "llama-quantize": "it converts the tensors of ordinary files; use `seeddelta quantize` with the original model",
    "llama-cvector-generator": "it looks at the nodes of graphs, which are not llama.cpp's; give it the original model",
    "llama-eval-callback": "it looks at the nodes of graphs, which are not llama.cpp's; give it the original model",
    "llama-export-lora": "it needs the original weights; give it the original model",
    "llama-finetune": "it needs the original weights; give it the original model",
}
_SHARED = "build llama.cpp with -DBUILD_SHARED_LIBS=ON, or take a release of llama.cpp, which is built so"
_LOADS, _COMPUTES = "llama_model_load_from_file", "ggml_backend_sched_graph_compute_async"


@from_settings(ExecSettings)
def command(settings: ExecSettings) -> None:
    """Run a program of llama.cpp with SeedΔ models: llama-server, llama-cli, llama-bench, llama-perplexity, ...

    The program is as it is; a library is loaded before its own. It must be linked to a shared libllama.

    Example: seeddelta exec -- llama-server -m model.seeddelta.gguf --parallel 4

    Example: seeddelta exec --columns f16 --kwta-k 0.6 -- llama-completion -m model.gguf -p "Once upon a time"

    Example: seeddelta exec --metrics-json m.json -- llama-completion -m model.seeddelta.gguf -p "Once upon a time"
    """
    arguments = list(settings.arguments)
    if settings.runtime.lora:
        raise ConfigError("lora is not served in llama.cpp's programs; give --lora to the program itself")
    program = find_program(arguments[0])
    given = variables_of(settings)
    given["LD_PRELOAD"] = ":".join(filter(None, (str(find_library()), os.environ.get("LD_PRELOAD", ""))))
    check_program(program)
    with reading(arguments[1:]):
        check_outputs([settings.metrics_json])
    if settings.dry_run:
        typer.echo(" ".join([*(f"{name}={shlex.quote(value)}" for name, value in given.items()),
                             shlex.join([str(program), *arguments[1:]])]))  # fmt: skip
        return
    _replace_process(program, arguments, given)


# `--` may be left out: what follows the program is its own
COMMAND_OPTIONS = command.options | {"context_settings": {"allow_interspersed_args": False}}  # type: ignore[attr-defined]


def variables_of(settings: ExecSettings) -> dict[str, str]:
    """What the library is told. SEEDDELTA_SET has the settings of --set, those that are there already first."""
    runtime = settings.runtime
    if runtime.fallback is not None:
        runtime = runtime.model_copy(update={"fallback": located(runtime.fallback)})
    words = [f"{name}={text}" for name, text in texts_of(runtime).items()]
    variables = {
        "SEEDDELTA_SET": " ".join(filter(None, (os.environ.get("SEEDDELTA_SET", ""), shlex.join(words)))),
        "SEEDDELTA_METRICS_JSON": "" if settings.metrics_json is None else str(settings.metrics_json),
        "SEEDDELTA_VERBOSE": "on" if _log.isEnabledFor(logging.INFO) else "",
    }
    return {name: value for name, value in variables.items() if value}


def find_library() -> Path:
    """The library that is preloaded. Raises NotAvailableError where there is none."""
    if sys.platform != "linux" or platform.libc_ver()[0] != "glibc":
        raise NotAvailableError(
            "seeddelta exec: llama.cpp's programs take SeedΔ models on Linux with glibc; here use `seeddelta serve`, "
            "`run` and `bench`"
        )
    from .. import _core

    folders = [Path(str(_core._core.__file__)).parent, *map(Path, _core.__path__)]
    found = next((path for folder in folders if (path := folder / LIBRARY).is_file()), None)
    if found is None:
        raise NotAvailableError(f"{folders[0] / LIBRARY}: is missing; install seeddelta again")
    if set(str(found)) & set(": \t\n"):
        raise NotAvailableError(f"{found}: the loader takes no path with blanks or colons; install seeddelta elsewhere")
    return found.resolve()


def find_program(name: str) -> Path:
    """The file of a program. Raises ConfigError when there is none, or when it is one that makes no sense here."""
    base = Path(name).name
    if base in _REFUSED:
        raise ConfigError(f"{base}: not with SeedΔ models: {_REFUSED[base]}")
    found = shutil.which(name)
    if found is None:
        raise ConfigError(f"{name}: no such program; install llama.cpp, or give the program's path")
    return Path(found)


def check_program(path: Path) -> None:
    """Raise ConfigError unless it is linked to a libllama whose functions a preloaded library can replace."""
    try:
        program = read_object(path)
        libraries = list(linked(program))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}; give one of llama.cpp's programs itself, not a script") from error
    if "musl" in program.interpreter:
        raise ConfigError(f"{path}: is built for musl, and the library for glibc; build llama.cpp with glibc")
    llama = next((one for one in libraries if one.path.name.startswith("libllama.so")), None)
    if llama is None:
        raise ConfigError(f"{path}: {_why_not(program)}")
    for one in libraries:
        if one.symbolic and one.has(_COMPUTES):
            raise ConfigError(f"{one.path}: is linked with -Bsymbolic and calls its own functions alone; {_SHARED}")
    missing = next((name for name in (_LOADS, _COMPUTES) if not llama.has(name)), None)
    if missing is not None:
        raise ConfigError(f"{llama.path}: does not use {missing}; take a llama.cpp of August 2025 or later")


def _why_not(program: Object) -> str:
    if not program.interpreter or _LOADS.encode() in program.path.read_bytes():
        return f"is a static build of llama.cpp, whose functions cannot be replaced; {_SHARED}"
    if any(name.startswith("libllama") for name in program.needed):
        return "its libllama is not found; set LD_LIBRARY_PATH to its folder"
    return "is not linked to llama.cpp; give one of its programs"


def _replace_process(program: Path, arguments: list[str], variables: dict[str, str]) -> None:
    sys.stdout.flush()
    for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores them, and a program would go on to
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    own = (one for one in settings_of(ExecSettings) if one.path[0] == "runtime" and one.names)
    flags = {environment_of(one) for one in own}
    inherited = {name: value for name, value in os.environ.items() if name not in flags}  # which were read here
    try:
        os.execve(program, arguments, inherited | variables)
    except OSError as error:
        raise ConfigError(f"{program}: cannot be run ({error.strerror})") from error
