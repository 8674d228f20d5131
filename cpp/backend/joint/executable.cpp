#include "backend/joint/executable.h"

#include <algorithm>
#include <cstring>

#include "backend/joint/buffers.h"
#include "base/error.h"

namespace plait::joint {
namespace {

uint64_t rows_of(Extent extent, const Counts& counts) {
    switch (extent) {
    case Extent::fixed: return 1;
    case Extent::tokens: return static_cast<uint64_t>(counts.tokens);
    case Extent::outputs: return static_cast<uint64_t>(counts.outputs);
    case Extent::moves: return static_cast<uint64_t>(counts.moves);
    }
    return 0;
}

std::byte* resolve(const HostPlace& at, const RunArguments& run) {
    if (at.fixed != nullptr) return at.fixed;
    std::byte* base =
        at.place.space == Space::arena ? run.arena->host() : run.outputs[at.place.index];
    PLAIT_CHECK(base != nullptr);
    return base + at.place.offset;
}

void carry(const std::vector<Copy>& copies, const RunArguments& run) {
    for (const Copy& copy : copies)
        if (const uint64_t bytes = copy.row_bytes * rows_of(copy.extent, run.counts); bytes > 0)
            std::memcpy(resolve(copy.to, run), resolve(copy.from, run), bytes);
}

}  // namespace

JointExecutable::JointExecutable(std::vector<Part> parts, std::vector<std::shared_ptr<Buffer>> kept,
                                 std::shared_ptr<Integrity> integrity)
    : parts_(std::move(parts)), kept_(std::move(kept)), integrity_(std::move(integrity)) {
    for (const Part& part : parts_)
        scratch_bytes_ = std::max(scratch_bytes_, part.executable->scratch_bytes());
}

void JointExecutable::run(const RunArguments& run) {
    integrity_->check();
    // The context's memory has noted moves before they are made.
    if (run.counts.moves > 0)
        integrity_->change([&] { run_parts(run); });
    else
        run_parts(run);
}

void JointExecutable::run_parts(const RunArguments& run) {
    const auto& arena = dynamic_cast<Mirrored&>(*run.arena);
    const auto& inputs = dynamic_cast<Mirrored&>(*run.inputs);
    RunArguments mine = run;
    for (const Part& part : parts_) {
        carry(part.before, run);
        mine.arena = &arena.on(part.device);
        mine.inputs = &inputs.on(part.device);
        part.executable->run(mine);
        carry(part.after, run);
    }
}

}  // namespace plait::joint
