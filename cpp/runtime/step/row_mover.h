// Carries out on the device what edits of a memory ask for: rows to be copied, keys to be rotated.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "memory/memory.h"
#include "runtime/step/engine.h"

namespace plait {

class RowMover {
public:
    RowMover(Engine& engine, const MemoryLayout& layout, std::span<Buffer* const> storage);

    // Makes the plans, so that what follows allocates nothing and only a device can fail. To be
    // called before a memory is told to change.
    void prepare();
    // Both in order, whatever their number: a run of the device takes Engine::kMaxMoves rows.
    void copy(std::span<const RowMove> moves);
    void rotate(std::span<const KeyShift> shifts);

    // Of a row of the group, in all its layers.
    uint64_t row_bytes(uint8_t group) const;

private:
    std::unique_ptr<Plan> make_plan(uint8_t group, GraphKind kind);

    Engine& engine_;
    const MemoryLayout& layout_;
    std::span<Buffer* const> storage_;
    // By group, once prepared. Only tokens' rows move, and only rotated keys turn.
    std::vector<std::unique_ptr<Plan>> copies_;
    std::vector<std::unique_ptr<Plan>> rotations_;
};

}  // namespace plait
