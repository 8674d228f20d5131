#include "memory/within.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "memory/layout_builder.h"
#include "memory/window.h"

namespace plait {
namespace {

uint8_t add_within_slot(LayoutBuilder& builder, StorageId, const StateSpec& slot) {
    const auto spec = slot.get<WithinSpec>();
    PLAIT_CHECK(spec.window.kind == WindowKind::full || spec.window.tokens > 0);
    return builder.find_group({
        .kind = &WithinSpec::kind(),
        .window = spec.window,
        .needs_key_positions = spec.needs_key_positions,
        .max_runs = builder.max_runs(1),
    });
}

std::string within_storage_name(uint8_t) {
    throw InternalError("attention within a microbatch has no storage");
}

void add_within_parts(const MemoryLayout& layout, std::span<const uint8_t> groups,
                      const MemoryOptions& options, Parts& parts) {
    const bool encodes_only = layout.has(CrossSpec::kind());
    parts.add(std::make_unique<WithinPart>(options, encodes_only), groups);
}

constinit const PartKind kWithin{
    .name = "within",
    .code = 3,
    .keys_are_tokens = true,
    .add_slot = add_within_slot,
    .storage_name = within_storage_name,
    .add_parts = add_within_parts,
};

}  // namespace

const PartKind& WithinSpec::kind() { return kWithin; }

WithinPart::WithinPart(const MemoryOptions& options, bool encodes_only)
    : Part(kWithin),
      causal_(options.causal && !encodes_only),
      encodes_only_(encodes_only),
      n_ctx_(options.n_ctx) {}

void WithinPart::place(StepKind kind, const PreparedBatch& batch,
                       std::span<const Microbatch> microbatches) {
    if (encodes_only_ && kind == StepKind::decode) return;
    check_lengths(microbatches);
    batch_ = &batch;
    microbatches_ = microbatches;
}

void WithinPart::check_lengths(std::span<const Microbatch> microbatches) const {
    for (const Microbatch& microbatch : microbatches)
        for (size_t s = 0; s < microbatch.sequences.size(); ++s) {
            const int32_t n = microbatch.begin[s + 1] - microbatch.begin[s];
            if (n > n_ctx_)
                throw BatchError(text("sequence ", microbatch.sequences[s], " has ", n,
                                      " tokens, n_ctx is ", n_ctx_));
        }
}

GroupView WithinPart::view(const GroupInfo& group, size_t index) {
    PLAIT_CHECK(index < microbatches_.size());
    const Microbatch& microbatch = microbatches_[index];
    const size_t n = microbatch.entries.size();
    const auto position = [&](int32_t token) {
        return batch_->position(microbatch.entries[static_cast<size_t>(token)]);
    };
    runs_.clear();
    run_begin_.assign(1, 0);
    first_.assign(n, 0);
    last_.resize(n);
    key_positions_.clear();
    for (size_t s = 0; s < microbatch.sequences.size(); ++s) {
        const int32_t begin = microbatch.begin[s];
        const int32_t end = microbatch.begin[s + 1];
        runs_.push_back({.row = begin, .count = end - begin});
        run_begin_.push_back(static_cast<int32_t>(s) + 1);
        // Positions are nondecreasing within a sequence, and so are both ends of the interval.
        int32_t first = begin;
        int32_t last = begin;
        for (int32_t i = begin; i < end; ++i) {
            const PositionInterval seen = visible_positions(group.window, position(i));
            while (position(first) < seen.begin) ++first;
            while (last < end && (causal_ ? last <= i : position(last) <= seen.last)) ++last;
            first_[static_cast<size_t>(i)] = first - begin;
            last_[static_cast<size_t>(i)] = last - begin;
        }
    }
    if (group.needs_key_positions)
        for (size_t i = 0; i < n; ++i) key_positions_.push_back(position(static_cast<int32_t>(i)));
    return {
        .runs = runs_,
        .run_begin = run_begin_,
        .first = first_,
        .last = last_,
        .key_positions = key_positions_,
        .key_begin = group.needs_key_positions ? std::span<const int32_t>(microbatch.begin)
                                               : std::span<const int32_t>{},
    };
}

PartState WithinPart::describe(std::span<const SequenceId> sequences,
                               std::vector<StateRows>&) const {
    PartState state;
    state.sequences.resize(sequences.size());
    return state;
}

void WithinPart::check_restore(const PartState& state, std::span<const SequenceId> sequences, bool,
                               std::vector<StateRows>&) {
    const auto holds = [](const SequenceState& s) { return !s.items.empty(); };
    if (state.n_items != 0 || state.sequences.size() != sequences.size() ||
        std::ranges::any_of(state.sequences, holds))
        throw StateError(text("the state has ", state.n_items,
                              " items of layers that store nothing, expected 0"));
}

}  // namespace plait
