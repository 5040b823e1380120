"""Hours of a server in minutes: many clients, replies of every kind, memory and failures.

    nice python benchmarks/soak_serve.py model.gguf --minutes 30

Clients ask without a pause: whole and streamed completions and chats, JSON that follows a schema, and
replies that they leave in the middle. The server's memory is read every ten seconds. A greedy prompt that comes back
must get the text that it got first. The result tells requests by kind, failures, and the growth of memory from the
first third on.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import Any

import common
import openai
import psutil

KINDS = ("completion", "stream", "chat", "schema", "left")
EVERY = 10.0  # seconds between looks at the memory
SCHEMA = {
    "type": "object",
    "properties": {"yes": {"type": "boolean"}, "count": {"type": "integer"}},
    "required": ["yes", "count"],
}


class Soak:
    """What the clients share."""

    def __init__(self, url: str, end: float) -> None:
        self.url, self.end = url, end
        self.done: Counter[str] = Counter()
        self.failed: list[str] = []
        self.texts: dict[str, str] = {}
        self._lock = threading.Lock()

    def client(self, seed: int) -> None:
        """One client, until the end."""
        draw = random.Random(seed)
        client = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=300)
        while time.monotonic() < self.end:
            kind = draw.choice(KINDS)
            try:
                self._ask(client, kind, draw)
            except Exception as error:  # told at the end
                with self._lock:
                    self.failed.append(f"{kind}: {type(error).__name__}: {error}")
            with self._lock:
                self.done[kind] += 1
        client.close()

    def _ask(self, client: Any, kind: str, draw: random.Random) -> None:
        number, size = draw.randrange(40), draw.choice((8, 24, 48))
        prompt = f"{'the city ' * (number % 5)}number {number}"
        ask = {"model": "m", "temperature": 0, "max_tokens": size}
        messages: Any = [{"role": "user", "content": prompt}]
        if kind == "completion":
            text = client.completions.create(prompt=prompt, **ask).choices[0].text
            self._same(f"{size} {prompt}", text)
        elif kind == "stream":
            stream = client.completions.create(prompt=prompt, stream=True, **ask)
            self._same(f"{size} {prompt}", "".join(chunk.choices[0].text for chunk in stream))
        elif kind == "chat":
            client.chat.completions.create(messages=messages, **(ask | {"temperature": 0.8}))
        elif kind == "schema":
            form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
            client.chat.completions.create(messages=messages, response_format=form, **ask)
        else:
            stream = client.completions.create(prompt=prompt, stream=True, **(ask | {"max_tokens": 200}))
            next(iter(stream))
            stream.close()

    def _same(self, key: str, text: str) -> None:
        with self._lock:
            first = self.texts.setdefault(key, text)
        if text != first:
            raise ValueError(f"another text than the first time: {text!r}, not {first!r}")


def start(model: str, parallel: int, threads: int) -> tuple[subprocess.Popen[str], str]:
    """The server and its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "seeddelta", "serve", "-m", f"m={model}", "--port", "0", "--ctx", "512", "--queue", "64",
         "--parallel", str(parallel), "--threads", str(threads)],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("serving "):
            threading.Thread(target=process.stderr.read, daemon=True).start()
            return process, line.split()[-1].removesuffix("/v1")
    raise SystemExit("the server did not start")


def main() -> int:
    options = common.parser(__doc__)
    options.add_argument("model")
    options.add_argument("--minutes", type=float, default=30)
    options.add_argument("--clients", type=int, default=12)
    options.add_argument("--parallel", type=int, default=4)
    options.add_argument("--threads", type=int, default=2)
    arguments = options.parse_args()
    process, url = start(arguments.model, arguments.parallel, arguments.threads)
    begin = time.monotonic()
    soak = Soak(url, begin + 60 * arguments.minutes)
    clients = [threading.Thread(target=soak.client, args=[seed], daemon=True) for seed in range(arguments.clients)]
    for client in clients:
        client.start()
    server = psutil.Process(process.pid)
    memory: list[dict[str, float]] = []
    while any(client.is_alive() for client in clients):
        with server.oneshot():
            memory.append(
                {
                    "seconds": round(time.monotonic() - begin, 1),
                    "resident": server.memory_info().rss,
                    "threads": server.num_threads(),
                    "files": server.num_fds(),
                }
            )
        time.sleep(min(EVERY, max(0.2, soak.end - time.monotonic())))
    process.send_signal(signal.SIGTERM)
    code = process.wait(60)
    later = memory[len(memory) // 3 :]
    half = len(later) // 2 or 1
    means = [sum(one["resident"] for one in part) / max(len(part), 1) for part in (later[:half], later[half:] or later)]
    result = {
        "settings": {
            "model": os.path.basename(arguments.model), "minutes": arguments.minutes, "clients": arguments.clients,
            "parallel": arguments.parallel, "threads": arguments.threads,
        },
        "requests": dict(soak.done),
        "failed": len(soak.failed),
        "failures": soak.failed[:20],
        "exit_code": code,
        "growth_mb": round((means[1] - means[0]) / 1e6, 2),
        "memory": memory,
    }  # fmt: skip
    common.save(arguments.name or "soak", result, arguments.results)
    print({name: value for name, value in result.items() if name != "memory"})
    return int(bool(soak.failed) or code != 0)


if __name__ == "__main__":
    sys.exit(main())
