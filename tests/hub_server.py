"""A Hugging Face hub of files in memory, on the loopback address: what huggingface_hub asks of it to download."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def _sha1(data: bytes) -> str:
    """What git calls a file of this content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass
class Hub:
    """Repositories (`owner/name` -> files), and what was asked for.

    Attributes:
        tokens: repositories that want a token.
        broken: files of which the first answer ends in the middle.
        requests: (method, path, value of the header Range).
        agents: what the clients call themselves.
    """

    repositories: Mapping[str, Mapping[str, bytes]]
    tokens: dict[str, str] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    agents: set[str] = field(default_factory=set)
    url: str = ""

    def downloads(self, name: str) -> list[str | None]:
        """The ranges that were asked of a file."""
        return [part for method, path, part in self.requests if method == "GET" and path.endswith(f"/{name}")]


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        self.hub.requests.append((self.command, path, self.headers.get("Range")))
        self.hub.agents.add(self.headers.get("User-Agent", ""))
        words = path.strip("/").split("/")
        about = words[:2] == ["api", "models"]
        repository = "/".join(words[2:4] if about else words[:2])
        files = self.hub.repositories.get(repository)
        token = self.hub.tokens.get(repository)
        if files is None:
            self._fail(404, "RepoNotFound", "Repository not found")
        elif token is not None and self.headers.get("Authorization") != f"Bearer {token}":
            self._fail(401, "GatedRepo", "Access to this repository is restricted")
        elif about and words[4:5] == ["tree"]:
            tree = [
                {"type": "file", "path": name, "size": len(data), "oid": _sha1(data)} for name, data in files.items()
            ]
            self._send(200, json.dumps(tree).encode(), {})
        elif about:
            siblings = [{"rfilename": name} for name in files]
            self._send(200, json.dumps({"id": repository, "sha": COMMIT, "siblings": siblings}).encode(), {})
        elif words[2] != "resolve" or "/".join(words[4:]) not in files:
            self._fail(404, "EntryNotFound", "Entry not found")
        else:
            self._send_file("/".join(words[4:]), files["/".join(words[4:])])

    def _send_file(self, name: str, data: bytes) -> None:
        headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        first = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").partition("-")[0])
        if first:
            headers["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
        cut = len(data) // 2 if self.command == "GET" and name in self.hub.broken else None
        if cut is not None:
            self.hub.broken.discard(name)
        self._send(206 if first else 200, data[first:], headers, cut)

    def _fail(self, status: int, code: str, message: str) -> None:
        self._send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": message})

    def _send(self, status: int, body: bytes, headers: Mapping[str, str], cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[:cut])
        if cut is not None:
            self.wfile.flush()
            self.close_connection = True


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """The hub while it is served; `hub.url` is for HF_ENDPOINT."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
