// Copies cache rows and rotates cached keys on the device, as requested by edits of a memory.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "graph/plan_key.h"
#include "memory/memory.h"
#include "plan/plan.h"

namespace plait {

class Plans;

class RowMover {
public:
    explicit RowMover(const Plans& plans) : plans_(plans) {}

    // Builds the plans. Call before changing the memory: copy() and rotate() then allocate nothing
    // and fail only if a device fails.
    void prepare();
    // Both apply their list in order, in runs of at most kMaxMovesPerRun rows.
    void copy(std::span<const RowMove> moves);
    void rotate(std::span<const KeyShift> shifts);

    // Bytes per row of the group, summed over its layers.
    uint64_t row_bytes(uint8_t group) const;

private:
    std::unique_ptr<Plan> make_plan(uint8_t group, GraphKind kind);

    const Plans& plans_;
    // By group, empty before prepare(). Null for groups without cells or without rotated keys.
    std::vector<std::unique_ptr<Plan>> copies_;
    std::vector<std::unique_ptr<Plan>> rotations_;
};

}  // namespace plait
