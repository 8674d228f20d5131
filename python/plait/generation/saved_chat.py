"""Files of saved conversations."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from types import NoneType
from typing import Any, Final

from plait.arguments import kind
from plait.whole_file import replace_file

_VERSION: Final = 1
_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "messages": (list,),
    "tools": (list, NoneType),
    "full": (str,),
    "max_tokens": (int,),
    "n_left_out": (int,),
    "stop": (list, str, int),
    "template": (str, NoneType),
    "variables": (dict,),
}
_ELEMENTS: Final[dict[str, tuple[type, ...]]] = {
    "messages": (dict,),
    "tools": (dict,),
    "stop": (str, int),
}


def write(path: str | os.PathLike[str], values: Mapping[str, Any]) -> None:
    """Write a conversation. The file is replaced as a whole, or stays as it is if writing fails.

    Raises:
        ValueError: A value is not JSON, or a text has a lone surrogate.
        OSError: The file cannot be written.
    """
    try:
        text = json.dumps({"version": _VERSION, **values}, ensure_ascii=False, indent=1)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"Chat: save: the conversation is not JSON: {error}") from None
    try:
        data = (text + "\n").encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise ValueError(
            f"Chat: save: the conversation has the lone surrogate U+{code:04X}, which UTF-8 cannot represent; remove it"
        ) from None
    _check(path, "save")
    replace_file(path, data)


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a conversation.

    Returns:
        The values that save() was given, by name.

    Raises:
        ValueError: The file is not a saved conversation.
        OSError: The file cannot be read.
    """
    _check(path, "load")
    name = os.fspath(path)
    with open(path, encoding="utf-8") as file:
        try:
            saved = json.load(file)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"Chat: load: {name} is not JSON: {error}") from None
    if not isinstance(saved, dict) or saved.get("version") != _VERSION:
        raise ValueError(f"Chat: load: {name} is not a conversation of version {_VERSION}")
    missing = [key for key in _TYPES if key not in saved]
    if missing:
        raise ValueError(f"Chat: load: {name} lacks {', '.join(missing)}")
    for key, types in _TYPES.items():
        value = saved[key]
        elements = value if isinstance(value, list) else ()
        if not isinstance(value, types) or not all(isinstance(e, _ELEMENTS[key]) for e in elements):
            raise ValueError(
                f"Chat: load: {name} is not a saved conversation: {key} is {value!r:.80}"
            )
    return saved


def _check(path: object, function: str) -> None:
    if not isinstance(path, str | bytes | os.PathLike):
        raise TypeError(f"Chat: {function}: path: expected a path, got {kind(path)}")
