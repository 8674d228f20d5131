#include "runtime/state/state_transfer.h"

#include <algorithm>

#include "base/checked.h"
#include "base/error.h"
#include "base/text.h"
#include "gguf/text.h"
#include "runtime/state/state_format.h"

namespace plait {
namespace {

// Calls visit(first item, first row, count) for each run of items with contiguous rows.
template <typename Visit>
void for_each_run(const StateRows& rows, Visit visit) {
    for (size_t i = 0; i < rows.items.size();) {
        size_t n = 1;
        while (i + n < rows.items.size() &&
               rows.items[i + n] == rows.items[i] + static_cast<int32_t>(n) &&
               rows.rows[i + n] == rows.rows[i] + static_cast<int32_t>(n))
            ++n;
        visit(static_cast<uint64_t>(rows.items[i]), static_cast<uint64_t>(rows.rows[i]),
              uint64_t{n});
        i += n;
    }
}

// Calls visit(index, storage info, rows of its group) for each storage of a group that has rows.
template <typename Visit>
void for_each_storage(const MemoryLayout& layout, const std::vector<StateRows>& rows, Visit visit) {
    for (size_t i = 0; i < layout.storage.size(); ++i) {
        const auto group = std::ranges::find(rows, layout.storage[i].group, &StateRows::group);
        if (group != rows.end()) visit(i, layout.storage[i], *group);
    }
}

uint64_t n_items(const MemoryState& state, const Memory& memory, const StorageInfo& storage) {
    const uint32_t part = memory.state_part(storage.group);
    if (part >= state.parts.size())
        throw StateError(text("the state has ", state.parts.size(), " parts, expected ", part + 1,
                              " or more: it was saved from another kind of memory"));
    return static_cast<uint64_t>(std::max(state.parts[part].n_items, 0));
}

void check_rows(const StateReading& state, const Memory& memory) {
    const auto& storage = memory.layout().storage;
    if (state.rows.size() != storage.size())
        throw StateError(text("the state has rows of ", state.rows.size(), " storages, expected ",
                              storage.size()));
    for (size_t i = 0; i < storage.size(); ++i) {
        const auto expected =
            checked_mul(n_items(state.memory, memory, storage[i]), storage[i].row_bytes);
        if (state.rows[i].size() != expected)
            throw StateError(text("the state has ", state.rows[i].size(),
                                  " bytes of rows of storage ", i,
                                  ", which does not match its number of tokens"));
    }
}

std::string listed(const std::vector<ActiveChange>& active) {
    if (active.empty()) return "neither an adapter nor a control vector";
    std::string all;
    for (const ActiveChange& change : active)
        all += text(all.empty() ? "" : ", ", gguf::quoted(change.identity), " scaled by ",
                    change.scale);
    return all;
}

}  // namespace

void check_active(const std::vector<ActiveChange>& state, const std::vector<ActiveChange>& here) {
    if (state == here) return;
    throw StateError(text("the state was made with ", listed(state), ", expected ", listed(here),
                          ", which this context has"));
}

void save_state(const StoredMemory& from, const Facts& facts,
                const std::vector<ActiveChange>& active, std::optional<SequenceId> sequence,
                const ByteSink& sink) {
    const Memory& memory = *from.memory;
    std::vector<StateRows> rows;
    const MemoryState state = memory.describe(sequence, rows);
    std::vector<uint64_t> row_bytes;
    for (const StorageInfo& storage : memory.layout().storage)
        row_bytes.push_back(n_items(state, memory, storage) * storage.row_bytes);
    const StateImage image(facts, active, state, std::move(row_bytes));
    const std::span<std::byte> target = sink(image.bytes());
    for_each_storage(memory.layout(), rows,
                     [&](size_t i, const StorageInfo& storage, const StateRows& group) {
                         const std::span<std::byte> to = image.rows(target, i);
                         const Buffer& source = *from.storage.buffers()[i];
                         const uint64_t bytes = storage.row_bytes;
                         for_each_run(group, [&](uint64_t item, uint64_t row, uint64_t n) {
                             source.read(row * bytes, to.subspan(item * bytes, n * bytes));
                         });
                     });
    image.seal(target);
}

void load_state(StoredMemory& target, const Facts& facts, const ActiveOf& active,
                std::span<const std::byte> bytes, std::optional<SequenceId> to,
                const AllowSequence& allow) {
    const StateReading state = read_state(bytes);
    check_facts(state.facts, facts);
    // restore() checks the sequences.
    check_active(state.active, active(to ? std::vector{*to} : state.memory.sequences));
    check_rows(state, *target.memory);
    if (allow && !to && !state.memory.whole)
        for (const SequenceId sequence : state.memory.sequences) allow(sequence);
    std::vector<StateRows> rows;
    target.memory->restore(state.memory, to, rows);
    for_each_storage(target.memory->layout(), rows,
                     [&](size_t i, const StorageInfo& storage, const StateRows& group) {
                         Buffer& buffer = *target.storage.buffers()[i];
                         const uint64_t each = storage.row_bytes;
                         for_each_run(group, [&](uint64_t item, uint64_t row, uint64_t n) {
                             buffer.write(row * each, state.rows[i].subspan(item * each, n * each));
                         });
                     });
}

void copy_state(const StoredMemory& from, StoredMemory& to) {
    std::vector<StateRows> sources;
    const MemoryState state = from.memory->describe(std::nullopt, sources);
    // Read everything before changing anything, since a device may fail in between.
    std::vector<std::vector<std::byte>> rows(from.memory->layout().storage.size());
    for_each_storage(from.memory->layout(), sources,
                     [&](size_t i, const StorageInfo& storage, const StateRows& group) {
                         const Buffer& source = *from.storage.buffers()[i];
                         const uint64_t each = storage.row_bytes;
                         rows[i].resize(group.items.size() * each);
                         for_each_run(group, [&](uint64_t item, uint64_t row, uint64_t n) {
                             source.read(row * each,
                                         std::span(rows[i]).subspan(item * each, n * each));
                         });
                     });
    std::vector<StateRows> targets;
    to.memory->restore(state, std::nullopt, targets);
    for_each_storage(to.memory->layout(), targets,
                     [&](size_t i, const StorageInfo& storage, const StateRows& group) {
                         Buffer& target = *to.storage.buffers()[i];
                         const uint64_t each = storage.row_bytes;
                         for_each_run(group, [&](uint64_t item, uint64_t row, uint64_t n) {
                             target.write(row * each,
                                          std::span(rows[i]).subspan(item * each, n * each));
                         });
                     });
}

}  // namespace plait
