#include "backend/cpu/executable.h"

#include <algorithm>
#include <bit>

#include "base/checked.h"
#include "base/error.h"

namespace plait::cpu {
namespace {

constexpr int64_t kChunksPerThread = 8;
constexpr uint64_t kScratchAlignment = 128;

size_t count_stages(const std::vector<KernelCall>& calls) {
    size_t n = 0;
    for (size_t i = 0; i < calls.size(); ++i) n += i == 0 || calls[i].stage != calls[i - 1].stage;
    return n;
}

}  // namespace

CpuExecutable::CpuExecutable(Threads& threads, std::vector<KernelCall> calls,
                             uint64_t scratch_offset)
    : Job(count_stages(calls)),
      threads_(threads),
      calls_(std::move(calls)),
      scratch_offset_(scratch_offset),
      end_task_(calls_.size()) {
    for (size_t i = 0; i < calls_.size(); ++i)
        if (i == 0 || calls_[i].stage != calls_[i - 1].stage) first_call_.push_back(i);
    first_call_.push_back(calls_.size());
    for (const KernelCall& call : calls_)
        scratch_stride_ = std::max(scratch_stride_, call.scratch_bytes);
    scratch_stride_ = align_up(scratch_stride_, kScratchAlignment);
}

CpuExecutable::~CpuExecutable() { threads_.forget(*this); }

uint64_t CpuExecutable::scratch_bytes() const {
    return scratch_stride_ * static_cast<uint64_t>(threads_.size());
}

void CpuExecutable::run(const RunArguments& run) {
    if (calls_.empty()) return;
    Frame frame{};
    frame.base[kArena] = reinterpret_cast<unsigned char*>(run.arena->host());
    frame.base[kInputs] = reinterpret_cast<unsigned char*>(run.inputs->host());
    frame.base[kOutput0] = reinterpret_cast<unsigned char*>(run.outputs[0]);
    frame.base[kOutput1] = reinterpret_cast<unsigned char*>(run.outputs[1]);
    frame.n_tokens = run.counts.tokens;
    frame.n_outputs = run.counts.outputs;
    frame.n_sequences = run.counts.sequences;
    frame.n_moves = run.counts.moves;

    const auto words = std::bit_cast<std::array<uint64_t, kFrameWords>>(frame);
    for (size_t i = 0; i < words.size(); ++i) frame_[i].store(words[i], std::memory_order_release);
    trace_.store(run.trace, std::memory_order_release);
    for (size_t i = 0; i < steps(); ++i) {
        int64_t tasks = 0;
        bool redo = true;
        for (size_t s = first_call_[i]; s < first_call_[i + 1]; ++s) {
            tasks += calls_[s].kernel.tasks(calls_[s].args, frame);
            end_task_[s].store(tasks, std::memory_order_release);
            redo = redo && calls_[s].redo != nullptr && calls_[s].redo(calls_[s].args, frame);
        }
        PLAIT_CHECK(tasks >= 0 && tasks < UINT32_MAX);
        const int64_t grain = std::max<int64_t>(1, tasks / (kChunksPerThread * threads_.size()));
        cut(i, {static_cast<uint32_t>(tasks), static_cast<uint32_t>(grain), redo});
    }
    const bool finished =
        threads_.run(*this, [&] { return run.stop != nullptr && run.stop->requested(); });
    if (!finished) throw Interrupted();
}

void CpuExecutable::work(size_t stage, int thread, int64_t begin, int64_t end,
                         Claim* claim) noexcept {
    std::array<uint64_t, kFrameWords> words;
    for (size_t i = 0; i < words.size(); ++i) words[i] = frame_[i].load(std::memory_order_acquire);
    const auto frame = std::bit_cast<Frame>(words);
    Trace* const trace = trace_.load(std::memory_order_acquire);
    const Worker worker{
        thread,
        frame.base[kArena] + scratch_offset_ + scratch_stride_ * static_cast<uint64_t>(thread),
        claim};
    int64_t first = 0;  // the call's first task, counted over the stage
    for (size_t s = first_call_[stage], next; first < end; s = next) {
        next = s + 1;
        const int64_t last = end_task_[s].load(std::memory_order_acquire);
        if (claim != nullptr && !claim->holds()) return;
        const int64_t from = std::max(begin, first) - first;
        const int64_t to = std::min(end, last) - first;
        first = last;
        if (from >= to) continue;
        const int64_t begin_ns = trace != nullptr ? Trace::now() : 0;
        calls_[s].kernel.run(calls_[s].args, frame, worker, from, to);
        if (trace == nullptr) continue;
        if (claim != nullptr && !claim->begin_commit()) return;
        trace->add(calls_[s].node, thread, begin_ns);
        if (claim != nullptr) claim->end_commit();
    }
}

}  // namespace plait::cpu
