#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "memory/attention.h"

namespace plait {
namespace {

constexpr int32_t kMaxOrdinal = 1 << 30;  // leaves room for the ordinals of later tokens

}  // namespace

PartState AttentionPart::describe(std::span<const SequenceId> sequences,
                                  std::vector<StateRows>& rows) const {
    PLAIT_CHECK(!placement_.in_step() && !table_.has_shifts());
    PartState state{.window = window_, .axes = table_.axes()};
    StateRows found;
    std::vector<int32_t> item_of(static_cast<size_t>(table_.n_rows()), -1);
    for (const SequenceId s : sequences) {
        SequenceState& sequence = state.sequences.emplace_back();
        sequence.unstored = freed_positions(s);
        for (const int32_t row : rows_of(s)) {
            int32_t& item = item_of[static_cast<size_t>(row)];
            if (item < 0) {
                item = state.n_items++;
                const auto position = table_.positions(row);
                state.positions.insert(state.positions.end(), position.begin(), position.end());
                state.ordinals.push_back(table_.ordinal(row));
                found.items.push_back(item);
                found.rows.push_back(row);
            }
            sequence.items.push_back(item);
        }
    }
    for (const uint8_t group : groups_) {
        found.group = group;
        rows.push_back(found);
    }
    return state;
}

// Checks one sequence of a state. `n_known` is the number of items that the sequences before it
// list; returns that number including this sequence. An item that is listed for the first time must
// have the lowest unused number.
int32_t AttentionPart::check_sequence(const PartState& state, const SequenceState& sequence,
                                      int32_t n_known) const {
    const auto position = [&](int32_t item) {
        return state.positions[static_cast<size_t>(item) * static_cast<size_t>(state.axes)];
    };
    std::vector<bool> seen(static_cast<size_t>(state.n_items));
    int32_t before = -1;
    for (const int32_t item : sequence.items) {
        if (item < 0 || item >= state.n_items || item > n_known || seen[static_cast<size_t>(item)])
            throw StateError(text("a sequence of the state lists token ", item, " of ",
                                  state.n_items, " twice or out of order"));
        if (before >= 0 && position(item) < position(before))
            throw StateError(text("a sequence of the state has position ", position(item),
                                  " after position ", position(before),
                                  "; positions must not decrease"));
        seen[static_cast<size_t>(item)] = true;
        n_known += item == n_known ? 1 : 0;
        before = item;
    }
    const auto needed = std::ssize(sequence.items);
    if (needed > n_ctx_)
        throw CacheFull(text("a sequence of the state has ", needed, " cells, n_ctx is ", n_ctx_),
                        needed, n_ctx_);
    if (needed > table_.rows_per_pool())
        throw CacheFull(text("a sequence of the state has ", needed, " cells, the cache has ",
                             table_.rows_per_pool()),
                        needed, table_.rows_per_pool());
    return n_known;
}

std::optional<Position> AttentionPart::end_of(const PartState& state, size_t sequence) const {
    const auto& items = state.sequences[sequence].items;
    if (state.axes != 1) return std::nullopt;
    if (items.empty()) return 0;
    const int32_t token = items.back();
    const auto last = static_cast<size_t>(token);
    if (token < 0 || last >= state.positions.size() || state.positions[last] == INT32_MAX)
        throw StateError(text("a sequence of the state lists token ", token, ", expected 0..",
                              state.n_items - 1, " with a position below ", INT32_MAX));
    return state.positions[last] + 1;
}

void AttentionPart::check_restore(const PartState& state, std::span<const SequenceId> sequences,
                                  bool whole, std::vector<StateRows>& rows) {
    PLAIT_CHECK(!placement_.in_step() && state.sequences.size() == sequences.size());
    const auto n_items = static_cast<size_t>(std::max(state.n_items, 0));
    if (!(state.window == window_) || state.axes != table_.axes())
        throw StateError(text("the state has keys with ", state.axes,
                              " positions each and a window of ", state.window.tokens,
                              " tokens, expected ", table_.axes(), " positions and a window of ",
                              window_.tokens, " tokens"));
    if (state.n_items < 0 || state.ordinals.size() != n_items ||
        state.positions.size() != n_items * static_cast<size_t>(state.axes))
        throw StateError(text("the state has ", state.positions.size(), " positions and ",
                              state.ordinals.size(), " ordinals for ", state.n_items, " tokens"));
    const auto outside = [](int32_t max) { return [max](int32_t n) { return n < 0 || n > max; }; };
    if (std::ranges::any_of(state.positions, outside(INT32_MAX - 1)) ||
        std::ranges::any_of(state.ordinals, outside(kMaxOrdinal)))
        throw StateError(text("the state has a position outside 0..", INT32_MAX - 1,
                              " or an ordinal outside 0..", kMaxOrdinal));
    int32_t n_known = 0;
    size_t n_keys = 0;
    for (const SequenceState& sequence : state.sequences) {
        n_known = check_sequence(state, sequence, n_known);
        n_keys += sequence.items.size();
    }
    if (n_known != state.n_items)
        throw StateError(text("no sequence of the state lists token ", n_known));
    if (table_.n_pools() == 1) {
        int64_t free = table_.n_rows() - table_.n_kept(0);
        if (!whole) {
            free = table_.n_free();
            for (const SequenceId s : sequences) free += table_.n_freed(s, {0, table_.n_keys(s)});
        }
        if (state.n_items > free)
            throw CacheFull(text("the state needs ", state.n_items, " cells, ", free, " of ",
                                 table_.n_rows(), " are free"),
                            state.n_items, free);
        n_keys = n_items;
    } else {
        for (size_t i = 0; i < sequences.size(); ++i) {
            const auto needed = std::ssize(state.sequences[i].items);
            const int64_t free = table_.rows_per_pool() - table_.n_kept(sequences[i]);
            if (needed > free)
                throw CacheFull(text("a sequence of the state needs ", needed, " cells, ", free,
                                     " in its stream are free"),
                                needed, free);
        }
    }
    row_of_item_.assign(n_items, -1);
    for (size_t i = 0; i < sequences.size(); ++i)
        table_.reserve_keys(sequences[i], static_cast<int32_t>(state.sequences[i].items.size()));
    for (const uint8_t group : groups_) {
        StateRows& found = rows.emplace_back();
        found.group = group;
        found.items.reserve(n_keys);
        found.rows.reserve(n_keys);
    }
}

void AttentionPart::restore(const PartState& state, std::span<const SequenceId> sequences,
                            std::span<StateRows> rows) noexcept {
    const auto axes = static_cast<size_t>(state.axes);
    for (size_t i = 0; i < sequences.size(); ++i) {
        for (const int32_t item : state.sequences[i].items) {
            int32_t& row = row_of_item_[static_cast<size_t>(item)];
            if (row >= 0 && table_.n_pools() == 1) {
                table_.restore_shared_key(sequences[i], row);
                continue;
            }
            row = table_.restore_key(
                sequences[i],
                std::span(state.positions).subspan(static_cast<size_t>(item) * axes, axes),
                state.ordinals[static_cast<size_t>(item)]);
            for (StateRows& found : rows) {
                found.items.push_back(item);
                found.rows.push_back(row);
            }
        }
    }
}

}  // namespace plait
