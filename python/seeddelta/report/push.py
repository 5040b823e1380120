"""Upload of a model and its page to the Hugging Face hub."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import OutputError, needs_extra

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Upload:
    """A file and its name in the repository."""

    path: Path
    name: str
    size: int
    sha256: str


def plan(files: Sequence[tuple[Path, str]]) -> list[Upload]:
    """What would be uploaded. Raises OutputError for a file that cannot be read."""
    found = []
    for path, name in files:
        digest = hashlib.sha256()
        try:
            with path.open("rb") as file:
                while data := file.read(_CHUNK):
                    digest.update(data)
        except OSError as error:
            raise OutputError(f"{path}: cannot be read ({error.strerror})") from error
        found.append(Upload(path, name, path.stat().st_size, digest.hexdigest()))
    return found


def push(uploads: Sequence[Upload], repository: str, *, private: bool = False) -> list[str]:
    """Upload to `owner/name`, which is made when it is not there. Files that the hub has already, by their SHA-256, are
    left out, so an upload that broke off goes on when it is called again. Returns the names of what was sent.

    Raises OutputError with what the hub says.
    """
    with needs_extra("hub"):
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError
        from huggingface_hub.hf_api import RepoFile
    api = HfApi(library_name="seeddelta")
    sent = []
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        known = api.get_paths_info(repository, [one.name for one in uploads])
        there = {info.path: info.lfs.sha256 for info in known if isinstance(info, RepoFile) and info.lfs is not None}
        for one in uploads:
            if there.get(one.name) != one.sha256:
                api.upload_file(path_or_fileobj=one.path, path_in_repo=one.name, repo_id=repository)
                sent.append(one.name)
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise OutputError(f"{repository}: the hub refuses it ({error}); is `hf auth login` done?") from error
    return sent
