// Hands rows of a piece to whoever edits them.
#pragma once

#include <vector>

#include "backend/backend.h"
#include "batch/split.h"
#include "runtime/steering/steering.h"

namespace plait {

// Rows come in the order of the batch, which a piece of whole sequences does not keep.
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
