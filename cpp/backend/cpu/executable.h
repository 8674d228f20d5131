// A flat list of bound kernel calls that all threads run together.
#pragma once

#include <array>
#include <atomic>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/ops/bind.h"
#include "backend/cpu/threads.h"

namespace plait::cpu {

class CpuExecutable final : public Executable, private Job {
public:
    // `scratch_offset`: of the scratch memory of all threads, into the arena.
    CpuExecutable(Threads& threads, std::vector<KernelCall> calls, uint64_t scratch_offset);
    ~CpuExecutable() override;

    uint64_t scratch_bytes() const override;
    void run(const RunArguments& run) override;

private:
    void work(size_t stage, int thread, int64_t begin, int64_t end, Claim* claim) noexcept override;

    Threads& threads_;
    std::vector<KernelCall> calls_;
    std::vector<size_t> first_call_;  // [stages + 1]
    uint64_t scratch_offset_;
    uint64_t scratch_stride_ = 0;
    // The current run. Atomic, since a late thread may read them while the next run is prepared.
    // [calls] number of tasks of the stage up to and including this call.
    std::vector<std::atomic<int64_t>> end_task_;
    static constexpr size_t kFrameWords = sizeof(Frame) / sizeof(uint64_t);
    std::array<std::atomic<uint64_t>, kFrameWords> frame_{};
    std::atomic<Trace*> trace_{nullptr};
};

}  // namespace plait::cpu
