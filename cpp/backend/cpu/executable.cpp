#include "backend/cpu/executable.h"

#include <algorithm>

#include "base/checked.h"
#include "base/error.h"

namespace plait::cpu {
namespace {

constexpr int64_t kChunksPerThread = 8;
constexpr uint64_t kScratchAlignment = 128;

}  // namespace

CpuExecutable::CpuExecutable(Threads& threads, std::vector<Step> steps, uint64_t scratch_offset)
    : Job(steps.size()), threads_(threads), steps_(std::move(steps)), scratch_offset_(scratch_offset) {
    for (const Step& step : steps_) scratch_stride_ = std::max(scratch_stride_, step.scratch_bytes);
    scratch_stride_ = align_up(scratch_stride_, kScratchAlignment);
}

CpuExecutable::~CpuExecutable() { threads_.forget(*this); }

uint64_t CpuExecutable::scratch_bytes() const {
    return scratch_stride_ * static_cast<uint64_t>(threads_.size());
}

void CpuExecutable::run(const RunArguments& run) {
    frame_.base[kFixed] = nullptr;
    frame_.base[kArena] = reinterpret_cast<unsigned char*>(run.arena->host());
    frame_.base[kInputs] = reinterpret_cast<unsigned char*>(run.inputs->host());
    frame_.base[kOutput0] = reinterpret_cast<unsigned char*>(run.outputs[0]);
    frame_.base[kOutput1] = reinterpret_cast<unsigned char*>(run.outputs[1]);
    frame_.n_tokens = run.counts.tokens;
    frame_.n_outputs = run.counts.outputs;
    frame_.n_sequences = run.counts.sequences;
    frame_.n_moves = run.counts.moves;

    for (size_t i = 0; i < steps_.size(); ++i) {
        const int64_t tasks = steps_[i].kernel.tasks(steps_[i].args, frame_);
        PLAIT_CHECK(tasks >= 0 && tasks < UINT32_MAX);
        const int64_t grain = std::max<int64_t>(1, tasks / (kChunksPerThread * threads_.size()));
        slots()[i].tasks.store(static_cast<uint32_t>(tasks), std::memory_order_relaxed);
        slots()[i].grain.store(static_cast<uint32_t>(grain), std::memory_order_relaxed);
    }
    const bool finished =
        threads_.run(*this, [&] { return run.stop != nullptr && run.stop->requested(); });
    if (!finished) throw Interrupted();
}

void CpuExecutable::work(size_t step, int thread, int64_t begin, int64_t end) noexcept {
    const Worker worker{thread, frame_.base[kArena] + scratch_offset_ +
                                    scratch_stride_ * static_cast<uint64_t>(thread)};
    steps_[step].kernel.run(steps_[step].args, frame_, worker, begin, end);
}

}  // namespace plait::cpu
