// Session: keys and values, saved states, rewind and defragmentation.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "runtime/session.h"
#include "tensor/convert.h"

namespace plait {
namespace {

std::string shape_text(std::span<const int64_t> shape) {
    std::string all;
    for (const int64_t n : shape) all += text(all.empty() ? "" : ", ", n);
    return text("(", all, shape.size() == 1 ? ",)" : ")");
}

struct FoundKeys {
    std::vector<int32_t> keys;   // ascending indices of Memory::rows_of()
    std::vector<size_t> source;  // index of each in the caller's positions
};

// Finds the key of each position; `held` are the positions of the keys, ascending.
FoundKeys find_keys(SequenceId sequence, int layer, std::span<const Position> positions,
                    std::span<const Position> held) {
    FoundKeys found;
    for (size_t i = 0; i < positions.size(); ++i) found.source.push_back(i);
    std::ranges::sort(found.source, {}, [&](size_t i) { return positions[i]; });
    for (const size_t i : found.source) {
        const Position p = positions[i];
        const auto range = std::ranges::equal_range(held, p);
        if (range.empty())
            throw InvalidArgument(
                text("positions: sequence ", sequence, " has no position ", p, " in layer ", layer,
                     held.empty() ? text(", which stores no position of the sequence")
                                  : text("; it stores ", held.size(), " positions between ",
                                         held.front(), " and ", held.back())));
        if (range.size() > 1)
            throw InvalidArgument(text("positions: sequence ", sequence, " has ", range.size(),
                                       " tokens at position ", p, ", expected one"));
        const auto key = static_cast<int32_t>(range.begin() - held.begin());
        if (!found.keys.empty() && found.keys.back() == key)
            throw InvalidArgument(text("positions: position ", p, " is given twice"));
        found.keys.push_back(key);
    }
    return found;
}

void check_shape(const char* name, const GivenRows& rows, size_t n, const StorageInfo& info) {
    const std::vector<int64_t> expected{static_cast<int64_t>(n), info.n_heads, info.head_dim};
    if (rows.shape == expected) return;
    throw InvalidArgument(
        text(name, ": expected shape ", shape_text(expected), ", got ", shape_text(rows.shape)));
}

// The bytes of given rows in a storage.
struct PackedRows {
    const StorageInfo* info;
    size_t index;  // of the storage
    std::vector<std::byte> bytes;
};

// Quantises rows, and checks that the cache type stores them as finite numbers.
PackedRows pack(const char* name, const GivenRows& rows, const StorageInfo& info, size_t index) {
    PackedRows packed{&info, index, {}};
    const auto n = static_cast<size_t>(rows.shape[0]);
    const auto elements = static_cast<size_t>(info.n_heads) * static_cast<size_t>(info.head_dim);
    packed.bytes.resize(n * info.row_bytes);
    std::vector<float> back(static_cast<size_t>(info.n_heads) *
                            static_cast<size_t>(info.head_elements));
    const auto is_finite = [](float value) { return std::isfinite(value); };
    for (size_t i = 0; i < n; ++i) {
        const std::span<const float> row = rows.values.subspan(i * elements, elements);
        const auto wrong = std::ranges::find_if_not(row, is_finite);
        if (wrong != row.end())
            throw InvalidArgument(
                text(name, ": row ", i, " has the element ", *wrong, ", expected finite numbers"));
        std::byte* const target = packed.bytes.data() + i * info.row_bytes;
        Storage::pack_row(info, row.data(), target);
        dequantize(info.dtype, target, back.data(), back.size());
        if (!std::ranges::all_of(back, is_finite))
            throw InvalidArgument(
                text(name, ": row ", i, " has an element as large as ",
                     std::ranges::max(row, {}, [](float v) { return std::abs(v); }),
                     ", which a cache of type ", plait::info(info.dtype).name, " cannot store"));
    }
    return packed;
}

}  // namespace

void Session::check_sequence(std::optional<SequenceId> sequence) const {
    if (sequence) check_sequence(*sequence);
}

void Session::save_state(std::optional<SequenceId> sequence, const ByteSink& sink) {
    check_sequence(sequence);
    decode_runner_->apply_shifts();
    const std::vector<SequenceId> saved =
        sequence ? std::vector{*sequence} : memory().held_sequences();
    plait::save_state(*decode_runner_->stored(), facts_, active_changes(saved), sequence, sink);
}

void Session::load_state(std::span<const std::byte> bytes, std::optional<SequenceId> to,
                         const AllowSequence& allow) {
    check_sequence(to);
    const auto active = [&](std::span<const SequenceId> of) { return active_changes(of); };
    plait::load_state(*decode_runner_->stored(), facts_, active, bytes, to, allow);
}

void Session::copy_state_to(Session& other) {
    check_facts(facts_, other.facts_);
    const std::vector<SequenceId> copied = memory().held_sequences();
    check_active(active_changes(copied), other.active_changes(copied));
    decode_runner_->apply_shifts();
    copy_state(*decode_runner_->stored(), *other.decode_runner_->stored());
}

Position Session::rewind(SequenceId sequence, Position next) {
    check_sequence(sequence);
    check_range({.begin = next});
    RewindPoint point;
    decode_runner_->edit([&](Memory& memory, std::vector<RowMove>& moves) {
        point = memory.rewind_point(sequence, next);
        if (point.from == sequence) {
            // A range without an end would include an encoder output.
            const Position end = memory.next(sequence);
            PLAIT_CHECK(memory.remove(sequence, {point.next, end}));
            return;
        }
        memory.refork(point, sequence, moves);
    });
    return memory().next(sequence);
}

DefragReport Session::defrag(std::optional<int64_t> max_moves) {
    if (max_moves && *max_moves < 1)
        throw InvalidArgument(text("max_moves: expected at least 1, got ", *max_moves));
    return decode_runner_->defragment(max_moves.value_or(kMaxMovesPerRun));
}

CachedHeads Session::heads_of(int layer, uint8_t part) const {
    const MemoryLayout& layout = memory().layout();
    if (layer < 0 || static_cast<size_t>(layer) >= layout.specs.size())
        throw OutOfRange(
            text("layer ", layer, " does not exist: expected 0 to ", layout.specs.size() - 1));
    check_runs_layer(layer);
    const auto heads = layout.cached_heads(static_cast<size_t>(layer), part);
    if (heads) return *heads;
    for (const StateSpec& spec : layout.specs[static_cast<size_t>(layer)])
        if (spec.kind().holds_states)
            throw UnsupportedError(text("layer ", layer, " is ", spec.kind().name,
                                        ": it has a state, but no keys and values"));
    throw UnsupportedError(text("layer ", layer, " has no keys and values"));
}

SequenceRows Session::read_rows(int layer, SequenceId sequence, uint8_t part) {
    check_sequence(sequence);
    const CachedHeads heads = heads_of(layer, part);
    decode_runner_->apply_shifts();
    const MemoryLayout& layout = memory().layout();
    const StorageInfo& info = layout.at(heads.id);
    const std::vector<int32_t> rows = memory().rows_of(info.group, sequence);
    SequenceRows result{.n = static_cast<int64_t>(rows.size()),
                        .n_heads = info.n_heads,
                        .head_dim = heads.head_dim};
    const auto stored = static_cast<size_t>(info.head_dim);
    const auto wanted = static_cast<size_t>(heads.head_dim);
    const auto n_heads = static_cast<size_t>(info.n_heads);
    result.values.resize(rows.size() * n_heads * wanted);
    std::vector<float> row(n_heads * stored);
    float* to = result.values.data();
    for (const int32_t i : rows) {
        decode_runner_->storage().read_row(info, layout.index(heads.id), i, row.data());
        for (size_t h = 0; h < n_heads; ++h) to = std::copy_n(row.data() + h * stored, wanted, to);
    }
    return result;
}

void Session::write(int layer, SequenceId sequence, std::span<const Position> positions,
                    const std::optional<GivenRows>& keys, const std::optional<GivenRows>& values) {
    check_sequence(sequence);
    const MemoryLayout& layout = memory().layout();
    const StorageId key_id = heads_of(layer, 0).id;
    const StorageId value_id = heads_of(layer, 1).id;
    if (!keys && !values) throw InvalidArgument("keys, values: expected at least one of them");
    if (values && value_id == key_id)
        throw UnsupportedError(
            text("values: layer ", layer, " stores no separate values: they are ", "the first ",
                 heads_of(layer, 1).head_dim, " elements of each key; write keys instead"));
    const StorageInfo& key_info = layout.at(key_id);
    if (keys) check_shape("keys", *keys, positions.size(), key_info);
    if (values) check_shape("values", *values, positions.size(), layout.at(value_id));
    const uint8_t group = key_info.group;
    FoundKeys found = find_keys(sequence, layer, positions, memory().positions_of(group, sequence));
    std::vector<PackedRows> packed;
    if (keys) packed.push_back(pack("keys", *keys, key_info, layout.index(key_id)));
    if (values) {
        PLAIT_CHECK(layout.at(value_id).group == group);
        packed.push_back(pack("values", *values, layout.at(value_id), layout.index(value_id)));
    }
    if (positions.empty()) return;
    decode_runner_->apply_shifts();
    decode_runner_->edit([&](Memory& memory, std::vector<RowMove>& moves) {
        memory.own(group, sequence, found.keys, moves);
    });
    const std::vector<int32_t>& rows = found.keys;  // own() has replaced them
    for (const PackedRows& part : packed) {
        const uint64_t each = part.info->row_bytes;
        Buffer& buffer = *decode_runner_->storage().buffers()[part.index];
        for (size_t i = 0; i < rows.size(); ++i)
            buffer.write(static_cast<uint64_t>(rows[i]) * each,
                         std::span(part.bytes).subspan(found.source[i] * each, each));
    }
}

}  // namespace plait
