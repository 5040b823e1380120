"""Standard streams: nothing is lost when models are opened in threads, and no stream costs the work."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path

import pytest
import seeddelta

pytest.importorskip("llama_cpp")
PROGRAM = [sys.executable, "-m", "seeddelta"]
SHORT = ["-c", "64", "--chunks", "24"]  # two jobs of 12 chunks: two threads measure at once


@pytest.fixture
def model(tiny_dense: Path) -> Path:
    return tiny_dense


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("streams") / "t.txt"
    path.write_text("The history of the city begins with a harbour, a wall and a market. " * 400)
    return path


def quantize(model: Path, text: Path, output: Path, *more: str) -> list[str]:
    return [*PROGRAM, "quantize", str(model), "-o", str(output), "--bits", "4", "-f", str(text), *SHORT, *more]


def test_threads_that_open_models_do_not_change_the_streams(model: Path) -> None:
    before = [os.fstat(1), os.fstat(2)], sys.stdout, sys.stderr
    errors: list[BaseException] = []

    def load() -> None:
        try:
            for _ in range(4):
                seeddelta.load(model, n_ctx=64, n_threads=1, verbose=False).close()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert ([os.fstat(1), os.fstat(2)], sys.stdout, sys.stderr) == before


def test_a_plain_llama_does_not_change_the_streams_either(model: Path) -> None:
    import llama_cpp

    seen = []
    original = llama_cpp.llama_cpp.llama_model_load_from_file

    def load(*arguments: object) -> object:
        seen.append((os.fstat(1), sys.stdout))
        return original(*arguments)

    llama_cpp.llama_cpp.llama_model_load_from_file = load
    try:
        llama_cpp.Llama(str(model), vocab_only=True, verbose=False).close()
    finally:
        llama_cpp.llama_cpp.llama_model_load_from_file = original
    assert seen == [(os.fstat(1), sys.stdout)]


def check(said: str, output: Path) -> None:
    assert output.is_file()
    for words in ("together", "encode block 1", "quantize: 100%", "held out of t.txt", "KL divergence"):
        assert words in said, said


@pytest.mark.slow
def test_quantize_keeps_every_line_in_a_file(model: Path, text: Path, tmp_path: Path) -> None:
    output, log = tmp_path / "o.gguf", tmp_path / "log"
    with log.open("wb") as file:
        subprocess.run(quantize(model, text, output), stdout=file, stderr=file, check=True, timeout=120)
    check(log.read_text(), output)


def test_quantize_keeps_every_line_in_a_pipe(model: Path, text: Path, tmp_path: Path) -> None:
    output = tmp_path / "o.gguf"
    done = subprocess.run(quantize(model, text, output), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    check(done.stdout + done.stderr, output)


def in_terminal(command: list[str], interrupt_at: str | None = None) -> tuple[int, str]:
    """Exit code and output of a command whose streams are a terminal; Ctrl-C when it has said something."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    # in the background of a shell Ctrl-C is ignored, and a child inherits that
    process = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    os.close(slave)
    said = b""
    while True:
        try:
            data = os.read(master, 4096)
        except OSError:
            break
        if not data:
            break
        said += data
        if interrupt_at is not None and interrupt_at.encode() in said:
            process.send_signal(signal.SIGINT)
            interrupt_at = None
    os.close(master)
    return process.wait(timeout=60), said.decode(errors="replace")


def test_quantize_keeps_every_line_in_a_terminal(model: Path, text: Path, tmp_path: Path) -> None:
    output = tmp_path / "o.gguf"
    code, said = in_terminal(quantize(model, text, output))
    assert code == 0, said
    check(said, output)


def test_an_interrupted_command_says_so(model: Path, text: Path, tmp_path: Path) -> None:
    command = quantize(model, text, tmp_path / "o.gguf", "--executor", "threads:1")
    command[command.index("--chunks") + 1] = "180"
    code, said = in_terminal(command, interrupt_at="measure block")
    assert code == 130, said
    assert said.rstrip().endswith("seeddelta: interrupted; the same command continues")


def test_a_stream_of_another_encoding(model: Path, tmp_path: Path) -> None:
    output = tmp_path / "o.gguf"
    for command in (["build", "-i", model, "-o", output, "--bits", "4"], ["inspect", output], ["build", "--help"]):
        done = subprocess.run(
            [*PROGRAM, *map(str, command)], capture_output=True, env=os.environ | {"PYTHONIOENCODING": "ascii"}
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout
        assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("streams", "code"),
    [(">/dev/full", 0), ("2>/dev/full", 0), (">/dev/full 2>/dev/full", 0), (">&- 2>&- <&-", 0)],
)
def test_streams_that_take_nothing_do_not_cost_the_work(model: Path, tmp_path: Path, streams: str, code: int) -> None:
    output = tmp_path / "o.gguf"
    command = " ".join([*PROGRAM, "build", "-i", str(model), "-o", str(output), "--bits", "4", streams])
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    assert output.is_file()
    assert output.read_bytes()[:4] == b"GGUF"
    assert "Traceback" not in done.stderr
    assert ("cannot be written" in done.stderr) == (streams == ">/dev/full")


def test_a_result_that_nobody_got_is_a_failure(model: Path) -> None:
    command = " ".join([*PROGRAM, "inspect", str(model), "--json", ">/dev/full"])
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.strip() == "seeddelta: stdout: cannot be written (No space left on device)"


def test_the_log_of_a_verbose_model_is_shown_and_a_users_callback_gets_it(model: Path) -> None:
    program = f"""
import ctypes, llama_cpp, seeddelta
seeddelta.load({str(model)!r}, n_ctx=64, n_threads=1, verbose=False).close()
print("QUIET", flush=True)
llama_cpp.llama_log_set(own := llama_cpp.llama_log_callback(lambda level, text, data: print("OWN", text[:40])), None)
seeddelta.load({str(model)!r}, n_ctx=64, n_threads=1, verbose=True).close()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    quiet, _, loud = done.stdout.partition("QUIET")
    assert quiet == ""
    assert "OWN" in loud


def test_the_time_of_the_server_thread_is_not_spent(model: Path) -> None:
    """A model opened quietly in one thread does not hide what another thread prints meanwhile."""
    program = f"""
import sys, threading, seeddelta
done = threading.Event()
def load():
    for _ in range(10):
        seeddelta.load({str(model)!r}, n_ctx=64, n_threads=1, verbose=False).close()
    done.set()
threading.Thread(target=load).start()
count = 0
while not done.is_set():
    print(count); count += 1
    done.wait(.001)
print("all", count)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    lines = done.stdout.split("\n")
    assert lines[-2] == f"all {len(lines) - 2}"
    assert lines[:-2] == [str(number) for number in range(len(lines) - 2)]
