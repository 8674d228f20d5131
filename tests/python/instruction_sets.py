"""The instruction sets of this kind of processor. Tests skip those that the machine lacks."""

import platform

ISAS = (
    ("scalar", "neon", "neon_i8mm", "neon_bf16")
    if platform.machine() in {"aarch64", "arm64"}
    else ("scalar", "avx2", "avx512", "amx")
)
