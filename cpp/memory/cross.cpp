#include "memory/cross.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "memory/layout_builder.h"

namespace plait {
namespace {

// Max tokens of one encoder input.
int64_t max_input(const MemoryOptions& options) {
    return std::min<int64_t>(options.n_ctx, options.n_batch);
}

int64_t cross_rows(const MemoryOptions& options) {
    return std::min(options.n_seq_max * max_input(options), *options.n_cells) + options.n_batch;
}

uint8_t add_cross_slot(LayoutBuilder& builder, StorageId id, const StateSpec& slot) {
    const auto spec = slot.get<CrossSpec>();
    PLAIT_CHECK(spec.n_kv_heads > 0 && spec.key_dim > 0 && spec.value_dim > 0);
    const MemoryOptions& options = builder.options();
    const uint8_t group = builder.find_group({
        .kind = &CrossSpec::kind(),
        .n_rows = saturate32(cross_rows(options)),
        .max_runs = builder.max_runs(max_input(options)),
    });
    builder.add_storage(id, group, options.keys, spec.n_kv_heads, spec.key_dim, false,
                        hadamard_block(options.keys, spec.key_dim));
    id.part = 1;
    builder.add_storage(id, group, options.values, spec.n_kv_heads, spec.value_dim, false,
                        hadamard_block(options.values, spec.value_dim));
    return group;
}

std::string cross_storage_name(uint8_t part) { return part == 0 ? "cross keys" : "cross values"; }

void check_cross(const MemoryLayout& layout, const MemoryOptions&) {
    if (!layout.has_cells())
        throw UnsupportedError(
            "cross attention without self attention is not supported: no other layer records the "
            "positions of the decoder's sequences");
}

void add_cross_parts(const MemoryLayout& layout, std::span<const uint8_t> groups,
                     const MemoryOptions& options, Parts& parts) {
    for (const uint8_t group : groups)
        parts.add(std::make_unique<CrossPart>(layout, group, options), {{group}});
}

constinit const PartKind kCross{
    .name = "cross",
    .code = 2,
    .memory_name = "cross",
    .memory_name_with_cells = "cross",
    .add_slot = add_cross_slot,
    .storage_name = cross_storage_name,
    .check = check_cross,
    .add_parts = add_cross_parts,
};

}  // namespace

const PartKind& CrossSpec::kind() { return kCross; }

CrossPart::CrossPart(const MemoryLayout& layout, uint8_t group, const MemoryOptions& options)
    : Part(kCross),
      group_(group),
      n_sequences_(options.n_seq_max),
      n_ctx_(options.n_ctx),
      table_(static_cast<int32_t>(layout.groups[group].n_rows),
             /*pool_per_sequence=*/false, 2 * options.n_seq_max, 1) {}

std::vector<int32_t> CrossPart::rows_of(SequenceId sequence) const {
    std::vector<int32_t> rows;
    for (const Run& run : table_.runs(sequence))
        for (int32_t r = 0; r < run.count; ++r) rows.push_back(run.row + r);
    return rows;
}

void CrossPart::place(StepKind kind, const PreparedBatch& batch,
                      std::span<const Microbatch> microbatches) {
    PLAIT_CHECK(batch_ == nullptr);
    if (kind == StepKind::encode) place_output(batch, microbatches);
    kind_ = kind;
    batch_ = &batch;
    microbatches_ = microbatches;
}

void CrossPart::check_batch(StepKind kind, const PreparedBatch& batch) const {
    if (kind == StepKind::encode) return;
    for (const SequenceId s : batch.touched)
        if (table_.n_keys(s) == 0)
            throw BatchError(
                text("decode: sequence ", s, " has no encoder output; encode its input first"));
}

void CrossPart::place_output(const PreparedBatch& batch, std::span<const Microbatch> microbatches) {
    const auto needed = static_cast<int64_t>(batch.size());
    if (needed > table_.n_free())
        throw CacheFull(text("the encoder's output needs ", needed, " cells, ", table_.n_free(),
                             " of ", table_.n_rows(), " are free"),
                        needed, table_.n_free());
    for (const SequenceId s : batch.touched) table_.save(s);  // for commit()
    first_token_.assign(1, 0);
    write_rows_.clear();
    try {
        for (const Microbatch& microbatch : microbatches) {
            for (const uint32_t entry : microbatch.entries) {
                ids_.clear();
                for (const SequenceId s : batch.sequences_of(entry)) ids_.push_back(incoming(s));
                const Position position = table_.n_keys(ids_[0]);
                write_rows_.push_back(table_.append(ids_, std::span(&position, 1)));
            }
            first_token_.push_back(write_rows_.size());
        }
        for (const SequenceId s : batch.touched) {
            const int32_t n = table_.n_keys(incoming(s));
            if (n > n_ctx_)
                throw CacheFull(
                    text("sequence ", s, " has ", n, " encoder tokens, n_ctx is ", n_ctx_), n,
                    n_ctx_);
        }
    } catch (...) {
        table_.rollback();
        throw;
    }
}

void CrossPart::commit() noexcept {
    if (batch_ != nullptr && kind_ == StepKind::encode) {
        table_.commit();
        for (const SequenceId s : batch_->touched) {
            table_.swap(s, incoming(s));
            table_.release_all(incoming(s));
        }
    }
    batch_ = nullptr;
    microbatches_ = {};
}

void CrossPart::rollback() noexcept {
    table_.rollback();
    batch_ = nullptr;
    microbatches_ = {};
}

GroupView CrossPart::view(const GroupInfo&, size_t index) {
    PLAIT_CHECK(index < microbatches_.size());
    const Microbatch& microbatch = microbatches_[index];
    if (kind_ == StepKind::encode)
        return {.write_rows =
                    std::span(write_rows_).subspan(first_token_[index], microbatch.entries.size())};
    runs_.clear();
    run_begin_.assign(1, 0);
    first_.assign(microbatch.entries.size(), 0);
    last_.clear();
    for (size_t s = 0; s < microbatch.sequences.size(); ++s) {
        const auto runs = table_.runs(microbatch.sequences[s]);
        runs_.insert(runs_.end(), runs.begin(), runs.end());
        run_begin_.push_back(static_cast<int32_t>(runs_.size()));
        last_.resize(static_cast<size_t>(microbatch.begin[s + 1]),
                     table_.n_keys(microbatch.sequences[s]));
    }
    return {.runs = runs_, .run_begin = run_begin_, .first = first_, .last = last_};
}

void CrossPart::remove(SequenceId sequence, PositionRange range) noexcept {
    if (range.whole()) table_.release_all(sequence);
}

bool CrossPart::copies_output(SequenceId from, SequenceId to, PositionRange range) const {
    if (range.whole()) return true;
    return range.end > range.begin && table_.n_keys(from) > 0 &&
           (range.begin == 0 || table_.n_keys(to) == 0);
}

size_t CrossPart::check_copy(SequenceId from, SequenceId to, PositionRange) {
    return reserve_fork(from, to);
}

size_t CrossPart::reserve_fork(SequenceId from, SequenceId to) {
    PLAIT_CHECK(batch_ == nullptr);
    table_.reserve_share(from, to);
    return 0;
}

void CrossPart::copy(SequenceId from, SequenceId to, PositionRange range,
                     std::vector<RowMove>&) noexcept {
    if (copies_output(from, to, range))
        table_.share(from, {0, table_.n_keys(from)}, to, {0, table_.n_keys(to)});
}

PartState CrossPart::describe(std::span<const SequenceId> sequences,
                              std::vector<StateRows>& rows) const {
    PLAIT_CHECK(batch_ == nullptr);
    PartState state;
    StateRows& found = rows.emplace_back();
    found.group = group_;
    std::vector<int32_t> item_of(static_cast<size_t>(table_.n_rows()), -1);
    for (const SequenceId s : sequences) {
        SequenceState& sequence = state.sequences.emplace_back();
        for (const int32_t row : rows_of(s)) {
            int32_t& item = item_of[static_cast<size_t>(row)];
            if (item < 0) {
                item = state.n_items++;
                found.items.push_back(item);
                found.rows.push_back(row);
            }
            sequence.items.push_back(item);
        }
    }
    return state;
}

// Sequences share an encoder output as a whole or not at all. The items of a sequence must
// therefore be either the next unused numbers, in order, or exactly those of an earlier sequence.
void CrossPart::check_restore(const PartState& state, std::span<const SequenceId> sequences,
                              bool whole, std::vector<StateRows>& rows) {
    PLAIT_CHECK(batch_ == nullptr && state.sequences.size() == sequences.size());
    if (state.axes != 0)
        throw StateError(
            text("the state has encoder outputs with ", state.axes, " positions each, expected 0"));
    std::vector<int32_t> length_at;  // [n items so far] length of the output that starts there
    for (const SequenceState& sequence : state.sequences) {
        if (sequence.items.empty()) continue;
        const auto n = static_cast<int32_t>(sequence.items.size());
        const int32_t first = sequence.items[0];
        const auto known = static_cast<int32_t>(length_at.size());
        for (int32_t i = 0; i < n; ++i)
            if (first < 0 || sequence.items[static_cast<size_t>(i)] != first + i)
                throw StateError("the state has an encoder output whose tokens are out of order");
        const bool is_new = first == known;
        if (!is_new && (first > known || length_at[static_cast<size_t>(first)] != n))
            throw StateError("the state has encoder outputs that overlap");
        if (n > n_ctx_)
            throw CacheFull(text("the state has ", n, " encoder tokens, n_ctx is ", n_ctx_), n,
                            n_ctx_);
        if (!is_new) continue;
        if (n > state.n_items - known)
            throw StateError(text("the state has ", state.n_items, " encoder tokens, but its ",
                                  "sequences list more"));
        length_at.resize(static_cast<size_t>(known) + static_cast<size_t>(n));
        length_at[static_cast<size_t>(known)] = n;
    }
    if (std::ssize(length_at) != state.n_items)
        throw StateError(text("no sequence of the state lists encoder token ", length_at.size()));
    int64_t free = table_.n_rows() - table_.n_kept(0);
    if (!whole) {
        free = table_.n_free();
        for (const SequenceId s : sequences) free += table_.n_freed(s, {0, table_.n_keys(s)});
    }
    if (state.n_items > free)
        throw CacheFull(text("the state needs ", state.n_items, " encoder cells, ", free, " of ",
                             table_.n_rows(), " are free"),
                        state.n_items, free);
    row_of_item_.assign(length_at.size(), -1);
    for (size_t i = 0; i < sequences.size(); ++i)
        table_.reserve_keys(sequences[i], static_cast<int32_t>(state.sequences[i].items.size()));
    StateRows& found = rows.emplace_back();
    found.group = group_;
    found.items.reserve(length_at.size());
    found.rows.reserve(length_at.size());
}

void CrossPart::restore(const PartState& state, std::span<const SequenceId> sequences,
                        std::span<StateRows> rows) noexcept {
    for (size_t i = 0; i < sequences.size(); ++i) {
        int32_t ordinal = 0;
        for (const int32_t item : state.sequences[i].items) {
            const Position position = ordinal++;
            int32_t& row = row_of_item_[static_cast<size_t>(item)];
            if (row >= 0) {
                table_.restore_shared_key(sequences[i], row);
                continue;
            }
            row = table_.restore_key(sequences[i], std::span(&position, 1), position);
            rows[0].items.push_back(item);
            rows[0].rows.push_back(row);
        }
    }
}

}  // namespace plait
