"""Count the instructions of products with block types on ARM, beside those of llama.cpp's kernels.

    instructions.py [--llama FOLDER] [--types q4_0,q4_k,q8_0] [--compiler COMMAND]

FOLDER is ggml/src of llama.cpp's sources. Kernels are compiled for each instruction set with the options of the build,
and one product runs under qemu-user, one instruction at a time. Counted are the instructions of the kernels and the
registers that they load, per 1,024 multiplications of a prompt (32 rows by 192 outputs) and of one row. Needed are the
Debian packages g++-aarch64-linux-gnu and qemu-user-static.
"""

from __future__ import annotations

import argparse
import collections
import re
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
CPP = HERE.parents[1] / "cpp"
OPTIONS = [
    "-O3",
    "-std=c++20",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-static",
    "-w",
]
ISAS = {"neon": "armv8.2-a+dotprod", "neon_i8mm": "armv8.2-a+dotprod+i8mm"}
BLOCKS = {"q4_0": "BlockQ4_0", "q4_k": "BlockQ4_K", "q8_0": "BlockQ8_0"}
# What ggml chooses for these instruction sets: llama.cpp compiles all kernels with the options of the strongest.
LLAMA = {
    ("q4_0", "neon"): "q4_0_4x4_q8_0", ("q4_0", "neon_i8mm"): "q4_0_4x8_q8_0",
    ("q4_k", "neon"): "q4_K_8x4_q8_K", ("q4_k", "neon_i8mm"): "q4_K_8x8_q8_K",
    ("q8_0", "neon"): "q8_0_4x4_q8_0", ("q8_0", "neon_i8mm"): "q8_0_4x8_q8_0",
}  # fmt: skip
OUTPUTS, COLUMNS = 192, 1024
PROMPT = 32  # rows


def compile_plait(compiler: list[str], block: str, isa: str, to: Path) -> None:
    subprocess.run(
        [*compiler, *OPTIONS, f"-march={ISAS[isa]}", f"-I{CPP}", f"-DPLAIT_ISA={isa}",
         "-DPLAIT_SIMD=neon", f"-DPLAIT_BLOCK={block}", HERE / "count_product.cpp", "-o", to],
        check=True,
    )  # fmt: skip


def compile_llama(compiler: list[str], name: str, isa: str, sources: Path, to: Path) -> None:
    includes = [f"-I{sources / folder}" for folder in ("../include", ".", "ggml-cpu")]
    subprocess.run(
        [*compiler, *OPTIONS, f"-march={ISAS[isa]}+fp16", *includes, f"-DLLAMA_GEMM=ggml_gemm_{name}",
         f"-DLLAMA_GEMV=ggml_gemv_{name}", HERE / "count_product.cpp",
         sources / "ggml-cpu/arch/arm/repack.cpp", "-Wl,--unresolved-symbols=ignore-all", "-o", to],
        check=True,
    )  # fmt: skip


def loaded(mnemonic: str, operands: str) -> int:
    """Return the number of registers that an instruction loads."""
    if not mnemonic.startswith("ld"):
        return 0
    if match := re.match(r"\{v(\d+)\S*-v(\d+)", operands):  # {v28.16b-v31.16b}, modulo 32
        return (int(match[2]) - int(match[1])) % 32 + 1
    of_list = re.match(r"\{[^}]*\}", operands)  # {v0.8h, v1.8h}
    return of_list[0].count(",") + 1 if of_list else 2 if mnemonic == "ldp" else 1


def instructions(binary: Path) -> dict[int, int]:
    """Return the registers that each instruction of the kernels loads, by address."""
    listing = subprocess.run(
        ["aarch64-linux-gnu-objdump", "-dC", "--no-show-raw-insn", binary],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    found, counts = {}, False
    for line in listing.split("\n"):
        if line.endswith(">:"):
            counts = "plait::cpu" in line or "ggml_gem" in line
        elif counts and (match := re.match(r"\s*([0-9a-f]+):\t(\S+)\s*(.*)", line)):
            found[int(match[1], 16)] = loaded(match[2], match[3])
    return found


def count(binary: Path, rows: int) -> tuple[int, int]:
    """Return the instructions of a product and the registers that they load."""
    at = instructions(binary)
    command = ["qemu-aarch64-static", "-cpu", "max", "-singlestep", "-d", "exec,nochain", "-dfilter",
               f"{min(at):#x}..{max(at):#x}", "-D", "/dev/stdout", binary, rows, OUTPUTS, COLUMNS]  # fmt: skip
    found: collections.Counter[int] = collections.Counter()
    with subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("Trace"):
                address = int(line.split("/", 2)[1], 16)
                if address in at:
                    found[at[address]] += 1
    if process.returncode:
        raise SystemExit(f"{binary} ended with status {process.returncode}")
    return found.total(), sum(n * registers for registers, n in found.items())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--llama", type=Path)
    parser.add_argument("--compiler", default="aarch64-linux-gnu-g++")
    parser.add_argument("--types", default=",".join(BLOCKS))
    given = parser.parse_args()
    compiler = given.compiler.split()
    print("instructions (registers loaded) per 1,024 multiplications")
    print(f"{'type':5} {'set':10} {'kernels':8} {'prompt':>16} {'one row':>16}")
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder, "product")
        for name in given.types.split(","):
            for isa in ISAS:
                both = {}
                for kernels in ["plait", "llama"] if given.llama else ["plait"]:
                    if kernels == "plait":
                        compile_plait(compiler, BLOCKS[name], isa, binary)
                    else:
                        compile_llama(
                            compiler, LLAMA[name, isa], isa, given.llama.resolve(), binary
                        )
                    figures = []
                    for rows in (PROMPT, 1):
                        scale = 1024 / (rows * OUTPUTS * COLUMNS)
                        figures += [n * scale for n in count(binary, rows)]
                    both[kernels] = figures
                    a, b, c, d = figures
                    print(
                        f"{name:5} {isa:10} {kernels:8} {a:8.1f} ({b:5.1f}) {c:8.1f} ({d:5.1f})",
                        flush=True,
                    )
                if len(both) == 2:
                    a, b, c, d = (p / q for p, q in zip(both["plait"], both["llama"], strict=True))
                    print(
                        f"{name:5} {isa:10} {'ratio':8} {a:8.2f} ({b:5.2f}) {c:8.2f} ({d:5.2f})",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
