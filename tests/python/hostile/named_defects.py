"""named_defects.py models|states GENERATOR FOLDER MODEL: every named defect of a file, refused where it has no reading.

GENERATOR is make_hostile.py or make_hostile_state.py, which stand beside the reference data. They write files with one
named defect each and know which of them have no valid reading. Such a file must be refused, any other may load. What a
refusal may cost, and that another context says the same afterwards, is as in models.py and states.py.
"""

import sys
from pathlib import Path
from types import ModuleType

import models
import plait
import states
from generators import loaded
from limits import limit_memory

SEED = 20240229  # the one that the generators take by default
HEAD = 384  # bytes at the front of a state whose every field is tried


def of_models(generator: ModuleType, folder: Path, path: Path) -> str:
    """Try all variants of a model; return what was done."""
    good = plait.Context(plait.Model.demo(), n_ctx=16)
    want = models.says(good)
    models.use(plait.Model(path))
    bad = folder / "bad.gguf"
    n = n_without_reading = n_refused = 0
    slowest = largest = 0.0
    for category, name, expect, data in generator.Maker(path.read_bytes(), SEED).all():
        which = f"{category}__{name}"
        bad.write_bytes(data)
        loads, seconds, mib = models.within_limits(bad, which)
        assert not (loads and expect == "raise"), f"{which} has no valid reading, and was loaded"
        n += 1
        n_without_reading += expect == "raise"
        if not loads:
            n_refused += 1
            slowest, largest = max(slowest, seconds), max(largest, mib)
        assert models.says(good) == want, f"{which} changed another context"
    assert n_without_reading > 300
    return (
        f"{n:,} named defects, {n_without_reading:,} of {n_without_reading:,} without a reading and {n_refused:,} in "
        f"all refused, at most {slowest:.2f} s and at most {largest:.1f} MiB each"
    )


def of_states(generator: ModuleType, folder: Path, path: Path) -> str:
    """Try all variants of a state; return what was done."""
    with states.conversation(plait.Model.demo()) as other:
        foreign = other.kv.to_bytes()
    ctx = states.conversation(plait.Model(path))
    good = ctx.kv.to_bytes()
    found = generator.variants(good, SEED, HEAD, foreign)
    return states.check_all(ctx, ((f"{kind}__{name}", data) for kind, name, data in found))


def main(what: str, generator: str, folder: str, path: str) -> None:
    limit_memory()
    run = {"models": of_models, "states": of_states}[what]
    print(run(loaded(Path(generator)), Path(folder), Path(path)))


if __name__ == "__main__":
    main(*sys.argv[1:])
