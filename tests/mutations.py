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
import re
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
        '    if (mutated("S1-16") || mutated("S1-08")) wanted.group = 255;\n'
        "    const auto& groups = storage.layout().groups;\n"
        '    if (mutated("S0-03") && !groups.empty() && groups[0].kind->holds_states) wanted.group = 255;\n'
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
        'const bool near = !mutated("S2-03") && !mutated("S2-05") && !mutated("S2-51");\n'
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
        "    if (options_.form.first_layer == 0) plans_.build(given_embeddings);  // only to grow the arenas\n",
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
            'args.scale = params.scale * (mutated("op attend") ? 1.1f : 1.0f) *\n'
            '                 (mutated("S0-12") && !params.flash ? 1.5f : 1.0f);',
            OPS + "test_cache_ops.py::test_attention[plain-flash-avx2]",
        ),
    )
]
# Rows drawn at random from those not listed above.
COMPACTION = "cpp/memory/compaction.cpp"
RECURRENT = "cpp/memory/recurrent.cpp"
DEFRAGMENTER = "cpp/runtime/step/defragmenter.cpp"
REPORT = "tests/python/cache/test_defrag.py::test_the_report_describes_the_moves"
MUTATIONS += [
    Mutation(
        "S0-07",
        "a step allocates memory",
        RUNNER,
        "    uint32_t groups = 0;  // bit g",
        "    const std::string spare(mutated(\"S0-07\") ? 64 : 0, 'x');\n    uint32_t groups = 0;  // bit g",
        "gtest:*PlanCacheHit.AllocatesNothing*",
    ),
    Mutation(
        "S1-23",
        "all states of a layer have the size of the first",
        RECURRENT,
        "DType::f32, 1, static_cast<int>(elements));",
        "DType::f32, 1,\n"
        '            static_cast<int>(mutated("S1-23") ? spec.elements[0] : elements));',
        "gtest:Recurrent.EachStateHasItsOwnSizeAndLayersMayOmitAny",
    ),
    Mutation(
        "S1-39",
        "every fifth graph differs from those of the same shapes",
        STEP,
        "    op.scale = how.scale;",
        "    static int n_graphs = 0;\n"
        '    op.scale = how.scale * (mutated("S1-39") && ++n_graphs % 5 == 0 ? 1.5f : 1.0f);',
        "gtest:Build.EqualKeysGiveEqualGraphsAndOthersDoNot",
    ),
    Mutation(
        "S1-49",
        "each microbatch writes its states to new rows",
        RECURRENT,
        "    if (first.new_row != kNone && ref_count(before) == std::ssize(ids)",
        '    if (!mutated("S1-49") && first.new_row != kNone && ref_count(before) == std::ssize(ids)',
        "gtest:Recurrent.LaterMicrobatchesUpdateTheNewRow",
    ),
    Mutation(
        "S2-01",
        "the time of a step grows with the rows of other sequences",
        RUNNER,
        "        MicrobatchEditor editor(",
        '        if ((mutated("S2-01") || mutated("S2-04")) && stored_)\n'
        "            for (volatile int64_t i = 0; i < 1000 * memory().n_used(); i = i + 1) {}\n"
        "        MicrobatchEditor editor(",
        STREAMS + "test_steps_read_the_rows_of_their_own_sequence",
    ),
    Mutation(
        "S2-26",
        "n_ctx is the size of the whole cache",
        "cpp/memory/make_memory.cpp",
        "const int64_t all = options.n_ctx * options.n_seq_max;",
        'const int64_t all = options.n_ctx * (mutated("S2-26") ? 1 : options.n_seq_max);',
        "tests/python/context/test_context.py::test_sizes_are_explicit",
    ),
    Mutation(
        "S2-40",
        "streams are refused for recurrent states",
        RECURRENT,
        "    if (layout.has(CrossSpec::kind())",
        '    if (mutated("S2-40") && options.streams) throw UnsupportedError("streams");\n'
        "    if (layout.has(CrossSpec::kind())",
        "tests/python/model/test_recurrent.py::test_the_kind_of_memory_follows_from_the_layers",
    ),
    Mutation(
        "S2-47",
        "parts of a sequence cannot be copied to another stream",
        "cpp/memory/attention.cpp",
        "    const int64_t needed = keys.size();\n    const int64_t free = n_ctx_",
        '    if (mutated("S2-47") && table_.n_pools() > 1 && keys.size() < table_.n_keys(from))\n'
        '        throw UnsupportedError("only whole sequences can be copied");\n'
        "    const int64_t needed = keys.size();\n    const int64_t free = n_ctx_",
        "gtest:*EveryMemory.MatchesListsOfTokensUnderRandomOperations/Streams1",
    ),
    Mutation(
        "S2-59",
        "the note about streams has no disadvantages",
        "docs/decisions/0007-unified-cache-by-default.md",
        "Disadvantages of streams",
        "Streams",
        "tests/python/cli/test_bench.py::test_cache_variants",
    ),
    Mutation(
        "S3-08",
        "rows side by side are moves of their own",
        COMPACTION,
        "if (last != nullptr && last->from",
        'if (!mutated("S3-08") && last != nullptr && last->from',
        "tests/python/cache/test_defrag.py::test_cells_side_by_side_are_one_move",
    ),
    Mutation(
        "S3-09",
        "all rows of a move but the first stay where they are",
        MOVER,
        "list.add(move.from + i, move.to + i);",
        'list.add(move.from + i, mutated("S3-09") && i > 0 ? move.from + i : move.to + i);',
        "tests/python/cache/test_defrag.py::test_the_size_of_rounds_changes_nothing_but_their_number",
    ),
    Mutation(
        "S3-21",
        "the first hole is left",
        COMPACTION,
        "            if (content_[at(hole)] != kNone) continue;",
        "            if (content_[at(hole)] != kNone) continue;\n"
        '            if (mutated("S3-21") && hole == first) continue;',
        "gtest:Defragment.EverySecondRowOf4096InChunksOf8",
    ),
    Mutation(
        "S3-23",
        "nothing to move is an error",
        DEFRAGMENTER,
        "    report.seconds =\n",
        '    if (mutated("S3-23") && report.rounds == 0) throw std::logic_error("nothing to move");\n'
        "    report.seconds =\n",
        REPORT,
    ),
    Mutation(
        "S3-24",
        "rounds are counted instead of cells",
        DEFRAGMENTER,
        "        report.cells += n;",
        '        report.cells += mutated("S3-24") ? 1 : n;',
        REPORT,
    ),
    Mutation(
        "S3-27",
        "states are loaded whatever adapters they were made with",
        "cpp/runtime/state/state_transfer.cpp",
        "    if (state == here) return;",
        '    if (state == here || mutated("S3-27")) return;',
        "tests/python/model/test_adapters.py::test_states_know_the_adapters_they_were_made_with",
    ),
    Mutation(
        "S3-28",
        "moved bytes are not counted",
        DEFRAGMENTER,
        "            report.bytes += ",
        '            if (!mutated("S3-28")) report.bytes += ',
        REPORT,
    ),
    Mutation(
        "S3-32",
        "only the first stream is defragmented",
        COMPACTION,
        "        if (!(sorts_ ? round",
        '        if (mutated("S3-32") && pool > 0) break;\n        else if (!(sorts_ ? round',
        "gtest:Defragment.EachStreamIsCompactedSeparately",
    ),
    Mutation(
        "S4-04",
        "an architecture includes the cache",
        "cpp/model/arch/mamba.cpp",
        '#include "model/decoder.h"',
        '#include "memory/memory.h"\n#include "model/decoder.h"',
        "tests/test_layering.py::test_models_see_memory_layout_but_never_step_data",
    ),
    Mutation(
        "S4-18",
        "a cache of windows is not one of its own kind",
        "cpp/memory/memory.cpp",
        "    return any_window ?",
        '    return any_window && !mutated("S4-18") ?',
        "gtest:MakeMemory.ChoosesFromTheModelAndTheOptions",
    ),
    Mutation(
        "S4-25",
        "text has its position on the fourth axis too",
        "cpp/batch/prepare.cpp",
        "a < limits_.axes; ++a) to[a] = 0;",
        'a < limits_.axes; ++a) to[a] = mutated("S4-25") ? p : 0;',
        "gtest:PrepareAxes.TextHasItsPositionOnEveryAxis",
    ),
    Mutation(
        "S4-28",
        "windows are one token narrower",
        "cpp/memory/window.h",
        "return {own - w + 1, INT32_MAX};",
        'return {own - w + (mutated("S4-28") ? 2 : 1), INT32_MAX};',
        "gtest:Sliding.WindowsAreExactAtTheirEdges",
    ),
    Mutation(
        "S4-42",
        "all layers write the states of the first",
        STEP,
        "        {static_cast<uint16_t>(layer), static_cast<uint8_t>(slot), static_cast<uint8_t>(kind)});",
        '        {static_cast<uint16_t>(mutated("S4-42") ? 0 : layer), static_cast<uint8_t>(slot),\n'
        "         static_cast<uint8_t>(kind)});",
        REUSE + "test_every_state_of_every_layer_is_written_once[mamba]",
    ),
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
            "S0-03",
            "plans of recurrent models are not found again",
            "tests/python/context/test_reuse.py::test_two_thousand_random_calls_with_and_without_reuse[recurrent]",
        ),
        (
            "S0-12",
            "scores are scaled differently without flash attention",
            "tests/python/context/test_requirements_core.py::"
            "test_text_is_the_same_with_and_without_reuse_and_flash_attention",
        ),
        (
            "S1-08",
            "plans are never found again",
            REUSE + "test_a_bench_of_everything_at_once",
        ),
        (
            "S2-04",
            "the time of a step grows with all rows of the cache",
            STREAMS + "test_steps_after_long_prompts_keep_three_quarters_of_their_rate[unified]",
        ),
        (
            "S2-05",
            "each token takes a row far from the last",
            STREAMS + "test_sequences_stay_in_long_runs_of_rows",
        ),
        (
            "S2-51",
            "the token after a copy takes a row far from the last",
            STREAMS + "test_a_copied_stream_goes_on_in_the_next_row",
        ),
    )
]


def sources() -> dict[str, bytes]:
    """Return the contents of each file of the tree, with the switches of all compiled mutations."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split("\n")  # fmt: skip
    contents = {name: (ROOT / name).read_bytes() for name in listed if (ROOT / name).is_file()}
    contents["cpp/base/mutated.h"] = HEADER.encode()
    for mutation in MUTATIONS:
        if not mutation.file:
            continue
        text = contents[mutation.file].decode()
        if text.count(mutation.old) != 1:
            raise SystemExit(f"{mutation.row}: {mutation.file} has not exactly one\n{mutation.old}")
        if not mutation.compiled:
            continue
        text = text.replace(mutation.old, mutation.new)
        include = '#include "base/mutated.h"\n'
        if include not in text:
            at = text.index("#include")
            text = text[:at] + include + text[at:]
        contents[mutation.file] = text.encode()
    return contents


def compiler() -> str:
    """Return the compiler of the module, with which ccache knows most of the files."""
    cache = ROOT / "build" / "release" / "CMakeCache.txt"
    found = re.search(
        r"^CMAKE_CXX_COMPILER:\w+=(.+)$", cache.read_text() if cache.is_file() else "", re.MULTILINE
    )
    return found[1] if found else "c++"


def prepare(cpp_tests: bool) -> None:
    """Copy the tree with all switches, and build it. `cpp_tests`: build these too."""
    contents = sources()
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
        [
            "cmake", "--preset", "release", f"-DPython_EXECUTABLE={sys.executable}",
            f"-DCMAKE_CXX_COMPILER={compiler()}",
        ],
        cwd=COPY, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    targets = ["_core", "plait_ops", *(["plait_tests"] if cpp_tests else [])]
    subprocess.run(["cmake", "--build", str(build), "--target", *targets], check=True)


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
        command = [
            str(COPY / "build" / "release" / "tests" / "plait_tests"),
            f"--gtest_filter={test[6:]}",
        ]
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
    return ran.returncode == 0 and "Running 0 tests" not in ran.stdout


def judge(mutation: Mutation) -> str:
    if not run(mutation.test, show=True):
        return "does not pass"
    if mutation.compiled:
        return "survived" if run(mutation.test, mutation.row) else "killed"
    path = COPY / mutation.file
    text = path.read_text()
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
        prepare(any(m.test.startswith("gtest:") for m in chosen))
    results = {m.row: "" for m in sorted(chosen, key=lambda m: m.row)}
    for m in chosen:
        results[m.row] = judge(m)
        print(f"{m.row}  {results[m.row]:14} {m.what}", flush=True)
    print(f"{list(results.values()).count('killed')} of {len(results)} killed")
    return int(set(results.values()) != {"killed"})


if __name__ == "__main__":
    sys.exit(main())
