// Finds items by name. The index is a sorted list rather than a hash table, because names come from
// untrusted files and could be chosen to collide. Hashes only save string comparisons.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

namespace plait::gguf {

class NameIndex {
public:
    // `name_of(i)` returns the name of item i. All calls must pass the same function.
    template <typename NameOf>
    void build(uint64_t count, const NameOf& name_of) {
        slots_.clear();
        slots_.reserve(count);
        for (uint64_t i = 0; i < count; ++i) slots_.push_back({hash(name_of(i)), i});
        std::sort(slots_.begin(), slots_.end(), [&](const Slot& a, const Slot& b) {
            if (a.hash != b.hash) return a.hash < b.hash;
            const auto order = name_of(a.item) <=> name_of(b.item);
            return order != 0 ? order < 0 : a.item < b.item;
        });
    }

    template <typename NameOf>
    std::optional<uint64_t> find(std::string_view name, const NameOf& name_of) const {
        const uint64_t wanted = hash(name);
        const auto slot = std::lower_bound(
            slots_.begin(), slots_.end(), name, [&](const Slot& s, std::string_view n) {
                return s.hash != wanted ? s.hash < wanted : name_of(s.item) < n;
            });
        if (slot == slots_.end() || name_of(slot->item) != name) return std::nullopt;
        return slot->item;
    }

    // Returns the first item that has the name of an earlier item; nullopt if all names differ.
    template <typename NameOf>
    std::optional<uint64_t> duplicate(const NameOf& name_of) const {
        std::optional<uint64_t> first;
        for (size_t i = 1; i < slots_.size(); ++i) {
            const Slot &a = slots_[i - 1], &b = slots_[i];
            if (a.hash != b.hash || name_of(a.item) != name_of(b.item)) continue;
            first = std::min(b.item, first.value_or(std::numeric_limits<uint64_t>::max()));
        }
        return first;
    }

private:
    struct Slot {
        uint64_t hash;
        uint64_t item;
    };
    static uint64_t hash(std::string_view name) { return std::hash<std::string_view>{}(name); }

    std::vector<Slot> slots_;  // by (hash, name, item)
};

}  // namespace plait::gguf
