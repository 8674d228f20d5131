#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include "base/error.h"
#include "base/text.h"
#include "memory/attention.h"
#include "memory/cross.h"
#include "memory/hybrid.h"
#include "memory/layout_plan.h"
#include "memory/memory.h"
#include "memory/none.h"
#include "memory/recurrent.h"
#include "memory/sliding.h"
#include "memory/window.h"

namespace plait {
namespace {

constexpr std::array kCacheTypes = {DType::f32,  DType::f16,  DType::bf16,
                                    DType::q8_0, DType::q5_1, DType::q5_0,
                                    DType::q4_1, DType::q4_0, DType::iq4_nl};

void check_type(DType dtype, std::string_view what) {
    if (std::find(kCacheTypes.begin(), kCacheTypes.end(), dtype) == kCacheTypes.end())
        throw InvalidArgument(text(what, " cannot be cached as ", info(dtype).name));
}

void check_options(const MemoryOptions& options) {
    if (options.n_ctx < 1 || options.n_ctx > INT32_MAX)
        throw InvalidArgument(text("n_ctx is ", options.n_ctx, ", expected 1..", INT32_MAX));
    if (options.n_seq_max < 1)
        throw InvalidArgument(text("n_seq_max is ", options.n_seq_max, ", expected 1 or more"));
    if (options.n_ubatch < 1 || options.n_batch < 1)
        throw InvalidArgument(text("n_batch is ", options.n_batch, " and n_ubatch ",
                                   options.n_ubatch, ", expected 1 or more"));
    if (options.axes != 1 && options.axes != 4)
        throw InvalidArgument(text("a token has ", options.axes, " positions, expected 1 or 4"));
    check_type(options.keys, "keys");
    check_type(options.values, "values");
}

// Only keys and values take cells.
int64_t count_cells(const MemorySpecs& specs, const MemoryOptions& options) {
    const auto attends = [](const StateSpec& spec) {
        return std::holds_alternative<AttentionSpec>(spec);
    };
    if (std::ranges::none_of(
            specs, [&](const auto& layer) { return std::ranges::any_of(layer, attends); }))
        return 1;
    const int64_t all = options.n_ctx * options.n_seq_max;
    const int64_t cells = options.n_cells.value_or(all);
    if (options.streams && cells != all)
        throw InvalidArgument(text("kv_cells is ", cells, ", but with kv=\"streams\" each of ",
                                   options.n_seq_max, " sequences has n_ctx = ", options.n_ctx,
                                   " cells, together ", all));
    if (cells < 1 || cells > INT32_MAX)
        throw InvalidArgument(
            text("a cache of ", cells, " cells was asked for (n_ctx = ", options.n_ctx,
                 ", n_seq_max = ", options.n_seq_max, "), expected 1..", INT32_MAX));
    return cells;
}

void check_spec(const AttentionSpec& spec) {
    PLAIT_CHECK(spec.n_kv_heads > 0 && spec.key_dim > 0 && spec.value_dim >= 0);
    PLAIT_CHECK(spec.value_dim > 0 || spec.value_dim_in_key <= spec.key_dim);
    PLAIT_CHECK(spec.window.kind == WindowKind::full || spec.window.tokens > 0);
}
void check_spec(const CrossSpec& spec) {
    PLAIT_CHECK(spec.n_kv_heads > 0 && spec.key_dim > 0 && spec.value_dim > 0);
}
void check_spec(const WithinSpec& spec) {
    PLAIT_CHECK(spec.window.kind == WindowKind::full || spec.window.tokens > 0);
}
void check_spec(const RecurrentSpec& spec) { PLAIT_CHECK(!spec.elements.empty()); }

bool has(const MemoryLayout& layout, GroupKind kind) {
    return std::ranges::any_of(layout.groups,
                               [&](const GroupInfo& group) { return group.kind == kind; });
}

// Of the whole memory.
std::string_view kind_of(const MemoryLayout& layout, const MemoryOptions& options) {
    const bool attends = has(layout, GroupKind::attention);
    if (has(layout, GroupKind::cross)) return "cross";
    if (has(layout, GroupKind::recurrent)) return attends ? "hybrid" : "recurrent";
    if (!attends) return "none";
    const bool any_window = std::ranges::any_of(layout.groups, [](const GroupInfo& group) {
        return group.kind == GroupKind::attention && group.window.kind != WindowKind::full;
    });
    return any_window ? "sliding" : options.streams ? "streams" : "unified";
}

void check_choice(const MemoryLayout& layout, const MemoryOptions& options) {
    if (has(layout, GroupKind::recurrent) && !options.causal)
        throw UnsupportedError(
            "causal=False: recurrent layers see what came before and nothing else");
    if (has(layout, GroupKind::cross) && !has(layout, GroupKind::attention))
        throw UnsupportedError(
            "cross attention needs self attention beside it: "
            "nothing else knows where a sequence "
            "goes on");
    if (has(layout, GroupKind::recurrent) &&
        (has(layout, GroupKind::cross) || has(layout, GroupKind::within)))
        throw UnsupportedError(
            "recurrent layers of an encoder-decoder are not "
            "supported: an encoder step has no "
            "state");
}

// Groups by window: those without one, or that give no row back, share rows; so do those with the
// same.
using WindowOrder = std::tuple<int64_t, WindowKind, int32_t>;
std::map<WindowOrder, std::vector<uint8_t>> attention_parts(const MemoryLayout& layout,
                                                            const MemoryOptions& options) {
    std::map<WindowOrder, std::vector<uint8_t>> parts;
    for (uint8_t g = 0; g < layout.groups.size(); ++g) {
        const GroupInfo& group = layout.groups[g];
        if (group.kind != GroupKind::attention) continue;
        // In the order in which they speak for the memory: what keeps the most first.
        WindowOrder order{INT64_MIN, WindowKind::full, 0};
        if (gives_rows_back(group.window, options))
            order = {-most_kept(group.window), group.window.kind, group.window.tokens};
        parts[order].push_back(g);
    }
    return parts;
}

Parts make_parts(const MemoryLayout& layout, const MemoryOptions& options) {
    Parts parts;
    parts.of_group.resize(layout.groups.size());
    const auto add = [&](std::unique_ptr<Part> part, std::span<const uint8_t> groups) {
        for (const uint8_t group : groups) parts.of_group[group] = part.get();
        parts.list.push_back(std::move(part));
    };
    for (const auto& [order, groups] : attention_parts(layout, options)) {
        if (gives_rows_back(layout.groups[groups[0]].window, options)) {
            add(std::make_unique<SlidingPart>(layout, groups, options), groups);
        } else {
            add(std::make_unique<AttentionPart>(layout, groups, options), groups);
        }
    }
    std::vector<uint8_t> within;
    for (uint8_t g = 0; g < layout.groups.size(); ++g) {
        const GroupKind kind = layout.groups[g].kind;
        if (kind == GroupKind::recurrent) add(std::make_unique<RecurrentPart>(g, options), {{g}});
        if (kind == GroupKind::cross) add(std::make_unique<CrossPart>(layout, g, options), {{g}});
        if (kind == GroupKind::within) within.push_back(g);
    }
    if (!within.empty() || parts.list.empty())
        add(std::make_unique<NonePart>(options, /*encodes_only=*/has(layout, GroupKind::cross)),
            within);
    return parts;
}

}  // namespace

std::unique_ptr<Memory> make_memory(const MemorySpecs& specs, const MemoryOptions& options) {
    check_options(options);
    for (const auto& layer : specs)
        for (const StateSpec& spec : layer)
            std::visit([](const auto& one) { check_spec(one); }, spec);
    MemoryOptions sized = options;
    sized.n_cells = count_cells(specs, options);
    MemoryLayout layout = plan_layout(specs, sized);
    check_choice(layout, options);
    // Nothing but attention has rows to divide.
    if (!has(layout, GroupKind::attention)) sized.streams = false;
    Parts parts = make_parts(layout, sized);
    const std::string_view kind = kind_of(layout, sized);
    return std::make_unique<HybridMemory>(kind, std::move(layout), sized, std::move(parts));
}

}  // namespace plait
