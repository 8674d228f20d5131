// Runs the edits of a microbatch that happen on the host.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "batch/split.h"
#include "runtime/steering/edit_plan.h"

namespace plait {

// Returns the batch entry of a row of a value.
inline uint32_t entry_of(const Microbatch& microbatch, size_t row, Extent extent) {
    if (extent == Extent::tokens) return microbatch.entries[row];
    return microbatch.entries[static_cast<size_t>(microbatch.output_tokens[row])];
}

// Passes the selected rows to the functions of edits, in batch order. A microbatch of whole
// sequences stores them in another order.
class MicrobatchEditor final : public Editor {
public:
    MicrobatchEditor(const EditPlan& edits, const PreparedBatch& batch,
                     const Microbatch& microbatch)
        : edits_(edits), batch_(batch), microbatch_(microbatch) {}

    void edit(uint16_t index, std::span<float> rows, const Shape& shape, Extent extent) override;

private:
    struct Selected {
        size_t row;
        uint32_t entry;
        size_t index;  // of its position in the selection
    };
    std::vector<Selected> select(const RowSelection& selection, size_t n, Extent extent) const;

    const EditPlan& edits_;
    const PreparedBatch& batch_;
    const Microbatch& microbatch_;
};

}  // namespace plait
