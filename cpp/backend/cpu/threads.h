// Threads that execute a list of steps together. Threads take chunks of tasks instead of being
// assigned them, so a thread that the operating system suspends delays only the chunk that it has
// taken. If the step allows its tasks to be repeated, another thread takes that chunk over.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "backend/cpu/kernels/common/claim.h"
#include "platform/processor.h"

namespace plait::cpu {

// A list of steps, each cut into tasks. A run executes the steps in order.
class Job {
public:
    virtual ~Job() = default;
    // Runs tasks [begin, end) of a step. Must not throw. If `claim` is not null, another thread may
    // take the tasks over. This thread may notice that it has lost the claim as late as during a
    // later run of the job; from the loss on it must not write anything that other threads read.
    virtual void work(size_t step, int thread, int64_t begin, int64_t end,
                      Claim* claim) noexcept = 0;

    struct Cut {
        uint32_t tasks = 0;
        uint32_t grain = 1;  // min tasks taken at once
        bool redo = false;   // tasks may be repeated: work() gets a claim
    };
    size_t steps() const { return cuts_.size(); }

protected:
    explicit Job(size_t n_steps) : cuts_(n_steps), slots_(n_steps) {}
    // Sets a step's cut for the next run. Threads may still be leaving the last run.
    void cut(size_t step, Cut cut) { cuts_[step] = cut; }

private:
    friend class Threads;

    struct alignas(platform::kCacheLine) Slot {
        // The upper half of these numbers is the number of the run, so that a late thread of an
        // earlier run neither takes nor counts tasks.
        std::atomic<uint64_t> tasks{0};
        std::atomic<uint64_t> taken{0};  // the next task to take
        std::atomic<uint64_t> done{0};   // the number of finished tasks
        std::atomic<uint32_t> grain{1};
        std::atomic<bool> redo{false};
        // About the longest time that a task of this step took recently, also in earlier runs.
        std::atomic<uint64_t> ticks{0};
    };
    std::vector<Cut> cuts_;
    std::vector<Slot> slots_;
};

class Threads {
public:
    explicit Threads(int n);  // n includes the thread that calls run()
    ~Threads();
    Threads(const Threads&) = delete;
    Threads& operator=(const Threads&) = delete;

    int size() const { return size_; }

    // Executes the job's steps with platform::NoDenormals on every thread. Calls stop() on this thread before
    // each step; if it returns true, the run ends early and run() returns false once no task is
    // running. Not reentrant.
    template <typename Stop>
    bool run(Job& job, Stop&& stop);

    // Waits until no thread accesses `job` any more. Call it before the job is destroyed.
    void forget(Job& job) noexcept;
    // Waits until no thread is left in a finished run. Call it before memory of any run is freed.
    void settle() noexcept;
    // The number of chunks that were taken over so far.
    uint64_t taken_over() const { return taken_over_.load(std::memory_order_relaxed); }

private:
    void start();
    void stop_workers() noexcept;
    void worker(int index) noexcept;
    void publish(Job& job);
    // Takes chunks of a step until all of its tasks are taken. Returns false if the run is over.
    bool help(Job& job, size_t step, int thread, uint32_t run);
    // Executes a chunk that this thread has taken. Another thread takes it over once it has waited
    // `patience` times as long as the chunk should take.
    void work(Job& job, size_t step, int thread, uint32_t run, uint32_t begin, uint32_t end,
              uint64_t patience);
    bool take_over(Job& job, size_t step, int thread, uint32_t run, uint64_t waited);
    void wait_done(Job& job, size_t step, int thread, uint32_t run);
    void abandon(Job& job, size_t step, uint32_t run);

    int size_;
    int64_t owner_ = 0;  // process
    uint32_t run_ = 0;
    std::atomic<uint32_t> published_{0};
    std::atomic<Job*> job_{nullptr};
    std::atomic<int> sleepers_{0};
    std::atomic<bool> quit_{false};
    struct alignas(platform::kCacheLine) Thread {
        std::atomic<bool> inside{false};  // true while the thread is in a run
        Claim claim;
        // The tasks of the claim.
        std::atomic<size_t> step{0};
        std::atomic<uint32_t> run{0}, begin{0}, end{0};
        std::atomic<uint64_t> patience{0};
    };
    std::unique_ptr<Thread[]> threads_;
    const Job* last_ = nullptr;
    std::atomic<uint64_t> taken_over_{0};
    std::vector<std::thread> workers_;
};

template <typename Stop>
bool Threads::run(Job& job, Stop&& stop) {
    publish(job);
    for (size_t step = 0; step < job.steps(); ++step) {
        if (stop()) {
            abandon(job, step, run_);
            return false;
        }
        // Not before: stop() may run code of the caller.
        const platform::NoDenormals no_denormals;
        help(job, step, 0, run_);
        wait_done(job, step, 0, run_);
    }
    return true;
}

}  // namespace plait::cpu
