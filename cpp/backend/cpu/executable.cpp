#include "backend/cpu/executable.h"

#include <algorithm>

#include "base/checked.h"
#include "base/error.h"

namespace plait::cpu {
namespace {

constexpr int64_t kChunksPerThread = 8;
constexpr uint64_t kScratchAlignment = 128;

size_t count_stages(const std::vector<Step>& steps) {
    size_t n = 0;
    for (size_t i = 0; i < steps.size(); ++i) n += i == 0 || steps[i].stage != steps[i - 1].stage;
    return n;
}

}  // namespace

CpuExecutable::CpuExecutable(Threads& threads, std::vector<Step> steps, uint64_t scratch_offset)
    : Job(count_stages(steps)),
      threads_(threads),
      steps_(std::move(steps)),
      end_task_(steps_.size()),
      scratch_offset_(scratch_offset) {
    for (size_t i = 0; i < steps_.size(); ++i)
        if (i == 0 || steps_[i].stage != steps_[i - 1].stage) first_step_.push_back(i);
    first_step_.push_back(steps_.size());
    for (const Step& step : steps_) scratch_stride_ = std::max(scratch_stride_, step.scratch_bytes);
    scratch_stride_ = align_up(scratch_stride_, kScratchAlignment);
}

CpuExecutable::~CpuExecutable() { threads_.forget(*this); }

uint64_t CpuExecutable::scratch_bytes() const {
    return scratch_stride_ * static_cast<uint64_t>(threads_.size());
}

void CpuExecutable::run(const RunArguments& run) {
    if (steps_.empty()) return;
    frame_.base[kFixed] = nullptr;
    frame_.base[kArena] = reinterpret_cast<unsigned char*>(run.arena->host());
    frame_.base[kInputs] = reinterpret_cast<unsigned char*>(run.inputs->host());
    frame_.base[kOutput0] = reinterpret_cast<unsigned char*>(run.outputs[0]);
    frame_.base[kOutput1] = reinterpret_cast<unsigned char*>(run.outputs[1]);
    frame_.n_tokens = run.counts.tokens;
    frame_.n_outputs = run.counts.outputs;
    frame_.n_sequences = run.counts.sequences;
    frame_.n_moves = run.counts.moves;
    trace_ = run.trace;

    for (size_t i = 0; i < steps(); ++i) {
        int64_t tasks = 0;
        for (size_t s = first_step_[i]; s < first_step_[i + 1]; ++s) {
            tasks += steps_[s].kernel.tasks(steps_[s].args, frame_);
            end_task_[s] = tasks;
        }
        PLAIT_CHECK(tasks >= 0 && tasks < UINT32_MAX);
        const int64_t grain = std::max<int64_t>(1, tasks / (kChunksPerThread * threads_.size()));
        cut(i, {.tasks = static_cast<uint32_t>(tasks), .grain = static_cast<uint32_t>(grain)});
    }
    const bool finished =
        threads_.run(*this, [&] { return run.stop != nullptr && run.stop->requested(); });
    if (!finished) throw Interrupted();
}

void CpuExecutable::work(size_t stage, int thread, int64_t begin, int64_t end) noexcept {
    const Worker worker{thread, frame_.base[kArena] + scratch_offset_ +
                                    scratch_stride_ * static_cast<uint64_t>(thread)};
    int64_t first = 0;  // task of the stage that is the step's first
    for (size_t s = first_step_[stage]; first < end; first = end_task_[s++]) {
        const int64_t from = std::max(begin, first);
        const int64_t to = std::min(end, end_task_[s]);
        if (from >= to) continue;
        const int64_t begin_ns = trace_ != nullptr ? Trace::now() : 0;
        steps_[s].kernel.run(steps_[s].args, frame_, worker, from - first, to - first);
        if (trace_ != nullptr) trace_->add(steps_[s].node, thread, begin_ns);
    }
}

}  // namespace plait::cpu
