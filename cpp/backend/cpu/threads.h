// Threads that work through a list of steps together. Work is taken, not assigned: a thread that
// the system has set aside holds up at most the one chunk it had taken.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "backend/cpu/denormals.h"

namespace plait::cpu {

// A run of steps, each cut into tasks; the steps of a run follow each other.
class Job {
public:
    virtual ~Job() = default;
    // Runs tasks [begin, end) of a step. Must not throw.
    virtual void work(size_t step, int thread, int64_t begin, int64_t end) noexcept = 0;

    struct Cut {
        uint32_t tasks = 0;
        uint32_t grain = 1;  // tasks taken at once, at least
    };
    size_t steps() const { return cuts_.size(); }

protected:
    explicit Job(size_t n_steps) : cuts_(n_steps), slots_(n_steps) {}
    // Of the next run, which is prepared while threads may still be leaving the last one.
    void cut(size_t step, Cut cut) { cuts_[step] = cut; }

private:
    friend class Threads;

    struct alignas(64) Slot {
        // These hold the number of the run in the upper half, so that a thread left over from an
        // earlier run can take and count nothing.
        std::atomic<uint64_t> tasks{0};
        std::atomic<uint64_t> taken{0};  // next task to take
        std::atomic<uint64_t> done{0};   // tasks finished
        std::atomic<uint32_t> grain{1};
    };
    std::vector<Cut> cuts_;
    std::vector<Slot> slots_;
};

class Threads {
public:
    explicit Threads(int n);  // the caller of run() is one of them
    ~Threads();
    Threads(const Threads&) = delete;
    Threads& operator=(const Threads&) = delete;

    int size() const { return size_; }

    // Works through the job's steps, as they are cut, with NoDenormals on every thread.
    // `stop` is asked between steps on this thread; when it says true the run ends early, no task
    // is running any more, and run() returns false. Not reentrant.
    template <typename Stop>
    bool run(Job& job, Stop&& stop);

    // Waits until no thread can still look at `job`. Call before it dies.
    void forget(Job& job) noexcept;

private:
    void start();
    void stop_workers() noexcept;
    void worker(int index) noexcept;
    void publish(Job& job);
    // Works on one step until all its tasks are taken; false when the run is over for this thread.
    bool help(Job& job, size_t step, int thread, uint32_t run);
    static void wait_done(Job& job, size_t step, uint32_t run);
    static void abandon(Job& job, size_t step, uint32_t run);

    int size_;
    pid_t owner_ = 0;
    uint32_t run_ = 0;
    std::atomic<uint32_t> published_{0};
    std::atomic<Job*> job_{nullptr};
    std::atomic<int> sleepers_{0};
    std::atomic<bool> quit_{false};
    struct alignas(64) Inside {
        std::atomic<bool> flag{false};
    };
    std::unique_ptr<Inside[]> inside_;
    std::vector<std::thread> workers_;
};

template <typename Stop>
bool Threads::run(Job& job, Stop&& stop) {
    const NoDenormals no_denormals;
    publish(job);
    for (size_t step = 0; step < job.steps(); ++step) {
        if (stop()) {
            abandon(job, step, run_);
            return false;
        }
        help(job, step, 0, run_);
        wait_done(job, step, run_);
    }
    return true;
}

// Physical cores that this process may use: its affinity mask, hyper-threads counted once, and no
// more than its control group allows.
int default_threads();

}  // namespace plait::cpu
