"""Models by address: hf://owner/name[@revision][:file-or-quant] is a GGUF model on the Hugging Face hub.

`located` makes a path of such an address. Download, cache (HF_HOME) and tokens (HF_TOKEN, `hf auth login`) are those of
huggingface_hub; without a network, or with HF_HUB_OFFLINE=1, the cache is used.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..errors import HubError, MissingFileError, SourceModelError, needs_extra
from ..storage.output import names_of_parts

# one slash where the address went through pathlib
_ADDRESS = re.compile(r"hf:/{1,2}(?P<repository>[^/@:]+/[^/@:]+)(?:@(?P<revision>[^:]+))?(?::(?P<choice>.+))?")
_NO_MODEL = re.compile(r"mmproj|imatrix", re.IGNORECASE)  # other files that are GGUF
_SHOWN = 20  # files that a message names
_ATTEMPTS, _PAUSE = 4, 1.0  # to download a file; seconds between them
_CONVERT = "make a GGUF or SeedΔ file of it: seeddelta quantize {} -o model.seeddelta.gguf"
# owner/name, which may be a path as well
_BARE = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(?:@[^:]+)?(?::.+)?")
_FLOATS = (
    ("BF16",),
    ("F32", "FP32"),
    ("F16", "FP16"),
)  # as names of files have them; the first is what most models are
# of a repository, what the converter reads
_SAFETENSORS = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken")


def is_address(path: str | os.PathLike[str]) -> bool:
    """True for what is meant as an address on the hub."""
    return os.fspath(path).startswith("hf:/")


def address_of(path: str | os.PathLike[str]) -> str | None:
    """The address of a model to convert: owner/name is one, too, unless there is such a path. None for a path."""
    text = os.fspath(path)
    if is_address(text):
        return text
    if _BARE.fullmatch(text) is None or text.endswith((".gguf", ".safetensors")) or Path(text).exists():
        return None
    return f"hf://{text}"


def located(path: str | os.PathLike[str]) -> Path:
    """The path itself; for an address the path of the model in the cache, downloaded where it is not there.

    Of a model in several parts it is the first, and all are there. One address is one file as long as the process runs.
    Raises HubError, SourceModelError for what is no GGUF but safetensors, MissingDependencyError without
    huggingface_hub.
    """
    path = _located(os.fspath(path)) if is_address(path) else Path(path)
    if path.suffix == ".safetensors" and not path.is_dir():
        raise SourceModelError(f"{path}: is one file of a model; give its folder, {path.parent}")
    if path.is_dir() and any(path.glob("*.safetensors")):
        raise SourceModelError(f"{path}: is a model as safetensors; {_CONVERT.format(path)}")
    return path


def model_file(path: str | os.PathLike[str]) -> Path:
    """The file of a model, as `located`. Raises MissingFileError, and what that raises."""
    found = located(path)
    if not found.is_file():
        what = "is a folder" if found.is_dir() else "no such file"
        raise MissingFileError(f"{found}: {what}; give a GGUF model")
    return found


@lru_cache(maxsize=64)
def _located(address: str) -> Path:
    match = _parse(address)
    return fetch(match["repository"], match["choice"], revision=match["revision"])[0]


def _parse(address: str) -> re.Match[str]:
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise HubError(f"{address}: is no address; write hf://owner/name, hf://owner/name:Q4_K_M or …:file.gguf")
    return match


def fetch_original(address: str) -> Path:
    """The best copy of a model to convert: the GGUF that is named, one of float weights, or a folder of safetensors.

    Where a repository has neither of the last two its only GGUF. Raises as `located`.
    """
    match = _parse(address)
    repository, choice, revision = match["repository"], match["choice"], match["revision"]
    if choice is None:
        files = _listed(repository, revision)
        models = [name for name in files if name.endswith(".gguf") and not _NO_MODEL.search(Path(name).name)]
        kinds = [[one for one in models if any(_fits(one, word) for word in words)] for words in _FLOATS]
        floats = next((found for found in kinds if found), [])
        if not floats and any(name.endswith(".safetensors") for name in files):
            return fetch_safetensors(address)
        if len({names_of_parts(name)[0] for name in floats}) == 1:
            choice = floats[0]
    return fetch(repository, choice, revision=revision)[0]


def _listed(repository: str, revision: str | None) -> list[str]:
    """Names of the files of a repository, without a network those in the cache."""
    with needs_extra("hub"):
        from huggingface_hub import HfApi, snapshot_download
    try:
        info = HfApi(library_name="seeddelta").model_info(repository, revision=revision)
        return [sibling.rfilename for sibling in info.siblings or ()]
    except Exception as error:
        if _status(error) is not None:
            raise _refused(f"hf://{repository}", error) from error
    try:
        folder = Path(snapshot_download(repository, revision=revision, local_files_only=True))
    except Exception:
        return []  # fetch says why
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]


def fetch_safetensors(address: str | os.PathLike[str]) -> Path:
    """Folder in the cache with the safetensors of a repository, and with what belongs to them. Raises as `located`."""
    match = _parse(os.fspath(address))
    what = f"hf://{match['repository']}"
    if match["choice"] is not None:
        raise HubError(f"{what}:{match['choice']}: with --converter the whole repository is taken; leave the file out")
    with needs_extra("hub"):
        from huggingface_hub import snapshot_download
    try:
        folder = snapshot_download(match["repository"], revision=match["revision"], allow_patterns=list(_SAFETENSORS))
    except Exception as error:
        raise _refused(what, error) from error
    if not any(Path(folder).glob("*.safetensors")):
        raise HubError(f"{what}: the repository has no safetensors to convert; leave --converter out")
    return Path(folder)


def fetch(
    repository: str,
    choice: str | None = None,
    *,
    revision: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    local_dir: str | os.PathLike[str] | None = None,
) -> list[Path]:
    """Download a model of `owner/name` and return the paths of its parts.

    Args:
        choice: as of `choose`.
        revision: branch, tag or commit; None is the main branch.
        cache_dir, local_dir: as of huggingface_hub.hf_hub_download.
    Raises HubError, which names repository, file and remedy.
    """
    with needs_extra("hub"):
        from huggingface_hub import HfApi
    from .. import __version__

    who: dict[str, Any] = {"library_name": "seeddelta", "library_version": __version__}
    folders = {"cache_dir": cache_dir, "local_dir": local_dir}
    where: dict[str, Any] = {name: Path(path) for name, path in folders.items() if path}
    try:
        info = HfApi(**who).model_info(repository, revision=revision)
    except Exception as error:  # also those of the client's HTTP library, which is not the same in all releases
        if _status(error) is not None:
            raise _refused(f"hf://{repository}", error) from error
        return _cached(repository, choice, revision, where, error)
    parts = choose(f"hf://{repository}", [sibling.rfilename for sibling in info.siblings or ()], choice)
    # by the name of the revision, which the cache then knows without a network
    return [_download(repository, part, revision=revision, **who, **where) for part in parts]


def _download(repository: str, file: str, **options: Any) -> Path:
    """One file. Newer clients go on by themselves when a connection breaks, older ones when they are called again."""
    from huggingface_hub import hf_hub_download

    for attempt in range(_ATTEMPTS):
        try:
            return Path(str(hf_hub_download(repository, file, **options)))
        except Exception as error:
            broken = _status(error) is None and getattr(error, "errno", None) is None  # neither an answer nor the disk
            if not broken or attempt + 1 == _ATTEMPTS:
                raise _refused(f"hf://{repository}:{file}", error) from error
            time.sleep(_PAUSE)
    raise AssertionError


def choose(address: str, files: Sequence[str], choice: str | None) -> list[str]:
    """Names of the one model of a repository, all parts of it.

    `choice` is the name of a file (with or without its folder; any part), a pattern such as *Q8_0.gguf, or a type that
    the name has as a word: Q4_K_M, bf16; None where there is one model only. Raises HubError when it fits none, or more
    than one, or when a part is not there.
    """
    known = [name for name in files if name.endswith(".gguf")]
    models = list(dict.fromkeys(names_of_parts(name)[0] for name in sorted(known)))
    if choice is None or not choice.endswith(".gguf"):
        models = [name for name in models if not _NO_MODEL.search(Path(name).name)]
    found = models if choice is None else [name for name in models if _fits(name, choice)]
    what = address if choice is None else f"{address}:{choice}"
    if not known and any(name.endswith(".safetensors") for name in files):
        raise HubError(f"{what}: the repository has safetensors and no GGUF file; {_CONVERT.format(address)}")
    if not known:
        raise HubError(f"{what}: the repository has no GGUF file; take one that has, most are called …-GGUF")
    if not found:
        raise HubError(f"{what}: no such model; the repository has {_list(models or known)}")
    if len(found) > 1:
        raise HubError(f"{what}: may be {_list(found)}; write {address}:{found[0]}, or a type such as :Q8_0")
    parts = names_of_parts(found[0])
    missing = [part for part in parts if part not in set(files)]
    if missing:
        raise HubError(f"{address}: {_list(missing)} of the same model is not there; take another repository")
    return parts


def _fits(model: str, choice: str) -> bool:
    names = {model, Path(model).name}
    wanted = names_of_parts(choice)[0]
    if wanted in names:
        return True
    if any(sign in choice for sign in "*?["):
        return any(fnmatchcase(name, choice) for name in names)
    # a word: not Q4_K in Q4_K_M, nor Q4_XS in IQ4_XS
    word = rf"(?<![a-z0-9]){re.escape(choice)}(?![a-z0-9_])"
    return re.search(word, model.removesuffix(".gguf"), re.IGNORECASE) is not None


def _list(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} others" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _cached(
    repository: str, choice: str | None, revision: str | None, where: dict[str, Any], error: Exception
) -> list[Path]:
    """The model from the cache when the hub does not answer."""
    from huggingface_hub import snapshot_download

    what = f"hf://{repository}"
    try:
        cache = snapshot_download(repository, revision=revision, local_files_only=True, **where)
    except Exception as missing:
        raise HubError(
            f"{what}: the hub cannot be reached ({_line(error)}), and the cache has nothing of it; "
            "check the network, HF_ENDPOINT and HF_HUB_OFFLINE"
        ) from missing
    there = [path.relative_to(cache).as_posix() for path in sorted(Path(cache).rglob("*.gguf")) if path.exists()]
    try:
        return [Path(cache, part) for part in choose(what, there, choice)]
    except HubError as missing:
        raise HubError(f"{missing} (in the cache: the hub cannot be reached, {_line(error)})") from error


def _status(error: Exception) -> int | None:
    """Status of an HTTP answer that was an error."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else None


def _refused(what: str, error: Exception) -> HubError:
    status = _status(error)
    if status in (401, 403):
        return HubError(
            f"{what}: the hub refuses it ({status}): it is private, its license is not agreed to, or there is no such "
            "repository; check the name, agree on its page, and give a token by `hf auth login` or HF_TOKEN"
        )
    if status == 404:
        return HubError(f"{what}: the hub has no such repository, revision or file; check the name ({_line(error)})")
    return HubError(f"{what}: cannot be downloaded ({_line(error)}); check the network and the disk, and try again")


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
