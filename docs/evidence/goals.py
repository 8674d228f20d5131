"""The reliability goals: what each asks for."""

from __future__ import annotations

from typing import NamedTuple


class Goal(NamedTuple):
    """A row of docs/reliability.md."""

    topic: str
    target: str


GOALS = {
    "G1": Goal(
        "damaged models",
        "0 crashes, 0 hangs; each of the files without a valid reading is rejected; other contexts stay bit-equal",
    ),
    "G2": Goal("cost of rejecting a file", "at most 1 s and 64 MiB per rejected file"),
    "G3": Goal("every kind of memory", "G1 for a model with each kind"),
    "G4": Goal("random damage in process", "100,000 damaged files under ASan and UBSan: 0 reports"),
    "G5": Goal("paths that are not files", "rejected within a second"),
    "G6": Goal("damaged states", "all rejected, context byte-equal, at most 16 MiB used"),
    "G7": Goal("states of other models", "rejected, the message names the field"),
    "G8": Goal(
        "atomic saving",
        "200 kills, and a disk that is full at every 4 KiB: either the old file or the new one",
    ),
    "G9": Goal("cache bookkeeping", "1,000 programs of 100 calls: 0 differences from plain lists"),
    "G10": Goal(
        "cache contents",
        "bit-equal to the logits of a fresh context; after shifts, divisions and removals within 1e-4 of a NumPy model "
        "that does the same to its own keys and values",
    ),
    "G11": Goal("no free cells", "200 of 200 byte-equal after CacheFull"),
    "G12": Goal(
        "invalid calls",
        "every public method with every kind of wrong argument: 0 crashes, documented errors, bit-equal afterwards",
    ),
    "G13": Goal(
        "Ctrl-C", "raised within 0.25 s, worst of 50 in a prompt of 12,000 tokens; cache unchanged"
    ),
    "G14": Goal("fork and multiprocessing", "50 forks and three kinds of Pool: 0 hangs"),
    "G15": Goal(
        "two contexts, two threads", "1,000 results bit-equal to serial runs; TSan: 0 reports"
    ),
    "G16": Goal(
        "one context, two threads",
        "2 x 1,000 calls complete, results as in some serial order; TSan: 0 reports",
    ),
    "G17": Goal(
        "memory over time",
        "at most 64 KiB in 90,000 steps; 0 allocations per step, of any thread, counted in malloc",
    ),
    "G18": Goal("memory over failures", "at most 64 KiB over 1,000 errors"),
    "G19": Goal(
        "failed allocations",
        "every allocation, once and with all later: MemoryError or success, 0 crashes, byte-equal",
    ),
    "G20": Goal(
        "sanitizers", "0 reports: the whole suite under ASan, UBSan and LSan, threads under TSan"
    ),
    "G21": Goal("ways to end the process", "no import of abort, exit or assert"),
    "G22": Goal("the model file changes", "logits unchanged"),
    "G23": Goal("NaN and infinity", "a documented error or a valid token"),
    "G24": Goal("lifetimes", "1,000 orders of destruction: 0 crashes"),
    "G25": Goal(
        "errors in worker threads", "an exception reaches the caller, and the next call works"
    ),
    "G26": Goal("coverage of the file reader and state code", "100 % of lines, 95 % of branches"),
    "soak": Goal("mixed work in two threads", "20 min under ASan: no report, no growth"),
}
