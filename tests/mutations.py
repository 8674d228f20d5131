#!/usr/bin/env python3
"""Break a behaviour on purpose and check that the test which cites its requirement fails.

    tests/mutations.py                 every mutation
    tests/mutations.py S1-16 S4-08     the mutations of these requirements
    tests/mutations.py --list          what they are

Works on a copy of the tree in build/mutations, so nothing in the tree changes. Mutations of C++ are compiled
together, once: each is switched on by the environment variable PLAIT_MUTATION while its test runs. Mutations of
other files are written before their test and undone after it. Every test must pass without a mutation and fail with
it ("killed"). A mutation that its test does not notice "survived". Exits with 1 if a test did not pass or a mutation
survived.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COPY = ROOT / "build" / "mutations"
HEADER = """// Whether the named mutation is switched on; see tests/mutations.py.
#pragma once
#include <cstdlib>
#include <string_view>
inline bool mutated(std::string_view name) {
    const char* const on = std::getenv("PLAIT_MUTATION");
    return on != nullptr && name == on;
}
"""


@dataclass(frozen=True)
class Mutation:
    """One change of one file. C++ replacements call mutated(name), so that all can be compiled together."""

    row: str  # of the requirements
    what: str
    file: str
    old: str
    new: str
    test: str  # arguments of pytest, or the --gtest_filter of a C++ test after "gtest:"

    @property
    def compiled(self) -> bool:
        return not self.file or "mutated(" in self.new


REUSE = "tests/python/context/test_requirements_reuse.py::"
STREAMS = "tests/python/cache/test_requirements_streams.py::"
MEMORY = "tests/python/cache/test_requirements_memory.py::"
VULKAN = "tests/python/vulkan/test_vulkan.py::"
RUNNER = "cpp/runtime/step/step_runner.cpp"
ENGINE = "cpp/runtime/step/engine.cpp"
MOVER = "cpp/runtime/step/row_mover.cpp"
STEP = "cpp/model/step.cpp"
FIND = "Plan* known = limits_.reuse ? plans_.find(key) : nullptr;"

MUTATIONS = [
    Mutation(
        "S0-05",
        "the plan depends on a position",
        RUNNER,
        "key.single = n_tokens == n_sequences;",
        "key.single = n_tokens == n_sequences;\n"
        '    if (mutated("S0-05") && !prepared_.positions.empty())\n'
        "        key.group = static_cast<uint8_t>(prepared_.positions[0] % 7);",
        REUSE + "test_steps_of_equal_shape_share_a_plan_whatever_they_hold",
    ),
    Mutation(
        "S0-10",
        "--plait-reuse is ignored",
        "python/plait/testing/plugin.py",
        '"graph_reuse": _plait_reuse,',
        '"graph_reuse": True,',
        "tests/python/evaluation/test_testing.py::test_options",
    ),
    Mutation(
        "S0-14",
        "the table compares plan reuse with itself",
        "bench/graph_reuse.py",
        '{"graph_reuse": False}',
        "{}",
        "tests/python/cli/test_bench.py::test_graph_reuse",
    ),
    Mutation(
        "S0-16",
        "an empty interface before Outputs",
        "cpp/runtime/step/outputs.h",
        "class Outputs {\npublic:",
        "struct AnyOutputs { virtual ~AnyOutputs() = default; };\nclass Outputs : public AnyOutputs {\npublic:",
        "tests/test_layering.py::test_results_and_plans_are_concrete_classes",
    ),
    Mutation(
        "S0-19",
        "commands are recorded for every step",
        "cpp/backend/vulkan/executable.cpp",
        "            commands_.run(*recorded_, !std::exchange(has_run_, true));",
        '            if (mutated("S0-19")) { recorded_ = record(); commands_.run(*recorded_, true); }\n'
        "            else commands_.run(*recorded_, !std::exchange(has_run_, true));",
        VULKAN + "test_steps_submit_recorded_commands",
    ),
    Mutation(
        "S1-05",
        "a plan without adapters serves calls with adapters",
        ENGINE,
        FIND,
        "PlanKey wanted = key;\n"
        '    if (mutated("S1-05")) wanted.adapters = 0;\n'
        '    if (mutated("S1-45") && storage.layout().storage.empty()) wanted.group = 255;\n'
        '    if (mutated("S1-06") && key.n_sequences > 1) wanted.group = 255;\n'
        '    if (mutated("S1-16")) wanted.group = 255;\n'
        "    Plan* known = limits_.reuse ? plans_.find(wanted) : nullptr;",
        "tests/python/context/test_reuse.py::test_two_thousand_random_calls_with_and_without_reuse[unified]",
    ),
    Mutation(
        "S1-12",
        "the time of inputs counts as that of computation",
        RUNNER,
        "seconds_(stats.seconds[static_cast<size_t>(phase)])",
        'seconds_(stats.seconds[static_cast<size_t>(mutated("S1-12") && phase == Phase::input\n'
        "                                                            ? Phase::compute : phase)])",
        REUSE + "test_the_phases_of_a_step_are_timed_and_building_is_quick",
    ),
    Mutation(
        "S1-19",
        "neighbouring layers exchange their caches",
        STEP,
        "Value Step::attend(int layer, Value q, Value k, Value v, const Attention& how) {\n"
        "    const auto at = static_cast<uint16_t>(layer);\n",
        "Value Step::attend(int layer, Value q, Value k, Value v, const Attention& how) {\n"
        '    const auto at = static_cast<uint16_t>(mutated("S1-19") ? layer ^ 1 : layer);\n',
        REUSE + "test_every_cache_holds_what_its_layer_computed",
    ),
    Mutation(
        "S1-22",
        "a state is written to the row that it was read from",
        RUNNER,
        "engine_.write(id, step_memory_.view(group, index).write_rows);",
        'engine_.write(id, mutated("S1-22") ? step_memory_.view(group, index).read_rows\n'
        "                                             : step_memory_.view(group, index).write_rows);",
        REUSE + "test_a_reused_plan_writes_one_state_tensor_in_several_rows",
    ),
    Mutation(
        "S1-51",
        "values are stored in another way without flash attention",
        STEP,
        "    AttendInputs in{.keys = store(keys, k), .values = store(values, v)};\n    stored_",
        "    AttendInputs in{.keys = store(keys, k), .values = {}};\n"
        '    in.values = store(values, mutated("S1-51") && !key_.flash ? scale(v, 1.01f) : v);\n'
        "    stored_",
        REUSE + "test_values_are_written_alike_with_and_without_flash_attention",
    ),
    Mutation(
        "S1-52",
        "an op without a test against its formula",
        "tests/python/ops/row_ops.py",
        "from reference.softcap import softcap",
        "def softcap(x, cap):\n    return cap * np.tanh(x / cap)\n",
        "tests/test_layering.py::test_every_operation_of_a_model_has_a_twin_and_a_test",
    ),
    Mutation(
        "S2-03",
        "each token takes a row far from the last",
        "cpp/memory/row_pool.cpp",
        "const int32_t row = is_free(wanted) ? wanted : find_free_row();",
        'const bool near = !mutated("S2-03") && !mutated("S2-51");\n'
        "    const int32_t row = near && is_free(wanted) ? wanted : find_free_row();",
        STREAMS + "test_sequences_stay_in_long_runs_of_rows",
    ),
    Mutation(
        "S2-21",
        "Vulkan scales scores differently without flash attention",
        "cpp/backend/vulkan/ops/attention.cpp",
        "args.scale = params.scale;",
        'args.scale = params.scale * (mutated("S2-21") && !params.flash ? 1.5f : 1.0f);',
        VULKAN + "test_prompt_and_steps_match_the_cpu",
    ),
    Mutation(
        "S2-28",
        "values have the width of the first layer without flash attention",
        STEP,
        "    return attend_stored(layer, in, keys, values, values.head_dim, how);\n}\n\n"
        "Value Step::attend_shared",
        '    const StorageInfo& like = mutated("S2-28") && !key_.flash ? layout_.at({0, slot, 1}) : values;\n'
        "    return attend_stored(layer, in, keys, values, like.head_dim, how);\n}\n\n"
        "Value Step::attend_shared",
        "tests/python/model/test_shared_keys.py::test_values_whose_width_differs_by_layer_need_no_flash_attention",
    ),
    Mutation(
        "S2-46",
        "copied rows are not counted",
        MOVER,
        "            plans_.engine().stats().rows_copied += static_cast<uint64_t>(move.n);",
        '            if (!mutated("S2-46"))\n'
        "                plans_.engine().stats().rows_copied += static_cast<uint64_t>(move.n);",
        STREAMS + "test_copies_move_rows_in_streams_and_none_in_one_table",
    ),
    Mutation(
        "S2-48",
        "calls do not wait for one another",
        "cpp/runtime/locked.h",
        "        std::unique_lock lock(mutex_);\n        return",
        "        std::unique_lock lock(mutex_, std::defer_lock);\n"
        '        if (!mutated("S2-48")) lock.lock();\n        return',
        STREAMS + "test_copies_wait_for_what_is_being_computed",
    ),
    Mutation(
        "S3-13",
        "plans of shifts and moves need memory of their own",
        ENGINE,
        "    devices_.grow(arenas_, plan->arena_bytes());\n    return plan;",
        "    std::vector<uint64_t> needed = plan->arena_bytes();\n"
        '    if (mutated("S3-13") && key.kind >= GraphKind::copy_rows)\n'
        "        for (uint64_t& bytes : needed) bytes += uint64_t{16} << 20;\n"
        "    devices_.grow(arenas_, needed);\n    return plan;",
        "tests/python/cache/test_defrag.py::test_no_later_step_needs_more_memory",
    ),
    Mutation(
        "S3-17",
        "memory of the largest step is not reserved",
        RUNNER,
        "    plans_.reserve(largest_key());\n"
        "    PlanKey given_embeddings = largest_key();\n"
        "    given_embeddings.input = InputKind::embeddings;\n"
        "    plans_.build(given_embeddings);  // only to grow the arenas\n",
        "    PlanKey given_embeddings = largest_key();\n"
        "    given_embeddings.input = InputKind::embeddings;\n"
        '    if (!mutated("S3-17")) plans_.reserve(largest_key()), plans_.build(given_embeddings);\n',
        MEMORY + "test_a_context_whose_steps_do_not_fit_into_memory_is_not_created",
    ),
    Mutation(
        "S3-25",
        "rows move through the memory of the host",
        MOVER,
        "        list.flush();\n    }\n}\n\nvoid RowMover::rotate",
        "        list.flush();\n"
        '        if (!mutated("S3-25")) continue;\n'
        "        for (Buffer* const buffer : plans_.storage().buffers()) {\n"
        "            std::vector<std::byte> bytes(buffer->bytes());\n"
        "            buffer->read(0, bytes);\n"
        "            buffer->write(0, bytes);\n"
        "        }\n    }\n}\n\nvoid RowMover::rotate",
        "gtest:Defragmentation.*",
    ),
    Mutation(
        "S4-01",
        "forks keep the state of their sequence before",
        "cpp/memory/memory.cpp",
        "    for (const auto& part : parts_.list) part->copy(from, to, range, moves);",
        "    for (const auto& part : parts_.list)\n"
        '        if (!mutated("S4-01") || !part->kind().holds_states) part->copy(from, to, range, moves);',
        "tests/python/cache/test_kv_cache.py::test_every_kind_of_memory_and_graph_keeps_the_same_contract",
    ),
    Mutation(
        "S4-08",
        "a call that fails is not rolled back",
        RUNNER,
        "        if (!committed_) memory_.rollback();",
        '        if (!committed_) mutated("S4-08") ? memory_.commit() : memory_.rollback();',
        "tests/python/cache/test_state.py::test_a_failure_in_any_microbatch_leaves_the_bytes_as_they_were",
    ),
    Mutation(
        "S4-34",
        "microbatches without outputs compute the projection",
        RUNNER,
        "    if (key.n_outputs == 0) key.output = OutputKind::none;",
        '    if (mutated("S4-34")) key.n_outputs = std::max(key.n_outputs, 1u);\n'
        "    if (key.n_outputs == 0) key.output = OutputKind::none;",
        "tests/python/context/test_plans.py::test_a_graph_without_outputs_has_no_projection",
    ),
]
# Kernels that compute something else than the formulas in tests/reference.
OPS = "tests/python/ops/"
FORMULA = OPS + "test_row_ops.py::test_an_op_computes_its_formula"
MUTATIONS += [
    Mutation(f"op {op}", "another argument", f"cpp/backend/cpu/ops/{file}", old, new, test)
    for op, file, old, new, test in (
        (
            "rms_norm",
            "norm.cpp",
            "args.epsilon = epsilon;",
            'args.epsilon = mutated("op rms_norm") ? 2 * epsilon : epsilon;',
            FORMULA + "[rms_norm-scalar-plain]",
        ),
        (
            "clamp",
            "elementwise.cpp",
            "args.parameter = op.limit;",
            'args.parameter = mutated("op clamp") ? 1.01f * op.limit : op.limit;',
            FORMULA + "[clamp-avx2-plain]",
        ),
        (
            "slice",
            "elementwise.cpp",
            "args.begin = op.begin;",
            'args.begin = mutated("op slice") && op.begin > 0 ? op.begin - 1 : op.begin;',
            FORMULA + "[slice-scalar-lowered]",
        ),
        (
            "attend",
            "attention.cpp",
            "args.scale = params.scale;",
            'args.scale = mutated("op attend") ? 1.1f * params.scale : params.scale;',
            OPS + "test_cache_ops.py::test_attention[plain-flash-avx2]",
        ),
    )
]
# More rows that the switches above break.
MUTATIONS += [
    Mutation(row, what, "", "", "", test)
    for row, what, test in (
        (
            "S1-06",
            "plans of several sequences are not found again",
            VULKAN + "test_steps_of_many_sequences_submit_recorded_commands",
        ),
        (
            "S1-16",
            "plans are never found again",
            REUSE + "test_a_reused_step_builds_splits_and_allocates_nothing",
        ),
        (
            "S1-45",
            "plans of a model without a cache are not found again",
            "tests/python/model/test_encoders.py::TestNothingIsRemembered::test_the_second_call_of_a_shape_builds_nothing",
        ),
        (
            "S2-51",
            "the token after a copy takes a row far from the last",
            STREAMS + "test_a_copied_stream_goes_on_in_the_next_row",
        ),
    )
]


def prepare() -> None:
    """Copy the tree, insert the switches of all compiled mutations, and build it."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split("\n")  # fmt: skip
    contents = {name: (ROOT / name).read_bytes() for name in listed if (ROOT / name).is_file()}
    contents["cpp/base/mutated.h"] = HEADER.encode()
    for mutation in MUTATIONS:
        if mutation.compiled and mutation.file:
            text = contents[mutation.file].decode()
            if text.count(mutation.old) != 1:
                raise SystemExit(
                    f"{mutation.row}: {mutation.file} has not exactly one\n{mutation.old}"
                )
            text = text.replace(mutation.old, mutation.new)
            include = '#include "base/mutated.h"\n'
            if include not in text:
                at = text.index("#include")
                text = text[:at] + include + text[at:]
            contents[mutation.file] = text.encode()
    for path in COPY.rglob("*"):  # what has been deleted or moved since
        name = path.relative_to(COPY)
        if path.is_file() and name.parts[0] != "build" and str(name) not in contents:
            path.unlink()
    for name, data in contents.items():
        target = COPY / name
        if (
            not target.is_file() or target.read_bytes() != data
        ):  # unchanged files are not recompiled
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            shutil.copymode(ROOT / name, target) if (ROOT / name).is_file() else None
    build = COPY / "build" / "release"
    subprocess.run(
        ["cmake", "--preset", "release", f"-DPython_EXECUTABLE={sys.executable}"],
        cwd=COPY, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    subprocess.run(["cmake", "--build", str(build), "--target", "_core", "plait_ops"], check=True)


def run(test: str, mutation: str = "", show: bool = False) -> bool:
    """Run a test in the copy with a mutation switched on; return whether it passed. `show`: print why it did not."""
    environment = {
        **os.environ,
        "PLAIT_OPS_DIR": str(COPY / "build" / "release" / "tests"),
        "PLAIT_MUTATION": mutation,
        "PYTHONPATH": str(COPY / "build" / "release" / "site"),
        "PLAIT_TEST_DATA": os.environ.get("PLAIT_TEST_DATA", str(ROOT.parent / "shared" / "data")),
    }
    if test.startswith("gtest:"):
        tests = COPY / "build" / "release" / "tests"
        binary = next(
            (tests / n for n in ("plait_tests", "room_tests") if (tests / n).exists()), None
        )
        if binary is None:
            raise SystemExit(f"{test}: build plait_tests in {COPY / 'build' / 'release'} first")
        command = [str(binary), f"--gtest_filter={test[6:]}"]
    else:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "--no-header",
            "-p",
            "no:cacheprovider",
            test,
        ]
    try:
        ran = subprocess.run(
            command, cwd=COPY, env=environment, capture_output=True, text=True, timeout=900
        )
    except subprocess.TimeoutExpired:
        return False
    if show and ran.returncode != 0:
        print(ran.stdout[-2000:], ran.stderr[-1000:])
    return ran.returncode == 0


def judge(mutation: Mutation) -> str:
    if not run(mutation.test, show=True):
        return "does not pass"
    if mutation.compiled:
        return "survived" if run(mutation.test, mutation.row) else "killed"
    path = COPY / mutation.file
    text = path.read_text()
    if text.count(mutation.old) != 1:
        return f"has not exactly one {mutation.old!r}"
    try:
        path.write_text(text.replace(mutation.old, mutation.new))
        return "survived" if run(mutation.test) else "killed"
    finally:
        path.write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "rows", nargs="*", help='rows of the requirements, or "op NAME"; all by default'
    )
    parser.add_argument("--list", action="store_true", help="print the mutations and exit")
    parser.add_argument("--no-build", action="store_true", help="use the copy that is there")
    args = parser.parse_args()
    chosen = [m for m in MUTATIONS if not args.rows or m.row in args.rows]
    if args.list:
        for m in sorted(chosen, key=lambda m: m.row):
            print(f"{m.row}  {m.what}\n       {m.test}")
        return 0
    if not args.no_build:
        prepare()
    results = {m.row: "" for m in sorted(chosen, key=lambda m: m.row)}
    for m in chosen:
        results[m.row] = judge(m)
        print(f"{m.row}  {results[m.row]:14} {m.what}", flush=True)
    print(f"{list(results.values()).count('killed')} of {len(results)} killed")
    return int(set(results.values()) != {"killed"})


if __name__ == "__main__":
    sys.exit(main())
