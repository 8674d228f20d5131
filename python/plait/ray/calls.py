"""Calls of Ray actors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayTaskError


def start_ray() -> None:
    """Start Ray on this machine unless the process is already connected to a cluster."""
    if not ray.is_initialized():
        ray.init(log_to_driver=False, include_dashboard=False)


def nodes() -> list[dict[str, Any]]:
    """Return the nodes of the cluster that are alive."""
    listed: Any = ray.nodes  # has no types
    return [node for node in listed() if node["Alive"]]


def results(get: Callable[[Any], Any], calls: Any) -> Any:
    """Return the results of calls. If a call raised, raises the original exception."""
    try:
        return get(calls)
    except RayTaskError as error:
        raise (error.cause or error) from None
