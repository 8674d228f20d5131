// Threads that work through a list of steps together. Work is taken, not assigned: a thread that
// the system has set aside holds up at most the one chunk it had taken, and where that may be done
// over again another thread does it.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "backend/cpu/denormals.h"
#include "backend/cpu/kernels/claim.h"

namespace plait::cpu {

// A run of steps, each cut into tasks; the steps of a run follow each other.
class Job {
public:
    virtual ~Job() = default;
    // Runs tasks [begin, end) of a step. Must not throw. With a claim, another thread may run them
    // as well, from then on that this one lost it; and this one may only come to see that when the
    // job's next runs are under way. It then changes nothing that others see.
    virtual void work(size_t step, int thread, int64_t begin, int64_t end,
                      Claim* claim) noexcept = 0;

    struct Cut {
        uint32_t tasks = 0;
        uint32_t grain = 1;  // tasks taken at once, at least
        bool redo = false;   // whether work() is to have a claim
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
        std::atomic<bool> redo{false};
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
    // Waits until no thread is left in a run that is over. Call before memory of any run goes.
    void settle() noexcept;
    // How many chunks were taken over so far.
    uint64_t taken_over() const { return taken_over_.load(std::memory_order_relaxed); }

private:
    void start();
    void stop_workers() noexcept;
    void worker(int index) noexcept;
    void publish(Job& job);
    // Works on one step until all its tasks are taken; false when the run is over for this thread.
    bool help(Job& job, size_t step, int thread, uint32_t run);
    // A chunk that is taken.
    void work(Job& job, size_t step, int thread, uint32_t run, uint32_t begin, uint32_t end);
    bool take_over(Job& job, size_t step, int thread, uint32_t run, uint64_t waited);
    void wait_done(Job& job, size_t step, int thread, uint32_t run);
    void abandon(Job& job, size_t step, uint32_t run);

    int size_;
    pid_t owner_ = 0;
    uint32_t run_ = 0;
    std::atomic<uint32_t> published_{0};
    std::atomic<Job*> job_{nullptr};
    std::atomic<int> sleepers_{0};
    std::atomic<bool> quit_{false};
    struct alignas(64) Thread {
        std::atomic<bool> inside{false};  // a run
        // The tasks that the claim is for.
        Claim claim;
        std::atomic<size_t> step{0};
        std::atomic<uint32_t> run{0}, begin{0}, end{0};
        uint64_t ticks = 0;  // that each of the last took; the thread's own
    };
    std::unique_ptr<Thread[]> threads_;
    const Job* last_ = nullptr;
    std::atomic<uint64_t> taken_over_{0};
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
        wait_done(job, step, 0, run_);
    }
    return true;
}

// Physical cores that this process may use: its affinity mask, hyper-threads counted once, and no
// more than its control group allows.
int default_threads();

}  // namespace plait::cpu
