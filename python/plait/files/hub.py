"""Model files from the Hugging Face hub, with its download cache."""

from __future__ import annotations

import os
import re
import socket
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from plait.arguments import flag, string

_CONNECT_SECONDS = 5.0
_PART = re.compile(r"(.*-)(\d{5})(-of-(\d{5})\.gguf)")


def fetch(
    repo: str,
    file: str | None = None,
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    local_files_only: bool = False,
) -> Path:
    """Download a GGUF file of a repository, unless it is cached, and return its path.

    Of a split model, all parts are downloaded and the path is that of the first.

    Args:
        repo: Repository, "owner/name".
        file: File name in the repository, or a pattern with * or ? that matches one model. None if
            the repository has only one model.
        revision: Branch, tag or commit.
        token: Access token, as in huggingface_hub.hf_hub_download().
        cache_dir: Directory of the cache.
        local_files_only: True to use only the cache, never the network.

    Returns:
        The path of the file in the cache.

    Raises:
        FileNotFoundError: The repository, revision or file does not exist.
        ValueError: Several models match, or the repository name is invalid.
        PermissionError: The repository requires a token.
        ConnectionError: The hub cannot be reached, and the file is not in the cache.
        ModuleNotFoundError: huggingface_hub (plait[hub]) is not installed.
    """
    try:
        import huggingface_hub as hub
        from huggingface_hub import constants, errors
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "from_hub needs huggingface_hub: pip install 'plait[hub]'", name="huggingface_hub"
        ) from None
    if not isinstance(repo, str) or not re.fullmatch(r"[^/\s]+/[^/\s]+", repo):
        raise ValueError(f'from_hub: repo is {repo!r}; expected "owner/name"')
    if file is not None:
        string(file, "from_hub: file")
    if revision is not None:
        string(revision, "from_hub: revision")
    local_files_only = flag(local_files_only, "from_hub: local_files_only")
    where = f"{repo}{f' at {revision}' if revision else ''}"
    name = None if file is None or any(sign in file for sign in "*?[") else file
    offline = local_files_only or constants.HF_HUB_OFFLINE
    online = not offline and _connects(constants.ENDPOINT)
    options: dict[str, Any] = {
        "revision": revision, "token": token, "cache_dir": cache_dir, "local_files_only": not online
    }  # fmt: skip
    try:
        if name is None:
            if online:
                names = hub.HfApi(token=token).list_repo_files(repo, revision=revision)
            else:
                names = _cached(repo, revision, cache_dir)
                if not _matching(file, names):
                    raise ConnectionError(_offline(where, file, cache_dir))
            name = _only(where, file, names)
        paths = [Path(hub.hf_hub_download(repo, part, **options)) for part in parts(name)]
    except errors.GatedRepoError as error:
        raise PermissionError(
            f"from_hub: {where} requires a token and the acceptance of its conditions on its page; "
            "run `hf auth login` or pass token="
        ) from error
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        raise FileNotFoundError(
            f"from_hub: {where} does not exist, or is private; for private ones run `hf auth login` or pass token="
        ) from error
    except errors.LocalEntryNotFoundError as error:
        raise ConnectionError(_offline(where, file, cache_dir)) from error
    except errors.EntryNotFoundError as error:
        raise FileNotFoundError(f"from_hub: {where} has no file {file}") from error
    except errors.OfflineModeIsEnabled as error:
        raise ConnectionError(_offline(where, file, cache_dir)) from error
    except errors.HFValidationError as error:
        raise ValueError(f'from_hub: repo is {repo!r}; expected "owner/name"') from error
    except (FileNotFoundError, PermissionError):
        raise
    except Exception as error:
        # Errors of sockets or of the HTTP client; not all of them derive from OSError.
        client = type(error).__module__.partition(".")[0]
        if not isinstance(error, OSError) and not client.startswith(("httpx", "requests")):
            raise
        raise ConnectionError(_offline(where, file, cache_dir)) from error
    return paths[0]


def _connects(endpoint: str) -> bool:
    """Return False if a server cannot be reached. The client would retry for 25 s to find out."""
    url = urlsplit(endpoint)
    if {url.scheme, "all"} & getproxies().keys() and not proxy_bypass(url.hostname or ""):
        return True
    port = url.port or (443 if url.scheme == "https" else 80)
    try:
        socket.create_connection((url.hostname or "", port), timeout=_CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def parts(file: str) -> list[str]:
    """Return the file names of all parts of a split model, or only the given name.

    Args:
        file: Name of any part.
    """
    found = _PART.fullmatch(file)
    if not found or int(found[4]) == 0:
        return [file]
    return [f"{found[1]}{i + 1:05}{found[3]}" for i in range(int(found[4]))]


def _cached(repo: str, revision: str | None, cache_dir: str | os.PathLike[str] | None) -> list[str]:
    """Return the names of the cached GGUF files of a repository."""
    from huggingface_hub import errors, snapshot_download

    cache = None if cache_dir is None else os.fspath(cache_dir)
    try:
        folder = snapshot_download(repo, revision=revision, cache_dir=cache, local_files_only=True)
    except errors.LocalEntryNotFoundError:
        return []
    return [path.relative_to(folder).as_posix() for path in Path(folder).rglob("*.gguf")]


def _matching(pattern: str | None, names: list[str]) -> list[str]:
    """Return the first file of each model that matches, in alphabetical order."""
    models = {parts(name)[0] for name in names if name.endswith(".gguf")}
    return sorted(name for name in models if pattern is None or fnmatchcase(name, pattern))


def _only(where: str, pattern: str | None, names: list[str]) -> str:
    """Return the first file of the only model that matches."""
    fit = _matching(pattern, names)
    if len(fit) == 1:
        return fit[0]
    listed = ", ".join(fit or _matching(None, names)) or "no GGUF file"
    if not fit:
        raise FileNotFoundError(
            f"from_hub: no model of {where} matches {pattern!r}; it has: {listed}"
        )
    raise ValueError(
        f"from_hub: {where} has several models that match; pass one of these as `file`: {listed}"
    )


def _offline(where: str, file: str | None, cache_dir: str | os.PathLike[str] | None) -> str:
    from huggingface_hub import constants

    cache = os.fspath(cache_dir) if cache_dir is not None else constants.HF_HUB_CACHE
    return (
        f"from_hub: the hub cannot be reached, and {cache} does not contain {file or 'a file'} of {where}. Connect to "
        "the network (and unset HF_HUB_OFFLINE), or download the file by other means and open it with "
        "plait.Model(path)"
    )
