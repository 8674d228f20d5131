// Parts of a graph, each on its device, one after the other, with the copies of what crosses.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/integrity.h"

namespace plait::joint {

// Where the host finds a value: at a fixed address, or counted from what a run brings along.
struct HostPlace {
    std::byte* fixed = nullptr;  // null: as `place` says, the arena or an output
    Place place;
};

struct Copy {
    HostPlace from, to;
    Extent extent = Extent::fixed;
    uint64_t row_bytes = 0;  // of a value of fixed extent: all of it
};

struct Part {
    uint8_t device = 0;
    std::vector<Copy> before, after;
    std::unique_ptr<Executable> executable;
};

class JointExecutable final : public Executable {
public:
    // `kept`: host memory that the copies go through.
    JointExecutable(std::vector<Part> parts, std::vector<std::shared_ptr<Buffer>> kept,
                    std::shared_ptr<Integrity> integrity);

    uint64_t scratch_bytes() const override { return scratch_bytes_; }
    void run(const RunArguments& run) override;

private:
    void run_parts(const RunArguments& run);

    std::vector<Part> parts_;
    std::vector<std::shared_ptr<Buffer>> kept_;
    std::shared_ptr<Integrity> integrity_;
    uint64_t scratch_bytes_ = 0;
};

}  // namespace plait::joint
