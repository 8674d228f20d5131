#include "plan/input_layout.h"

#include <algorithm>

#include "base/checked.h"
#include "base/error.h"

namespace plait {

void InputLayout::add(InputId id, uint64_t bytes) {
    for (const Entry& entry : entries_) PLAIT_CHECK(!(entry.id == id));
    entries_.push_back({id, bytes_, bytes});
    bytes_ = align_up(bytes_ + bytes, 64);
}

bool InputLayout::has(InputId id) const {
    return std::ranges::find(entries_, id, &Entry::id) != entries_.end();
}

const InputLayout::Entry& InputLayout::at(InputId id) const {
    for (const Entry& entry : entries_)
        if (entry.id == id) return entry;
    throw InternalError("a graph reads an input that is not in the layout of its context");
}

uint64_t InputLayout::offset(InputId id) const { return at(id).offset; }
uint64_t InputLayout::capacity(InputId id) const { return at(id).bytes; }

}  // namespace plait
