"""The parts of the evidence: what each runs, what it shows and what it depends on."""

from __future__ import annotations

from typing import NamedTuple

CORE = ("cpp/**/*", "bindings/**/*")
READER = ("cpp/base/*", "cpp/tensor/**/*", "cpp/gguf/*", "cpp/model/*.*", "cpp/model/arch/*")
CACHE = ("cpp/base/*", "cpp/batch/*", "cpp/memory/**/*", "cpp/runtime/**/*")
STATE = (*CACHE, "cpp/gguf/*")
THREADS = ("cpp/backend/cpu/*.*", "cpp/plan/**/*", "cpp/runtime/**/*", "bindings/**/*")
SPEED = (
    "cpp/backend/cpu/**/*",
    "cpp/plan/**/*",
    "cpp/graph/**/*",
    "cpp/runtime/step/**/*",
    "bench/*.py",
)
PYTHON = ("python/plait/**/*.py",)


class Part(NamedTuple):
    """One command and what it shows."""

    about: str
    command: (
        str  # for bash, in the root of the repository; $REPORTS is an empty folder for its reports
    )
    depends: tuple[str, ...]  # globs of the files whose change makes the report stale
    goals: tuple[str, ...] = ()  # each needs a test that passes
    # The figure of the whole run for a goal, by the file of $REPORTS it is for: (goal, what its tests are).
    sanitized: tuple[tuple[str, str, str], ...] = ()


def pytest(*paths: str, named: str = "") -> str:
    """Return the command that runs the tests of these files that show goals, or those among them with such names."""
    tests = " ".join(f"tests/python/{path}" for path in paths)
    filters = "-m goal" + (f' -k "{named}"' if named else "")
    return f'python -m pytest -q {filters} --junitxml="$REPORTS/python.xml" {tests}'


def compared(*runs: tuple[str, ...]) -> str:
    """Return the command that compares plait with llama.cpp: runs of models, cases and further options."""
    return " && ".join(
        f'python bench/compare.py {models} --cases {cases} --rounds "${{ROUNDS:-3}}" {" ".join(more)}'
        ' --python "${PLAIT_LLAMA_CPP:-python}" --json "$REPORTS/compare.json"'
        for models, cases, *more in runs
    )


PARTS = {
    "damaged-files": Part(
        "damaged models and states, and invalid calls",
        pytest("hostile/test_hostile.py", "hostile/test_named_defects.py"),
        (*CORE, "tests/python/hostile/*"),
        ("G1", "G2", "G3", "G6", "G12"),
    ),
    "files": Part(
        "paths, model files that change, weights that are not finite, imports of the module",
        pytest("model/test_model_file.py", "model/test_not_finite.py", "package/test_module.py"),
        (*READER, "cpp/sampling/*", "bindings/**/*"),
        ("G5", "G21", "G22", "G23"),
    ),
    "states": Part(
        "saved states: damage, other models, interrupted saves",
        pytest("cache/test_state.py"),
        STATE,
        ("G6", "G7", "G8"),
    ),
    "caches": Part(
        "random programs of cache operations beside plain lists, fresh contexts and NumPy; full caches",
        pytest("cache/test_cache_machine.py", "cache/test_cache_contents.py", "context/test_full.py"),
        (*CACHE, "tests/reference/cache_model.py"),
        ("G9", "G10", "G11"),
    ),
    "threads": Part(
        "threads, signals, forks and lifetimes",
        pytest("context/test_threads.py", "context/test_processes.py", "hostile/test_lifetimes.py"),
        THREADS,
        ("G13", "G14", "G15", "G16", "G20", "G24", "G25"),
    ),
    "memory": Part(
        "memory over time and over failures",
        pytest("context/test_growth.py", "hostile/test_soak.py", named="not mixed_work"),
        CORE,
        ("G17", "G18"),
    ),
    "allocations": Part(
        "allocations of a step, and every allocation failing in turn",
        pytest("hostile/test_allocations.py"),
        (*CORE, "tests/python/hostile/*"),
        ("G17", "G19"),
    ),
    "cpp": Part(
        "the C++ tests, without sanitizers",
        './dev cpp-tests --gtest_output="xml:$REPORTS/cpp.xml"',
        (*CORE, "tests/cpp/**/*"),
        ("G15", "G16", "G17", "G19", "G25"),
    ),
    "asan": Part(
        "the C++ tests under ASan, UBSan and LSan, the Python tests under ASan and UBSan",
        "./dev asan",
        (*CORE, *PYTHON, "tests/cpp/**/*", "tests/python/**/*.py"),
        ("G20",),
        (
            ("asan-cpp", "G20", "C++ tests under ASan, UBSan and LSan"),
            ("asan-python", "G20", "Python tests under ASan and UBSan"),
        ),
    ),
    "tsan": Part(
        "the C++ tests under TSan",
        "./dev tsan",
        (*CORE, "tests/cpp/**/*"),
        ("G15", "G16", "G20"),
        (("tsan-cpp", "G20", "C++ tests under TSan"),),
    ),
    "fuzz": Part(
        "damaged files, states, texts and programs under ASan and UBSan, for half an hour",
        "./dev fuzz 2000 1",
        (*READER, *STATE, "tests/cpp/fuzz/*", "tests/python/hostile/test_fuzz.py"),
        ("G4", "G6", "G9", "G12"),
    ),
    "soak": Part(
        "mixed work in two threads for 20 minutes under ASan",
        "./dev soak",
        (*CORE, *PYTHON, "tests/python/hostile/soak.py"),
        ("soak",),
    ),
    "guarded": Part(
        "the C++ tests of files, states and caches under ASan, UBSan and LSan, which every CI run repeats",
        "./dev guarded",
        (*READER, *STATE, "tests/cpp/**/*"),
        ("G20",),
        (("guarded-cpp", "G20", "C++ tests of files, states and caches under ASan, UBSan and LSan"),),
    ),
    "coverage": Part(
        "coverage of the GGUF reader and of state code by the C++ tests",
        "./dev coverage",
        ("cpp/gguf/*", "cpp/runtime/state/*", "cpp/memory/**/*", "tests/cpp/**/*", "tests/coverage.py"),
        ("G26",),
    ),
    "peer": Part(
        "llama.cpp in trials of the same kinds; PLAIT_LLAMA_CPP names an interpreter with llama-cpp-python",
        'python tests/peer/run.py --python "${PLAIT_LLAMA_CPP:-python}" --json "$REPORTS/peer.json"',
        (
            "tests/peer/*.py", "tests/python/hostile/models.py", "tests/python/hostile/failing_malloc.c",
            "tests/python/model/test_model_file.py",
        ),
    ),
    "compare": Part(
        "throughput of plait and llama.cpp; PLAIT_LLAMA_CPP names an interpreter with llama-cpp-python, PLAIT_ISA a "
        "weaker instruction set",
        compared(
            ("llama-1b:Q4_K llama-1b:Q8_0", "pp:512,tg:64@0,btg:8x32@64,btg:16x16@64,load"),
            ("qwen-0.5b:Q4_0 qwen-0.5b:Q8_0", "pp:512,tg:64@0,btg:8x32@64,btg:16x16@64"),
            ("qwen-0.5b:Q8_0 granite-1b-a400m:Q4_K", "pp:512,tg:64@0,btg:8x32@64", "--busy 1"),
            ("qwen-0.5b:F16 qwen-0.5b:BF16", "pp:512"),
            ("llama-1b:NVFP4 llama-1b:IQ3_S llama-1b:IQ2_XXS", "pp:512,tg:64@0,btg:8x32@64"),
            ("smol-135m:Q8_0", "pp:512,tg:64@0,btg:8x32@64,tg:32@4096"),
            (
                "granite-1b-a400m:Q4_K qwen3.5-0.8b:Q4_K gemma-4-e2b:Q4_K granite-4-h-1b:Q4_K lfm2-1.2b:Q4_K",
                "pp:512,tg:64@0,btg:8x32@64",
            ),
            ("stories-15m:Q8_0 tiny-llama:F32", "tg:64@0"),
            ("minilm:F16", "encode:64x32"),
        ),
        SPEED,
    ),
    "contexts": Part(
        "throughput as in compare, after 16,384 tokens, which may take llama.cpp half an hour to compute",
        compared(
            ("smol-135m:Q8_0", "pp:512@16384,tg:32@16384,btg:8x16@16384"),
            (
                "smol-135m:Q8_0", "pp:512@16384,tg:32@16384",
                """--options '{"type_k": "q8_0", "type_v": "q8_0"}'""",
            ),
        ),
        SPEED,
    ),
    "peers": Part(
        "throughput of plait and of engines that read other formats than GGUF; PLAIT_TRANSFORMERS, PLAIT_OPENVINO and "
        "PLAIT_VLLM name interpreters that have them, MODELS other models",
        "python bench/peers/compare_peers.py"
        " ${MODELS:-llama-1b:BF16 llama-1b:Q8_0 llama-1b:Q4_0 qwen-0.5b:BF16 qwen-0.5b:Q8_0 qwen-0.5b:Q4_0}"
        ' --rounds "${ROUNDS:-3}"'
        ' ${PLAIT_TRANSFORMERS:+--peer "transformers=$PLAIT_TRANSFORMERS"}'
        ' ${PLAIT_OPENVINO:+--peer "openvino=$PLAIT_OPENVINO"} ${PLAIT_VLLM:+--peer "vllm=$PLAIT_VLLM"}'
        ' --json "$REPORTS/peers.json"',
        (*SPEED, "bench/peers/*.py"),
    ),
    "quality": Part(
        "KL divergence, perplexity and answers by cache and weight type; PLAIT_LLAMA_CPP as for compare",
        # llama.cpp aborts for some types and shapes. Two threads that abort at once wait for each other's backtraces.
        'GGML_NO_BACKTRACE=1 python bench/quality.py --texts "${TEXTS:-48}" --python "${PLAIT_LLAMA_CPP:-python}" '
        '--json "$REPORTS/quality.json"',
        (
            "cpp/tensor/**/*", "cpp/backend/cpu/**/*", "cpp/graph/**/*", "cpp/model/blocks/*",
            "python/plait/files/*.py", "python/plait/evaluation/*.py", "bench/quality*.py",
        ),
    ),
    "kernels": Part(
        "matrix products beside the limits of the machine",
        './dev bench --benchmark_out_format=json --benchmark_out="$REPORTS/kernels.json"',
        ("cpp/backend/cpu/**/*", "bench/kernels/*"),
    ),
}  # fmt: skip
