"""What every program here begins with: a limit of memory, and the errors that a caller may meet."""

import os
import resource
from pathlib import Path

import plait

# Which reserves terabytes of addresses, keeps what was freed and takes several times as long.
UNDER_ASAN = "libasan" in os.environ.get("LD_PRELOAD", "")

# Those of the API reference and Python's own for a wrong argument. InternalError would be a mistake of ours.
DOCUMENTED = (
    plait.ModelError, plait.UnsupportedError, plait.StateError, plait.BatchError, plait.CacheFull,
    TypeError, ValueError, IndexError, KeyError, OSError, BufferError, MemoryError,
)  # fmt: skip


def limit_memory(gib: float = 4) -> None:
    """Make a claim of a damaged file that is believed a MemoryError, not the end of the machine."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if not UNDER_ASAN:
        limit = int(gib * 2**30)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def watch_peak() -> float:
    """Begin to watch the most memory the process has, in MiB; returns what it has now."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak_mib()


def peak_mib() -> float:
    """The most memory the process had since watch_peak()."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def expect_words(error: BaseException) -> None:
    assert not isinstance(error, UnicodeError), f"{error!r} stands for another error"
    # The interpreter's own lack of memory comes without words.
    assert str(error) or isinstance(error, MemoryError), f"{type(error).__name__} says nothing"
