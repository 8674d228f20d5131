#!/usr/bin/env python3
"""Compare plait with llama.cpp on the same files, threads and work, in alternation within one run.

    compare.py MODEL... [--cases pp:512,tg:64@0,btg:8x32@256] [--rounds 3] [--busy 1] [--json out.json] [--plot out.png]

A model is a GGUF file, or shape:type for a model with random weights (models.py). The cases are defined in
engines.py. Each engine runs in its own process, alternating `rounds` times. A row has both medians and the median of
the paired ratios; above 1, plait is faster. Absolute figures vary with the load on the machine, ratios hardly do. For
cases limited by memory, the memory bandwidth is measured at the same time. A prefix of more than 1,024 tokens is
computed once by each engine. Afterwards its saved state is loaded into every sequence. Without llama-cpp-python, only
plait is measured; --python selects an interpreter that has it. Where llama.cpp crashes, a row has the name of the
signal in place of its figures. Rows already in the JSON file are kept if machine and builds are the same.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import models
import plait
from engines import ENGINES, Case

LONG_PREFIX = 1024
CRASHES = (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV)
ENGINE_SCRIPT = Path(__file__).with_name("engines.py")
SPIN = "import os\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nwhile True: pass"


@contextmanager
def files(names: list[str]) -> Iterator[dict[str, str]]:
    with tempfile.TemporaryDirectory() as folder:
        found = {}
        for name in names:
            path = Path(name)
            if not path.is_file():
                path = models.write(name, Path(folder) / (name.replace(":", "-") + ".gguf"))
            found[name if path.parent == Path(folder) else path.stem] = str(path)
        yield found


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Run other processes that spin on the first core."""
    others = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(processes)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


class Crash(Exception):
    """llama.cpp crashed; the argument is the name of the signal."""


def measure(
    engine: str, path: str, case: str, prefixes: str, args: argparse.Namespace
) -> dict[str, float]:
    parsed = Case.parse(case)
    # llama.cpp loads a state only into a context for as many sequences.
    prefix = Path(prefixes) / f"{engine}-{Path(path).stem}-{parsed.depth}-{parsed.n_seqs}"
    done = subprocess.run(
        [
            args.python if engine == "llama.cpp" else sys.executable,
            ENGINE_SCRIPT, engine, path, case,
            "--threads", str(args.threads),
            "--options", json.dumps(args.options),
            *(["--prefix", str(prefix)] if parsed.depth > LONG_PREFIX else []),
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if engine == "llama.cpp" and -done.returncode in CRASHES:
        raise Crash(signal.Signals(-done.returncode).name)
    if done.returncode:
        raise SystemExit(
            f"{engine}, {case} of {path}: exit {done.returncode}\n{done.stderr[-2000:]}"
        )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def bytes_of_a_token(path: str) -> float:
    """Return the size of the weights that a step of one token reads."""
    model = plait.Model(path)
    experts = model.metadata.get(f"{model.arch}.expert_count", 0)
    used = model.metadata.get(f"{model.arch}.expert_used_count", 0)
    tables = {"per_layer_token_embd.weight"}  # of which a token reads one row
    if "output.weight" in model.tensors:
        tables.add("token_embd.weight")
    return sum(
        info.nbytes * (used / experts if "_exps" in name else 1)
        for name, info in model.tensors.items()
        if name not in tables
    )


def row(
    path: str, case: str, engines: list[str], prefixes: str, args: argparse.Namespace
) -> dict[str, Any]:
    """Measure a case in turns. States of long prefixes are kept in the folder `prefixes`."""
    figures: dict[str, list[float]] = {engine: [] for engine in engines}
    peaks: dict[str, float] = {}
    crashes: dict[str, str] = {}
    reads = Case.parse(case).is_reading and not args.busy
    speeds: list[float] = []
    for turn in range(args.rounds):
        for engine in list(figures) if turn % 2 == 0 else list(figures)[::-1]:
            try:
                found = measure(engine, path, case, prefixes, args)
            except Crash as error:
                crashes[engine] = str(error)
                del figures[engine]
                continue
            figures[engine].append(found["figure"])
            if "peak" in found:
                peaks[engine] = found["peak"]
        if reads:
            speeds.append(measure("memory", path, case, prefixes, args)["figure"])
    result: dict[str, Any] = {
        "case": case,
        "medians": {engine: statistics.median(of) for engine, of in figures.items()},
        "all": figures,
        "busy": args.busy,
        "options": args.options,
    }
    if crashes:
        result["crashes"] = crashes
    if peaks:
        result["peak_of_file"] = peaks
    if reads:
        size = bytes_of_a_token(path)
        shares = (rate * size / read for rate, read in zip(figures["plait"], speeds, strict=True))
        result["memory_bytes_per_second"] = statistics.median(speeds)
        result["share_of_memory"] = statistics.median(shares)
    if len(figures) > 1:
        mine, theirs = (figures[engine] for engine in engines)
        result["ratio"] = statistics.median(a / b for a, b in zip(mine, theirs, strict=True))
    return result


def machine() -> dict[str, Any]:
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    build = plait.build_info()
    build.pop("architectures")
    isa = os.environ.get("PLAIT_ISA") or build["isas"][-1]
    return {"cpu": cpu, "cores": len(os.sched_getaffinity(0)), "isa": isa, "build": build}


def show(model: str, found: dict[str, Any]) -> None:
    medians = found["medians"]
    scale, unit = (1e9, "GB/s") if found["case"] == "load" else (1, "tok/s")
    crashes = found.get("crashes", {})
    columns = "".join(
        f"{medians[e] / scale:12.1f}" if e in medians else f"{crashes.get(e, ''):>12}"
        for e in ENGINES
    )
    ratio = f"{found['ratio']:8.2f}" if "ratio" in found else ""
    tail = ""
    if "peak_of_file" in found:
        tail = f"  peak memory {found['peak_of_file']['plait']:.2f} of the file"
    if "share_of_memory" in found:
        tail = f"  {found['share_of_memory']:.0%} of the memory bandwidth"
    print(f"{model:>20} {found['case']:>14}{columns} {unit:<6}{ratio}{tail}", flush=True)


def plot(tables: dict[str, list[dict[str, Any]]], path: str) -> None:
    """Draw the ratios as bars, one group per model."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    bars = [
        (f"{model}\n{r['case']}", r["ratio"])
        for model, rows in tables.items()
        for r in rows
        if "ratio" in r
    ]
    figure, axes = plt.subplots(figsize=(7, 0.42 * len(bars) + 1.2), layout="constrained")
    places = range(len(bars))[::-1]
    axes.barh(places, [ratio for _, ratio in bars], color="#3b6ea5", height=0.7)
    for place, (_, ratio) in zip(places, bars, strict=True):
        axes.text(ratio, place, f" {ratio:.2f}", va="center")
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_yticks(places, [label.replace("\n", "  ") for label, _ in bars])
    axes.set_xlabel("times the speed of llama.cpp")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def llama_cpp(python: str) -> str | None:
    """Return the version and instruction sets of llama.cpp; None if the interpreter does not have it."""
    done = subprocess.run(
        [
            python,
            "-c",
            "import llama_cpp as l; print(l.__version__, l.llama_print_system_info().decode())",
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        return None
    version, _, features = done.stdout.partition(" ")
    sets = re.findall(r"\b((?:AVX|AMX)\w*) = 1", features)
    return f"{version} ({', '.join(sets)})"


def merged(path: str, result: dict[str, Any]) -> dict[str, Any]:
    """Return `result` merged into the rows of the file, if machine and builds are the same."""
    if not Path(path).exists():
        return result
    found: dict[str, Any] = json.loads(Path(path).read_text())
    if found["machine"] != result["machine"] or found["llama.cpp"] != result["llama.cpp"]:
        return result
    for model, rows in result["models"].items():
        measured = {key(row) for row in rows}
        kept = [row for row in found["models"].get(model, []) if key(row) not in measured]
        found["models"][model] = kept + rows
    return found | {"date": result["date"]}


def key(row: dict[str, Any]) -> str:
    return json.dumps([row["case"], row["busy"], row["options"]])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+")
    parser.add_argument("--cases", default="pp:512,tg:64@0,btg:8x32@256")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--options", type=json.loads, default={}, help="arguments of plait.Context, as JSON"
    )
    parser.add_argument("--busy", type=int, default=0, help="number of other busy processes")
    parser.add_argument(
        "--python", default=sys.executable, help="interpreter that has llama-cpp-python"
    )
    parser.add_argument("--json")
    parser.add_argument("--plot")
    args = parser.parse_args()
    cases = args.cases.split(",")
    for case in cases:
        try:
            Case.parse(case)
        except ValueError as error:
            parser.error(str(error))
    peer = llama_cpp(args.python)
    engines = list(ENGINES) if peer else ["plait"]
    print(f"{'model':>20} {'case':>14}" + "".join(f"{engine:>12}" for engine in ENGINES))
    tables: dict[str, list[dict[str, Any]]] = {}
    with (
        files(args.models) as paths,
        busy(args.busy),
        tempfile.TemporaryDirectory() as prefixes,
    ):
        for model, path in paths.items():
            for case in cases:
                tables.setdefault(model, []).append(row(path, case, engines, prefixes, args))
                show(model, tables[model][-1])
    if args.json:
        result = {
            "date": date.today().isoformat(),
            "machine": machine(),
            "llama.cpp": peer,
            "models": tables,
        }
        Path(args.json).write_text(json.dumps(merged(args.json, result), indent=1) + "\n")
    if args.plot and len(engines) > 1:
        plot(tables, args.plot)


if __name__ == "__main__":
    main()
