"""Memory of a process as the kernel counts it, split by what backs it. Linux; elsewhere all fields are None."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

_STATUS = {"RssAnon": "anon", "RssFile": "file", "RssShmem": "shmem", "VmHWM": "peak"}


@dataclass(frozen=True)
class Memory:
    """Bytes. `anon` + `file` + `shmem` are the resident set (proc(5): RssAnon, RssFile, RssShmem), `peak` is its
    largest value so far (VmHWM), `pss` divides shared pages among the processes that share them (smaps_rollup).

    A field is None where the kernel does not tell it.
    """

    anon: int | None = None
    file: int | None = None
    shmem: int | None = None
    peak: int | None = None
    pss: int | None = None

    @property
    def resident(self) -> int | None:
        """anon + file + shmem."""
        if self.anon is None or self.file is None or self.shmem is None:
            return None
        return self.anon + self.file + self.shmem

    def to_dict(self) -> dict[str, int | None]:
        return asdict(self) | {"resident": self.resident}

    @classmethod
    def from_dict(cls, values: dict[str, int | None]) -> Memory:
        return cls(**{name: values.get(name) for name in ("anon", "file", "shmem", "peak", "pss")})


def read_memory(process: str | int = "self") -> Memory:
    """Memory of a process (its number; default: this one). Never raises for a field that cannot be read."""
    found: dict[str, int] = {}
    for line in _lines(Path(f"/proc/{process}/status")):
        key, _, value = line.partition(":")
        if key in _STATUS:
            found[_STATUS[key]] = int(value.split()[0]) * 1024
    for line in _lines(Path(f"/proc/{process}/smaps_rollup")):
        if line.startswith("Pss:"):
            found["pss"] = int(line.split()[1]) * 1024
    return Memory(**found)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
