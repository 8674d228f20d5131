// Builds a memory: checks the options, lays out the slots of all layers, and calls the functions of
// each kind that occurs to check the layout and add parts.
#include <algorithm>
#include <array>
#include <map>

#include "base/error.h"
#include "base/text.h"
#include "memory/layout_builder.h"
#include "memory/memory.h"

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

int64_t count_cells(const MemorySpecs& specs, const MemoryOptions& options) {
    const auto has_cells = [](const StateSpec& spec) { return spec.kind().has_cells; };
    const auto any_cells = [&](const auto& slots) { return std::ranges::any_of(slots, has_cells); };
    if (std::ranges::none_of(specs, any_cells)) return 1;
    const int64_t all = options.n_ctx * options.n_seq_max;
    const int64_t cells = options.n_cells.value_or(all);
    if (options.streams && cells != all)
        throw InvalidArgument(text("kv_cells is ", cells, ", but with kv=\"streams\" each of ",
                                   options.n_seq_max, " sequences has n_ctx = ", options.n_ctx,
                                   " cells, together ", all));
    if (cells < 1 || cells > INT32_MAX)
        throw InvalidArgument(
            text("the cache would have ", cells, " cells (n_ctx = ", options.n_ctx,
                 ", n_seq_max = ", options.n_seq_max, "), expected 1..", INT32_MAX));
    return cells;
}

// The groups of each kind, by PartKind::code.
std::map<uint8_t, std::vector<uint8_t>> groups_by_kind(const MemoryLayout& layout) {
    std::map<uint8_t, std::vector<uint8_t>> groups;
    for (uint8_t g = 0; g < layout.groups.size(); ++g) {
        auto& same_kind = groups[layout.groups[g].kind->code];
        PLAIT_CHECK(same_kind.empty() || layout.groups[same_kind[0]].kind == layout.groups[g].kind);
        same_kind.push_back(g);
    }
    return groups;
}

}  // namespace

MemoryLayout layout_of(const MemorySpecs& specs, const MemoryOptions& options) {
    check_options(options);
    MemoryOptions sized = options;
    sized.n_cells = count_cells(specs, options);
    LayoutBuilder builder(sized);
    for (const auto& slots : specs) builder.add_layer(slots);
    MemoryLayout layout = builder.take();
    for (const auto& [code, groups] : groups_by_kind(layout)) {
        const PartKind& kind = *layout.groups[groups[0]].kind;
        if (kind.check != nullptr) kind.check(layout, options);
    }
    return layout;
}

std::unique_ptr<Memory> make_memory(const MemorySpecs& specs, const MemoryOptions& options) {
    MemoryLayout layout = layout_of(specs, options);
    MemoryOptions sized = options;
    sized.n_cells = count_cells(specs, options);
    if (!layout.has_cells()) sized.streams = false;  // only cells are divided among streams
    Parts parts;
    parts.of_group.resize(layout.groups.size());
    for (const auto& [code, groups] : groups_by_kind(layout))
        layout.groups[groups[0]].kind->add_parts(layout, groups, sized, parts);
    return std::make_unique<Memory>(std::move(layout), sized, std::move(parts));
}

}  // namespace plait
