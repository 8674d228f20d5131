"""Model files from the Hugging Face hub: downloaded once, resumed where a download broke off, found again offline."""

from __future__ import annotations

import os
import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

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
    """The path of a repository's GGUF file in the local cache; of a split model the first, with all others beside it.

    `file`: its name in the repository, or a pattern with * or ? that only one model fits; None: the only one there is.
    The other arguments are those of huggingface_hub.hf_hub_download().

    Raises FileNotFoundError for a repository, revision or file that is not there, ValueError where several fit,
    PermissionError for a repository that asks for a token, ConnectionError where the hub cannot be reached and the
    cache does not have the file; ModuleNotFoundError without huggingface_hub (plait[hub]).
    """
    try:
        import huggingface_hub as hub
        from huggingface_hub import errors
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "from_hub needs huggingface_hub: pip install plait[hub]", name="huggingface_hub"
        ) from None
    where = f"{repo}{f' at {revision}' if revision else ''}"
    options: dict[str, Any] = {
        "revision": revision, "token": token, "cache_dir": cache_dir, "local_files_only": local_files_only
    }  # fmt: skip
    try:
        if file is None or any(sign in file for sign in "*?["):
            if local_files_only:
                raise ValueError(
                    f"from_hub: without the hub the exact name of a file is needed, got {file!r}"
                )
            names = hub.HfApi(token=token).list_repo_files(repo, revision=revision)
            file = _only(where, file, names)
        paths = [Path(hub.hf_hub_download(repo, name, **options)) for name in parts(file)]
    except errors.GatedRepoError as error:
        raise PermissionError(
            f"from_hub: {where} wants its conditions accepted on its page, and a token: `hf auth login`, or token="
        ) from error
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        raise FileNotFoundError(
            f"from_hub: the hub has no {where}, or it is private and wants a token: `hf auth login`, or token="
        ) from error
    except errors.LocalEntryNotFoundError as error:
        raise ConnectionError(_offline(where, file, cache_dir)) from error
    except errors.EntryNotFoundError as error:
        raise FileNotFoundError(f"from_hub: {where} has no file {file}") from error
    except errors.OfflineModeIsEnabled as error:
        raise ConnectionError(_offline(where, file, cache_dir)) from error
    except errors.HFValidationError as error:
        raise ValueError(f"from_hub: expected owner/name, got {repo!r}") from error
    except (FileNotFoundError, PermissionError):
        raise
    except Exception as error:
        # Of sockets, or of whatever client of HTTP is below: not all of those are OSError.
        client = type(error).__module__.partition(".")[0]
        if not isinstance(error, OSError) and not client.startswith(("httpx", "requests")):
            raise
        raise ConnectionError(_offline(where, file, cache_dir)) from error
    return paths[0]


def parts(file: str) -> list[str]:
    """The files of a split model by the name of one of them, else that name alone."""
    found = _PART.fullmatch(file)
    if not found:
        return [file]
    return [f"{found[1]}{i + 1:05}{found[3]}" for i in range(int(found[4]))]


def _only(where: str, pattern: str | None, names: list[str]) -> str:
    """The one model that fits, by its first file."""
    models = {parts(name)[0] for name in names if name.endswith(".gguf")}
    fit = sorted(name for name in models if pattern is None or fnmatchcase(name, pattern))
    if len(fit) == 1:
        return fit[0]
    listed = ", ".join(fit or sorted(models)) or "no GGUF file at all"
    if not fit:
        raise FileNotFoundError(
            f"from_hub: {where} has nothing that fits {pattern!r}, but {listed}"
        )
    raise ValueError(f"from_hub: {where} has several models, say which: {listed}")


def _offline(where: str, file: str | None, cache_dir: str | os.PathLike[str] | None) -> str:
    from huggingface_hub import constants

    cache = os.fspath(cache_dir) if cache_dir is not None else constants.HF_HUB_CACHE
    return (
        f"from_hub: the hub cannot be reached, and {cache} does not have {file or 'a file'} of {where}. Connect once "
        "(and see that HF_HUB_OFFLINE is not set), or copy the file here by other means and open it with "
        "plait.Model(path)"
    )
