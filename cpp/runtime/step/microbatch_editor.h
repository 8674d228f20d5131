// Passes the rows of a microbatch to the active edits.
#pragma once

#include <vector>

#include "backend/backend.h"
#include "batch/split.h"
#include "runtime/steering/steering.h"

namespace plait {

// Passes rows in batch order. A microbatch of whole sequences stores them in another order.
class MicrobatchEditor final : public Editor {
public:
    MicrobatchEditor(const Steering& steering, const Microbatch& microbatch)
        : steering_(steering), microbatch_(microbatch) {}
    void edit(uint16_t index, std::span<float> rows, const Shape& shape, Extent extent) override;

private:
    const Steering& steering_;
    const Microbatch& microbatch_;
};

}  // namespace plait
