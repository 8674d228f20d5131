"""A limit on the size of files, which makes writing fail as on a full disk."""

import contextlib

import pytest


@contextlib.contextmanager
def file_size_limit(n_bytes):
    """Let writing beyond `n_bytes` of any file fail with OSError in this process."""
    resource = pytest.importorskip("resource", reason="needs limits of POSIX")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
