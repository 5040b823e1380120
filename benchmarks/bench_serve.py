"""Tokens per second of all replies together, by the number of clients: `seeddelta serve` and llama.cpp's llama-server.

    python benchmarks/bench_serve.py --serve "SeedΔ, seeddelta serve=model.seeddelta.gguf" \\
        --bin llama.cpp/build/bin --llama-server SeedΔ=model.seeddelta.gguf F16=f16.gguf Q4_K_M=q4km.gguf

llama-server is run by `seeddelta exec`, with as many slots as there are clients at most.

Every model has a server process of its own, and the clients are threads of this one, so all of it runs on the machine's
cores. Models take turns; medians are told. Then one client asks for a reply to a short prompt while the server reads
another client's long prompt.

With --behind each client has a prompt of so many words, which the server has read before the time starts.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import common

PROMPTS = ("Once upon a time", "The history of Rome begins", "A good way to learn is", "The sea was calm and")
READY = 120  # seconds for a server to load its model
BEFORE_SHORT = 0.1  # seconds from a long prompt to the short one behind it


class Server:
    """One server process, at `port`."""

    def __init__(
        self, path: Path, programs: Path | None, threads: int, streams: int, context: int, attention: str
    ) -> None:
        """Start `seeddelta serve` or, with the folder of llama.cpp's programs, llama-server."""
        self.stock = programs is not None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        if programs is not None:
            command = [
                "exec", "--attention", attention, "--", str(programs / "llama-server"), "-m", str(path), "--alias", "m",
                "--port", str(self.port), "-c", str(context * streams), "-t", str(threads), "-tb", str(threads),
                "--parallel", str(streams), "--no-webui", "--cache-ram", "0",
            ]  # fmt: skip
        else:
            command = [
                "serve", "-m", f"m={path}", "--port", str(self.port), "--ctx", str(context),
                "--threads", str(threads), "--parallel", str(streams), "--attention", attention,
            ]  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-m", "seeddelta", *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        threading.Thread(target=self._read_errors, daemon=True).start()
        self._errors: list[str] = []

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._errors = [*self._errors[-20:], line]

    def wait(self) -> None:
        """Until it answers; SystemExit with its last lines when it does not start."""
        end = time.monotonic() + READY
        while not self._healthy():
            if self._process.poll() is not None or time.monotonic() > end:
                raise SystemExit("a server did not start:\n" + "".join(self._errors))
            time.sleep(0.1)

    def _healthy(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def passes(self) -> tuple[float, float] | None:
        """Decodes and the seconds in them, of ours only."""
        if self.stock:
            return None
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        found = [re.search(rf"^seeddelta_{name}{{[^}}]*}} (\S+)$", text, re.MULTILINE) for name in _PASSES]
        assert all(found), text
        return tuple(float(one[1]) for one in found if one)  # type: ignore[return-value]

    def ask(self, prompt: str, tokens: int) -> dict[str, Any]:
        """One streamed greedy reply: its tokens, and the seconds to the first and to the last."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        body = {"model": "m", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True}
        begin = time.perf_counter()
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise SystemExit(f"{answer.status}: {answer.read()!r}")
        first, chunks, whole = None, 0, False
        for line in answer:
            if line.startswith(b'data: {"'):
                first = first or time.perf_counter() - begin
                chunks += 1
                whole = whole or b'"finish_reason":"length"' in line.replace(b" ", b"")
        connection.close()
        return {
            "tokens": tokens if whole else max(chunks - 1, 0),
            "first": first,
            "seconds": time.perf_counter() - begin,
        }


_PASSES = ("decodes_total", "decode_seconds_total")


def words(number: int, count: int) -> str:
    return f"{number} " + " ".join(f"word{i % 89}" for i in range(count))


def throughput(server: Server, streams: int, tokens: int, number: int, behind: int = 0) -> dict[str, float]:
    """So many clients at once: tokens/s of all; of ours also milliseconds of a pass in llama.cpp and outside of it.

    With `behind` each prompt has so many words, and has been read before.
    """
    prompts = [f"{number * 10 + i}. {PROMPTS[i % len(PROMPTS)]}" for i in range(streams)]
    if behind:
        prompts = [words(i + 1, behind) for i in range(streams)]
        for prompt in prompts:
            server.ask(prompt, 1)
    before = server.passes()
    begin = time.perf_counter()
    with ThreadPoolExecutor(streams) as pool:
        replies = list(pool.map(lambda prompt: server.ask(prompt, tokens), prompts))
    seconds = time.perf_counter() - begin
    found = {"speed": sum(reply["tokens"] for reply in replies) / seconds}
    after = server.passes()
    if before is not None and after is not None:
        decodes, inside = after[0] - before[0], after[1] - before[1]
        found |= {"pass_ms": 1e3 * inside / decodes, "outside_ms": 1e3 * (seconds - inside) / decodes}
    return found


def first_token(server: Server, count: int, number: int) -> dict[str, float]:
    """Milliseconds to the first token of a short prompt, alone and behind another's long one, and of that one."""
    alone = server.ask(f"{number}: {PROMPTS[0]}", 4)
    long = words(number, count)
    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(server.ask, long, 4)
        time.sleep(BEFORE_SHORT)
        behind = server.ask(f"{number}; {PROMPTS[1]}", 4)
        long_first = other.result()["first"]
    return {"alone": 1e3 * alone["first"], "behind": 1e3 * behind["first"], "long_prompt": 1e3 * long_first}


def named(text: str) -> tuple[str, Path]:
    name, sign, path = text.partition("=")
    return (name, Path(path)) if sign else (Path(text).stem, Path(text))


def medians(samples: list[dict[str, float]]) -> dict[str, Any]:
    keys = samples[0]
    return {key: round(statistics.median(one[key] for one in samples), 3) for key in keys} | {"samples": samples}


def summary(
    arguments: Any,
    given: dict[str, tuple[Path, Path | None]],
    speeds: dict[str, dict[int, list[dict[str, float]]]],
    firsts: dict[str, list[dict[str, float]]],
) -> dict[str, Any]:
    return {
        "settings": {
            "streams": list(speeds[next(iter(given))]), "tokens": arguments.tokens, "threads": arguments.threads,
            "reps": arguments.reps, "context": arguments.context, "long_words": arguments.long,
            "behind": arguments.behind,
        },
        "models": {
            name: {
                "server": "seeddelta serve" if programs is None else "llama-server",
                "attention": "llama" if name in arguments.llama_attention else "auto",
                "file": path.name,
                "file_bytes": os.path.getsize(path),
                "streams": {str(count): medians(samples) for count, samples in speeds[name].items()},
                "first_token_ms": medians(firsts[name]),
            }
            for name, (path, programs) in given.items()
        },
    }  # fmt: skip


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--serve", nargs="*", type=named, default=[], metavar="NAME=FILE", help="by seeddelta serve")
    options.add_argument(
        "--llama-server", nargs="*", type=named, default=[], metavar="NAME=FILE", help="by llama-server"
    )
    options.add_argument("--bin", type=Path, help="folder of llama.cpp's programs")
    options.add_argument("--llama-attention", nargs="*", default=[], metavar="NAME", help="with llama.cpp's attention")
    options.add_argument("--behind", type=int, default=0, help="words of each client's prompt, read before")
    options.add_argument("--streams", default="1,4,8")
    options.add_argument("--tokens", type=int, default=96)
    options.add_argument("--long", type=int, default=500, help="words of the long prompt")
    options.add_argument("--context", type=int, default=2048)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--reps", type=int, default=3)
    arguments = options.parse_args()
    counts = [int(count) for count in arguments.streams.split(",")]
    if arguments.llama_server and arguments.bin is None:
        options.error("--llama-server needs --bin")
    given: dict[str, tuple[Path, Path | None]] = {name: (path, None) for name, path in arguments.serve}
    given |= {name: (path, arguments.bin) for name, path in arguments.llama_server}
    speeds: dict[str, dict[int, list[dict[str, float]]]] = {name: {count: [] for count in counts} for name in given}
    firsts: dict[str, list[dict[str, float]]] = {name: [] for name in given}
    numbers = itertools.count(1)
    with ExitStack() as stack:
        servers = {}
        for name, (path, programs) in given.items():
            attention = "llama" if name in arguments.llama_attention else "auto"
            server = Server(path, programs, arguments.threads, max(counts), arguments.context, attention)
            stack.callback(server.close)
            server.wait()
            throughput(server, max(counts), 4, next(numbers))  # pages and caches
            servers[name] = server
        for _ in range(arguments.reps):
            for name, server in servers.items():
                for count in counts:
                    speeds[name][count].append(
                        throughput(server, count, arguments.tokens, next(numbers), arguments.behind)
                    )
            for name, server in servers.items():
                firsts[name].append(first_token(server, arguments.long, next(numbers)))
    result = summary(arguments, given, speeds, firsts)
    common.save(arguments.name or "serve", result, arguments.results)
    for name, model in result["models"].items():
        by_count = {count: one["speed"] for count, one in model["streams"].items()}
        firsts_told = {key: value for key, value in model["first_token_ms"].items() if key != "samples"}
        print(name, by_count, firsts_told)


if __name__ == "__main__":
    main()
