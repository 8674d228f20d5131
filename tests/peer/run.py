#!/usr/bin/env python3
"""Try on llama.cpp what the reliability goals ask of plait, and write what came of it: ./dev evidence peer.

    run.py --python PYTHON --json OUT.json [GOAL...]

PYTHON is an interpreter with llama-cpp-python. The files, states and calls are those of plait's tests where they do
not depend on plait's own formats (trials.py); every trial that may end the process runs in a child.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TRIALS = Path(__file__).with_name("trials.py")
DATA = Path(os.environ.get("PLAIT_TEST_DATA", ROOT.parent / "shared" / "data"))
GENERATORS = DATA.parent / "check" / "hostile"
HUNG = 20  # seconds
GIB = 4  # of addresses that a trial with damaged files may have
SEED = 20240229
sys.path[:0] = [str(ROOT / "tests" / "python" / "hostile"), str(ROOT / "tests")]
KINDS = (
    "bert", "deepseek2", "falcon-h1", "gemma3", "jamba", "llama-gqa", "mamba", "phi3-longrope", "qwen2vl", "rwkv6",
    "t5",
)  # fmt: skip
WEIGHTS = {
    "nan": b"\xff\xff\xff\x7f",
    "inf": b"\0\0\x80\x7f",
    "zero": b"\0\0\0\0",
    "max": b"\xff\xff\x7f\x7f",
}
STATES = {  # ends of a trial with a damaged state, and what they are called
    "refused": "refused cleanly",
    "destroyed": "refused with other logits afterwards",
    "accepted": "accepted",
    "died": "crashes",
    "hung": "hangs",
}

Answer = dict[str, Any]


class Child:
    """A trial in a process of its own, which is started again when it ends."""

    def __init__(
        self, python: str, *arguments: object, preload: Path | None = None, limited: bool = False
    ) -> None:
        self.command = [python, str(TRIALS), *map(str, arguments)]
        if limited:
            self.command = [
                "bash",
                "-c",
                f'ulimit -v {GIB << 20}; exec "$@"',
                "bash",
                *self.command,
            ]
        self.environment = {
            **os.environ,
            "GGML_NO_BACKTRACE": "1",
            **({"LD_PRELOAD": str(preload)} if preload else {}),
        }
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> subprocess.Popen[str]:
        """Start the process unless it runs."""
        if self.process is None:
            self.process = subprocess.Popen(
                self.command, env=self.environment, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        return self.process

    def answer(self, seconds: float = HUNG) -> Answer | str:
        """Return the next line that the process prints, "died" if it ends before, "hung" if nothing comes."""
        process = self.start()
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], seconds)[0]:
            self.stop()
            return "hung"
        line = process.stdout.readline()
        if not line:
            self.stop()
            return "died"
        if not line.startswith("{"):  # what ggml says before it aborts
            return self.answer(seconds)
        found: Answer = json.loads(line)
        return found

    def ask(self, path: Path) -> Answer | str:
        """Give the process a file; return its answer."""
        fresh = self.process is None
        process = self.start()
        if fresh:
            assert isinstance(self.answer(60), dict), "the trial does not start"
        assert process.stdin
        process.stdin.write(f"{path}\n")
        process.stdin.flush()
        return self.answer()

    def all(self, seconds: float = 600) -> list[Answer | str]:
        """Return everything the process prints until it ends; the last is "died" or "hung" if it failed."""
        found: list[Answer | str] = []
        while True:
            said = self.answer(seconds)
            if said == "died":  # or ended well
                assert self.status <= 0, f"{self.command[2:]} is wrong: it ended with {self.status}"
                return found if self.status == 0 else [*found, said]
            found.append(said)
            if said == "hung":
                return found

    def stop(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill() if self.process.poll() is None and self.running() else None
            self.status = self.process.wait()
            for pipe in (self.process.stdin, self.process.stdout):
                if pipe:
                    pipe.close()
            self.process = None

    def running(self) -> bool:
        """Return whether the process still runs a moment later: it may have closed its output and be about to end."""
        assert self.process is not None
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            return True
        return False


def counted(ends: Counter[str], **words: str) -> str:
    """Return "28 crashes, 2 hangs of 792": how often each end was met, without those never met but for the first."""
    first = next(iter(words))
    met = [f"{ends[end]:,} {word}" for end, word in words.items() if ends[end] or end == first]
    return f"{', '.join(met)} of {ends.total():,}"


def end_of_state(said: Answer | str) -> str:
    """Return the end of a trial with a damaged state, a key of STATES."""
    if isinstance(said, str):
        return said
    if said["accepted"]:
        return "accepted"
    return "refused" if said["same"] else "destroyed"


def end_of_file(said: Answer | str) -> str:
    """Return the end of a trial with a file."""
    if isinstance(said, str):
        return said
    if said["loads"]:
        return "loaded"
    return "refused" if said["seconds"] <= 1 else "slow"


class Peer:
    """The trials of each goal; each returns the text of a cell."""

    def __init__(self, python: str, folder: Path) -> None:
        self.python, self.folder = python, folder
        self.version = self.child("version").answer()
        if not isinstance(self.version, dict):
            raise SystemExit(
                f"{python} has no llama-cpp-python; name an interpreter that has it in PLAIT_LLAMA_CPP"
            )
        self.stories = DATA / "models" / "stories260K-f32.gguf"
        self.malloc = folder / "failing_malloc.so"
        source = ROOT / "tests" / "python" / "hostile" / "failing_malloc.c"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", self.malloc, source], check=True)

    def child(self, *arguments: object, **options: Any) -> Child:
        return Child(self.python, *arguments, **options)

    # --- files -----------------------------------------------------------------------------------

    def damaged(self, variants: Iterator[tuple[str, bytes]]) -> tuple[Counter[str], float, float]:
        """Use damaged models; count how it ended. Also the most seconds and MiB that a refusal took."""
        child = self.child("files", limited=True)
        ends: Counter[str] = Counter()
        slowest = largest = 0.0
        path = self.folder / "bad.gguf"
        for expect, data in variants:
            path.write_bytes(data)
            said = child.ask(path)
            end = end_of_file(said)
            ends["believed" if end == "loaded" and expect == "raise" else end] += 1
            if isinstance(said, dict) and not said["loads"]:
                slowest, largest = max(slowest, said["seconds"]), max(largest, said["mib"])
        child.stop()
        return ends, slowest, largest

    def g1_g2(self) -> dict[str, str]:
        loaded = importlib.import_module("generators").loaded
        maker = loaded(GENERATORS / "make_hostile.py").Maker(self.stories.read_bytes(), SEED)
        ends, slowest, largest = self.damaged((expect, data) for _, _, expect, data in maker.all())
        return {
            "G1": counted(ends, died="crashes", hung="hangs", believed="loaded without a reading"),
            "G2": f"up to {slowest:.1f} s and {largest:.0f} MiB, beside {ends['hung']} hangs",
        }

    def g3(self) -> dict[str, str]:
        models = importlib.import_module("models")
        total: Counter[str] = Counter()
        for kind in KINDS:
            data = (DATA / "conformance" / kind / "model.gguf").read_bytes()
            layout = models.Layout(data)
            variants = (
                ("any", bytes(models.damage(random.Random(f"1 {i}"), layout))) for i in range(60)
            )
            total += self.damaged(variants)[0]
        return {"G3": counted(total, died="crashes", hung="hangs")}

    def g5(self) -> dict[str, str]:
        file_tests = importlib.import_module("python.model.test_model_file")
        ends: Counter[str] = Counter()
        for what in file_tests.SPECIAL:
            folder = self.folder / f"special {what}"
            folder.mkdir()
            child = self.child("files", limited=True)
            ends[end_of_file(child.ask(file_tests.special(folder, what)))] += 1
            child.stop()
        return {
            "G5": counted(ends, refused="refused within a second", slow="slow", hung="hangs", died="crashes")
        }  # fmt: skip

    def g22(self) -> dict[str, str]:
        changes = importlib.import_module("python.model.test_model_file").CHANGES
        told = []
        for name, change in changes.items():
            path = self.folder / f"changed {name}.gguf"
            path.write_bytes(self.stories.read_bytes())
            (said, *_) = self.child("changed_file", path, change).all()
            if isinstance(said, dict):
                said = "unchanged" if said["same"] else "other logits"
            told.append(f"{name}: {said}")
        return {"G22": "; ".join(told)}

    def g23(self) -> dict[str, str]:
        models = importlib.import_module("models")
        data = self.stories.read_bytes()
        begin = models.Layout(data).end + 64
        ends: Counter[str] = Counter()
        for name, pattern in WEIGHTS.items():
            path = self.folder / f"{name}.gguf"
            path.write_bytes(data[:begin] + (pattern * (len(data) // 4))[: len(data) - begin])
            for said in self.child("samplers", path).all():
                ends[said if isinstance(said, str) else "token" if said["token"] else "none"] += 1
        return {"G23": counted(ends, token="valid tokens", none="others", died="crashes")}

    # --- states ----------------------------------------------------------------------------------

    def g6(self) -> dict[str, str]:
        loaded = importlib.import_module("generators").loaded
        generator = loaded(GENERATORS / "make_hostile_state.py")
        good, other = self.folder / "good", self.folder / "other"
        self.child("state", self.stories, good).all()
        self.child("state", DATA / "conformance" / "llama-gqa" / "model.gguf", other).all()
        bad, data = self.folder / "bad.state", good.read_bytes()
        child = self.child("states", self.stories, good, limited=True)
        ends: Counter[str] = Counter()
        for _, _, damaged in generator.variants(data, SEED, 64, other.read_bytes()):
            if damaged == data:
                continue
            bad.write_bytes(damaged)
            ends[end_of_state(child.ask(bad))] += 1
        child.stop()
        return {"G6": counted(ends, **STATES)}

    def g7(self) -> dict[str, str]:
        kinds = ["llama-gqa", "gemma3", "jamba", "rwkv7", "mamba", "deepseek2"]
        paths = {kind: DATA / "conformance" / kind / "model.gguf" for kind in kinds}
        for kind, path in paths.items():
            self.child("state", path, self.folder / kind).all()
        ends: Counter[str] = Counter()
        for kind, path in paths.items():
            for other in kinds:
                if other == kind:
                    continue
                child = self.child("states", path, self.folder / kind, limited=True)
                ends[end_of_state(child.ask(self.folder / other))] += 1
                child.stop()
        return {"G7": counted(ends, **STATES) + " pairs"}

    def g8(self, n_kills: int = 200) -> dict[str, str]:
        names = [self.folder / "one", self.folder / "two"]
        self.child("long_states", self.stories, *names).all()
        allowed = [name.with_name(f"{name.name}.saved").read_bytes() for name in names]
        target = self.folder / "target.state"
        rng = random.Random(3)
        torn = 0
        for _ in range(n_kills):
            target.write_bytes(allowed[0])
            child = self.child("saver", self.stories, target, *names)
            child.answer(60)
            time.sleep(rng.uniform(0, 0.03))
            process = child.start()
            process.send_signal(signal.SIGKILL)
            child.stop()
            torn += target.read_bytes() not in allowed
        return {"G8": f"{torn} torn files after {n_kills} kills"}

    # --- calls -----------------------------------------------------------------------------------

    def g11(self) -> dict[str, str]:
        found = self.child("full", self.stories).all()
        good = sum(isinstance(said, dict) and said["refused"] and said["same"] for said in found)
        return {
            "G11": f"{good} of 200 byte-equal"
            + (f", then {found[-1]}" if isinstance(found[-1], str) else "")
        }

    def g12(self) -> dict[str, str]:
        found = self.child("invalid_calls", self.stories, limited=True).all()
        ends = Counter(said if isinstance(said, str) else said["ended"] for said in found)
        return {"G12": counted(ends, died="crashes", hung="hangs")}

    # --- threads, signals and processes ----------------------------------------------------------

    def g13(self) -> dict[str, str]:
        child = self.child("interrupted", self.stories)
        child.answer(60)
        process = child.start()
        time.sleep(0.3)
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        said = child.answer(300)
        seconds = time.monotonic() - begin
        child.stop()
        return {"G13": f"after {seconds:.1f} s" if isinstance(said, dict) else str(said)}

    def g14(self) -> dict[str, str]:
        found = self.child("forks", self.stories, 5).all()
        ends = Counter(said if isinstance(said, str) else said["ended"] for said in found)
        return {"G14": counted(ends, hung="hangs", died="crashes") + " forks"}

    def g15_g16(self) -> dict[str, str]:
        told = {}
        for goal, n_contexts in (("G15", 2), ("G16", 1)):
            (said, *_) = self.child("threads", self.stories, n_contexts, 1000).all()
            told[goal] = (
                said
                if isinstance(said, str)
                else f"{said['same']:,} of {said['of']:,} as of one thread"
            )
        return told

    # --- memory ----------------------------------------------------------------------------------

    def g17_g18(self) -> dict[str, str]:
        (said, *_) = self.child("steps", self.stories, preload=self.malloc).all()
        if isinstance(said, dict):
            said = (
                f"{said['kib']} KiB in 40,000 steps; {said['allocations']:.0f} allocations a step"
            )
        bad = self.folder / "short.gguf"
        bad.write_bytes(self.stories.read_bytes()[:-1])
        grown = []
        for found in self.child("refusals", self.stories, bad).all():
            if isinstance(found, str):
                grown.append(f"then it {found}")
            else:
                grown += [f"{what}: {n} KiB over 1,000" for what, n in found.items()]
        return {"G17": said, "G18": "; ".join(grown)}

    def g19(self) -> dict[str, str]:
        found = self.child("allocations", self.stories, preload=self.malloc).all()
        ends = Counter(said if isinstance(said, str) else said["ended"] for said in found)
        words = {"died": "crashes", "hung": "hangs", "changed": "conversations destroyed"}
        return {"G19": counted(ends, **words)}

    def g21(self) -> dict[str, str]:
        assert isinstance(self.version, dict)
        ways = {"abort", "exit", "_exit", "quick_exit", "__assert_fail", "_ZSt9terminatev"}
        imported = set()
        for library in sorted(Path(self.version["folder"]).rglob("lib*.so")):
            command = ["nm", "-D", "--undefined-only", str(library)]
            listed = subprocess.run(command, capture_output=True, text=True, check=True)
            imported |= {
                line.split()[-1].partition("@")[0]
                for line in listed.stdout.splitlines()
                if line.split()
            }
        return {"G21": "imports " + (", ".join(sorted(ways & imported)) or "none of them")}


def trials(peer: Peer) -> list[Callable[[], dict[str, str]]]:
    """Return the trials in the order of their goals."""
    return [
        peer.g1_g2, peer.g3, peer.g5, peer.g6, peer.g7, peer.g8, peer.g11, peer.g12, peer.g13, peer.g14,
        peer.g15_g16, peer.g17_g18, peer.g19, peer.g21, peer.g22, peer.g23,
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("goals", nargs="*", help="goals to try, such as G1; all by default")
    parser.add_argument(
        "--python", default=sys.executable, help="an interpreter with llama-cpp-python"
    )
    parser.add_argument("--json", type=Path, help="file for the results")
    args = parser.parse_args()
    if not DATA.is_dir() or not GENERATORS.is_dir():
        raise SystemExit(f"no reference data in {DATA}: set PLAIT_TEST_DATA to its folder")
    with tempfile.TemporaryDirectory() as folder:
        peer = Peer(args.python, Path(folder))
        assert isinstance(peer.version, dict)
        results: dict[str, str] = {}
        for trial in trials(peer):
            goals = {name.upper() for name in trial.__name__.split("_")}
            if args.goals and not goals & set(args.goals):
                continue
            found = trial()
            results |= found
            for goal, text in found.items():
                print(f"{goal}: {text}", flush=True)
        if args.json:
            args.json.write_text(
                json.dumps({"version": peer.version["version"], "goals": results}, indent=1)
            )


if __name__ == "__main__":
    main()
