"""The instruction sets of this kind of processor. Tests skip those that the machine lacks."""

import platform

ISAS = (
    ("scalar", "blas", "neon", "neon_i8mm", "neon_bf16")
    if platform.machine() in {"aarch64", "arm64"}
    else ("scalar", "blas", "avx2", "avx512", "amx")
)
