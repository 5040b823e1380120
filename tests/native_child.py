"""A process in which the functions that load models are those of a preloaded library, as in llama.cpp's own programs.

llama-cpp-python asks the library itself for its functions and would pass a preloaded one by; here it asks the process.
Reads jobs from stdin, a list in JSON, and prints what came of each, in JSON lines:

    {"load": NAME, "path": FILE, …}      loads a model, with options of Llama; with
                                         "watched" its context has a cb_eval, with
                                         "sequences" it holds so many                  -> true, or false
    {"eval": NAME, "tokens": [[…], …]}   decodes batches in a fresh context; with
                                         "restore" it is saved and read after each     -> file of the logits, or null
    {"close": NAME}, {"copy": [FROM, TO]}, {"truncate": [FILE, SIZE]}
    {"fail": N}                          the Nth allocation fails (faults/native.cpp)  -> allocations since the last one
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp import llama_cpp as native


def ask_the_process(name: str) -> None:
    original = getattr(native, name)
    found = getattr(ctypes.CDLL(None), name)
    found.argtypes, found.restype = original.argtypes, original.restype
    for module in (native, llama_cpp):
        setattr(module, name, found)


@native.ggml_backend_sched_eval_callback
def look(tensor: int, ask: bool, data: int) -> bool:
    return True


def change_next(watched: bool, sequences: int) -> None:
    """The context that is made next."""
    original = native.llama_init_from_model

    def init(model: Any, params: Any) -> Any:
        params.n_seq_max = sequences
        if watched:
            params.cb_eval = look
        for module in (native, llama_cpp):
            module.llama_init_from_model = original
        return original(model, params)

    for module in (native, llama_cpp):
        module.llama_init_from_model = init


def load(path: str, *, watched: bool = False, sequences: int = 1, **options: Any) -> Any:
    if watched or sequences > 1:
        change_next(watched, sequences)
    settings: dict[str, Any] = {
        "n_ctx": 128,
        "n_batch": 128,
        "n_threads": 2,
        "n_threads_batch": 2,
        "logits_all": True,
        "flash_attn": True,
    }
    try:
        return llama_cpp.Llama(path, verbose=True, **(settings | options))
    except ValueError as error:  # what llama-cpp-python makes of NULL
        if not str(error).startswith(("Failed to load model", "Failed to create llama_context")):
            raise
        return None


def evaluate(llm: Any, batches: list[list[int]], folder: Path, number: int, restore: bool) -> str | None:
    llm.reset()
    try:
        for batch in batches:
            llm.eval(batch)
            if restore:
                llm.load_state(llm.save_state())
    except RuntimeError as error:  # what it makes of an error code
        if "llama_decode" not in str(error):
            raise
        return None
    path = folder / f"logits-{os.getpid()}-{number}.npy"
    np.save(path, np.array(llm.scores[: sum(map(len, batches))]))
    return str(path)


def main(folder: Path) -> None:
    for function in ("llama_model_load_from_file", "llama_init_from_model", "llama_state_set_data"):
        ask_the_process(function)
    models: dict[str, Any] = {}
    for number, job in enumerate(json.load(sys.stdin)):
        result: Any = True
        print(f"job {number}", file=sys.stderr, flush=True)
        if "load" in job:
            name = job.pop("load")
            models[name] = load(**job)
            result = models[name] is not None
        elif "eval" in job:
            llm = models[job["eval"]]
            result = llm is not None and evaluate(llm, job["tokens"], folder, number, job.get("restore", False))
        elif "close" in job:
            if models[job["close"]] is not None:
                models[job["close"]].close()
            del models[job["close"]]
        elif "copy" in job:
            source, target = job["copy"]
            shutil.copyfile(source, f"{target}.new")
            os.replace(f"{target}.new", target)
        elif "fail" in job:
            faults = ctypes.CDLL(None)
            result = faults.faults_seen()
            faults.faults_arm(ctypes.c_long(job["fail"]))
        else:
            os.truncate(*job["truncate"])
        print(json.dumps(result), flush=True)
    for llm in models.values():
        if llm is not None:
            llm.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
