"""`seeddelta exec`: which programs it runs, with which variables, and what it says of others."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("llama_cpp")

import llama_cpp
from native_helpers import library
from seeddelta.cli.main import main

LIBRARIES = Path(llama_cpp.__file__).parent / "lib"
SOURCE = """
#include <stdio.h>
#include <stdlib.h>
extern char **environ;
int main(int count, char **words) {
    for (int i = 0; i < count; ++i) puts(words[i]);
    for (char **one = environ; *one; ++one) puts(*one);
    return 7;
}
"""


def compiled(folder: Path, name: str, *options: str) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler (apt install gcc)")
    library()
    (folder / "main.c").write_text(SOURCE)
    subprocess.run([compiler, "-o", folder / name, folder / "main.c", *options], check=True)
    return folder / name


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """One that is linked to the libllama of llama-cpp-python."""
    return compiled(
        tmp_path, "llama-words", f"-L{LIBRARIES}", "-Wl,--no-as-needed", "-lllama", f"-Wl,-rpath,{LIBRARIES}"
    )


def run(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SEEDDELTA_", "LD_"))}
    return subprocess.run(
        [sys.executable, "-m", "seeddelta", "exec", *map(str, arguments)],
        capture_output=True, text=True, env=environment | variables,
    )  # fmt: skip


def test_replaces_itself_by_the_program(program: Path, tmp_path: Path) -> None:
    dense = tmp_path / "dense.gguf"
    dense.touch()
    options = ["--seeddelta-fallback", dense, "--dense", "blk.0.*", "--metrics-json", tmp_path / "m.json", "--kwta"]
    done = run(*options, "--no-proc-sparse", "-v", "--", program, "-m", "a b", "--gap", "--", "-v", SEEDDELTA_GAP="1")
    assert done.returncode == 7, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:6] == [str(program), "-m", "a b", "--gap", "--", "-v"]
    expected = {
        f"SEEDDELTA_SET=fallback={dense} gap=1.0 'dense=blk.0.*' proc_sparse=off 'kwta={{}}'",
        f"SEEDDELTA_METRICS_JSON={tmp_path / 'm.json'}", "SEEDDELTA_VERBOSE=on", f"LD_PRELOAD={library()}",
    }  # fmt: skip
    assert {line for line in lines if line.startswith(("SEEDDELTA_", "LD_"))} == expected


def test_keeps_what_is_preloaded_and_said_already(program: Path) -> None:
    other = LIBRARIES / "libggml-base.so"
    done = run("--set", "event.topk=0.5", "--", program, LD_PRELOAD=str(other), SEEDDELTA_SET="kwta.k=0.5")
    assert done.returncode == 7
    assert f"LD_PRELOAD={library()}:{other}" in done.stdout.splitlines()
    assert "SEEDDELTA_SET=kwta.k=0.5 event.topk=0.5" in done.stdout.splitlines()


def test_attention_is_passed_on(program: Path) -> None:
    done = run("--attention", "exact", "--", program)
    assert "SEEDDELTA_SET=attention=exact" in done.stdout.splitlines()


def test_what_follows_the_program_is_its_own(program: Path) -> None:
    """Also without --, and in words that we know."""
    words = ["--kwta", "--state-pack", "binary", "--dry-run", "--help"]
    for separator in ([], ["--"]):
        done = run("--kwta-k", "0.5", *separator, program, *words)
        assert done.returncode == 7, done.stderr
        assert done.stdout.splitlines()[: len(words) + 1] == [str(program), *words]
        assert "SEEDDELTA_SET=kwta.k=0.5" in done.stdout.splitlines()


def test_finds_the_program_on_the_path(program: Path) -> None:
    done = run("--dry-run", "--", program.name, "-p", "one two", PATH=f"{program.parent}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"LD_PRELOAD={library()} {program} -p 'one two'\n"


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["exec", *map(str, arguments)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("seeddelta: error: ")
    assert said.err.count("\n") == 1
    return said.err


def test_programs_that_cannot_be_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "is not linked to llama.cpp" in refused(capsys, "--", compiled(tmp_path, "plain"))
    static = compiled(tmp_path, "static", "-static")
    assert "is a static build of llama.cpp" in refused(capsys, "--", static)
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    assert "is no ELF program of 64 bits; give one of llama.cpp's programs itself" in refused(capsys, "--", script)
    script.write_bytes(static.read_bytes()[:300])
    assert "is a damaged ELF file" in refused(capsys, "--", script)
    assert "no such program; install llama.cpp" in refused(capsys, "--", "llama-of-nobody")
    lost = compiled(tmp_path, "lost", f"-L{LIBRARIES}", "-Wl,--no-as-needed", "-lllama", "-Wl,--allow-shlib-undefined")
    assert "its libllama is not found; set LD_LIBRARY_PATH" in refused(capsys, "--", lost)


@pytest.mark.parametrize("name", ["llama-imatrix", "llama-quantize", "llama-cvector-generator"])
def test_programs_that_make_no_sense(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"{name}: not with SeedΔ models: it " in refused(capsys, "--", f"/some/where/{name}")


def test_metrics_replace_no_model(program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF")
    for metrics in (model, tmp_path / "none" / "m.json"):
        assert f"{metrics}: " in refused(capsys, "--metrics-json", metrics, "--", program, "-m", model)
    assert model.read_bytes() == b"GGUF"


def test_options_that_need_a_fallback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options in (["--seeddelta-gap", "0.1"], ["--dense", "*"], ["--no-proc-sparse"]):
        assert "needs --seeddelta-fallback dense.gguf" in refused(capsys, *options, "--", "llama-cli")
    assert "no such file" in refused(capsys, "--seeddelta-fallback", tmp_path / "none.gguf", "--", "llama-cli")


@pytest.mark.parametrize(("options", "words"), [
    (["--lora", "a.gguf"], "give --lora to the program"), (["--columns", "f32"], "f16"),
    (["--kwta-k", "2"], "error: --kwta-k 2.0: it must be at most 1"), (["--set", "colour=red"], "is not known"),
])  # fmt: skip
def test_settings_that_cannot_be(options: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in refused(capsys, *options, "--", "llama-cli")


def test_other_systems_are_told_what_to_use(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("platform.libc_ver", lambda: ("", ""))
    assert "on Linux with glibc; here use `seeddelta serve`" in refused(capsys, "--", "ls")
