#include "backend/cpu/threads.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <system_error>

#include "platform/process.h"

namespace plait::cpu {
namespace {

constexpr uint64_t tagged(uint32_t run, uint64_t count) {
    return static_cast<uint64_t>(run) << 32 | count;
}
constexpr uint32_t run_of(uint64_t word) { return static_cast<uint32_t>(word >> 32); }
constexpr uint32_t count_of(uint64_t word) { return static_cast<uint32_t>(word); }

// Busy waiting that yields once the wait is long: with more threads than cores, the thread that is
// waited for may need this core.
class Spin {
public:
    void wait() noexcept {
        if (++turns_ < 4000)
            platform::pause();
        else
            std::this_thread::yield();
    }
    // True at intervals, once the wait is long.
    bool is_long() const noexcept { return turns_ >= 500 && turns_ % 64 == 0; }

private:
    int turns_ = 0;
};

#if defined(__SANITIZE_THREAD__)
// A thread that has lost its claim may read memory while others write it; its results are
// discarded. The sanitizer would report these reads.
constexpr bool kTakeOver = false;
#else
constexpr bool kTakeOver = true;
#endif

constexpr uint32_t kFewTasks = 8;

// A thread takes over a chunk after waiting this many times as long as the chunk should take, and
// each time that the same chunk is taken over again, kMorePatience times as long: tasks of one step
// may differ, and two threads must not take a chunk from each other for ever.
constexpr uint64_t kPatience = 2, kMorePatience = 8;

// A worker spins for at least this time before it sleeps. It is longer than a caller needs to
// sample a token, but too short to be a noticeable load.
constexpr std::chrono::microseconds kMinSpinTime{150};
// A worker that sleeps wakes up too late for a step of a small model, which then runs on one
// thread. If the last run came within this time, the worker waits twice as long for the next one.
constexpr std::chrono::microseconds kMaxExpectedPause{500};

// Returns how long a worker spins, given the last pause between two runs.
std::chrono::nanoseconds spin_time(std::chrono::nanoseconds pause) {
    if (pause > kMaxExpectedPause) return kMinSpinTime;
    return std::max<std::chrono::nanoseconds>(2 * pause, kMinSpinTime);
}

}  // namespace

Threads::Threads(int n) : size_(std::max(n, 1)), threads_(new Thread[static_cast<size_t>(size_)]) {}

Threads::~Threads() { stop_workers(); }

void Threads::start() {
    owner_ = platform::process_id();
    quit_.store(false, std::memory_order_relaxed);
    sleepers_.store(0, std::memory_order_relaxed);
    workers_.reserve(static_cast<size_t>(size_ - 1));
    try {
        for (int i = 1; i < size_; ++i) workers_.emplace_back([this, i] { worker(i); });
    } catch (const std::system_error&) {
        // No more threads can be started. Chunks are taken, so the existing threads do all of the
        // work.
    }
}

void Threads::stop_workers() noexcept {
    if (workers_.empty()) return;
    if (owner_ != platform::process_id()) {
        // After a fork the threads exist only in the parent. Their handles may equal those of
        // threads that this process has started since, so not even detaching is safe: the handles
        // are leaked.
        using Workers = std::vector<std::thread>;
        alignas(Workers) std::byte leaked[sizeof(Workers)];
        new (leaked) Workers(std::move(workers_));
        workers_.clear();
        return;
    }
    quit_.store(true, std::memory_order_seq_cst);
    published_.fetch_add(1, std::memory_order_seq_cst);
    published_.notify_all();
    for (std::thread& t : workers_) t.join();
    workers_.clear();
}

void Threads::publish(Job& job) {
    if (size_ > 1 && (workers_.empty() || owner_ != platform::process_id())) {
        stop_workers();
        for (int i = 0; i < size_; ++i) threads_[static_cast<size_t>(i)].inside.store(false);
        start();
    }
    // The job may share scratch with the last job, to which a late thread still writes.
    if (last_ != &job) settle();
    last_ = &job;
    ++run_;
    for (size_t i = 0; i < job.steps(); ++i) {
        Job::Slot& slot = job.slots_[i];
        slot.tasks.store(tagged(run_, job.cuts_[i].tasks), std::memory_order_relaxed);
        slot.grain.store(job.cuts_[i].grain, std::memory_order_relaxed);
        slot.redo.store(job.cuts_[i].redo && kTakeOver && size_ > 1, std::memory_order_relaxed);
        slot.done.store(tagged(run_, 0), std::memory_order_relaxed);
        slot.taken.store(tagged(run_, 0), std::memory_order_release);
    }
    job_.store(&job, std::memory_order_seq_cst);
    published_.store(run_, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) > 0) published_.notify_all();
}

bool Threads::help(Job& job, size_t step, int thread, uint32_t run) {
    Job::Slot& slot = job.slots_[step];
    uint64_t taken = slot.taken.load(std::memory_order_acquire);
    for (;;) {
        const uint64_t all = slot.tasks.load(std::memory_order_relaxed);
        if (run_of(taken) != run || run_of(all) != run) return false;
        const uint32_t tasks = count_of(all);
        const uint32_t begin = count_of(taken);
        if (begin >= tasks) return true;
        // Takes several tasks at once, since successive tasks read successive memory, and fewer
        // towards the end, so that all threads finish at the same time.
        const uint32_t share = (tasks - begin) / (2 * static_cast<uint32_t>(size()));
        const uint32_t grain = slot.grain.load(std::memory_order_relaxed);
        const uint32_t end = std::min(tasks, begin + std::max(std::min(share, kFewTasks), grain));
        if (!slot.taken.compare_exchange_weak(taken, tagged(run, end), std::memory_order_acq_rel,
                                              std::memory_order_acquire))
            continue;
        work(job, step, thread, run, begin, end, kPatience);
        taken = slot.taken.load(std::memory_order_acquire);
    }
}

void Threads::work(Job& job, size_t step, int thread, uint32_t run, uint32_t begin, uint32_t end,
                   uint64_t patience) {
    Job::Slot& slot = job.slots_[step];
    if (!slot.redo.load(std::memory_order_relaxed)) {
        job.work(step, thread, begin, end, nullptr);
        slot.done.fetch_add(end - begin, std::memory_order_release);
        return;
    }
    Thread& self = threads_[static_cast<size_t>(thread)];
    self.run.store(run, std::memory_order_relaxed);
    self.step.store(step, std::memory_order_relaxed);
    self.begin.store(begin, std::memory_order_relaxed);
    self.end.store(end, std::memory_order_relaxed);
    self.patience.store(patience, std::memory_order_relaxed);
    self.claim.open();
    const uint64_t start = platform::ticks();
    job.work(step, thread, begin, end, &self.claim);
    const uint64_t took = (platform::ticks() - start) / (end - begin);
    if (!self.claim.close()) return;
    const uint64_t before = slot.ticks.load(std::memory_order_relaxed);
    slot.ticks.store(std::max(took, before - before / 8), std::memory_order_relaxed);
    slot.done.fetch_add(end - begin, std::memory_order_release);
}

bool Threads::take_over(Job& job, size_t step, int thread, uint32_t run, uint64_t waited) {
    // Unknown until a chunk of the step has ended. The wait then grows from one tick.
    const uint64_t a_task =
        std::max<uint64_t>(1, job.slots_[step].ticks.load(std::memory_order_relaxed));
    for (int i = 0; i < size(); ++i) {
        Thread& other = threads_[static_cast<size_t>(i)];
        uint64_t seen = 0;
        if (i == thread || !other.claim.is_open(&seen)) continue;
        const uint32_t begin = other.begin.load(std::memory_order_relaxed);
        const uint32_t end = other.end.load(std::memory_order_relaxed);
        const uint64_t patience = other.patience.load(std::memory_order_relaxed);
        if (other.run.load(std::memory_order_relaxed) != run ||
            other.step.load(std::memory_order_relaxed) != step ||
            waited < patience * a_task * (end - begin) || !other.claim.take_over(seen))
            continue;
        taken_over_.fetch_add(1, std::memory_order_relaxed);
        work(job, step, thread, run, begin, end, patience * kMorePatience);
        return true;
    }
    return false;
}

void Threads::wait_done(Job& job, size_t step, int thread, uint32_t run) {
    Job::Slot& slot = job.slots_[step];
    const uint64_t all = slot.tasks.load(std::memory_order_relaxed);
    if (run_of(all) != run) return;
    const uint64_t start = platform::ticks();
    Spin spin;
    for (;;) {
        const uint64_t done = slot.done.load(std::memory_order_acquire);
        if (done == all || run_of(done) != run) return;
        if (spin.is_long() && take_over(job, step, thread, run, platform::ticks() - start))
            continue;
        spin.wait();
    }
}

void Threads::abandon(Job& job, size_t step, uint32_t run) {
    const platform::NoDenormals no_denormals;
    // Other threads may be ahead of this one. Takes all remaining tasks of every step, the last
    // step first, so that no thread finds more work; then waits for the threads that are still
    // working.
    for (size_t i = job.steps(); i-- > step;) {
        Job::Slot& slot = job.slots_[i];
        const uint64_t all = slot.tasks.load(std::memory_order_relaxed);
        const uint64_t before = slot.taken.exchange(all, std::memory_order_acq_rel);
        slot.done.fetch_add(count_of(all) - count_of(before), std::memory_order_release);
    }
    for (size_t i = step; i < job.steps(); ++i) wait_done(job, i, 0, run);
}

void Threads::worker(int index) noexcept {
    const platform::NoDenormals no_denormals;
    using Clock = std::chrono::steady_clock;
    uint32_t seen = 0;
    std::chrono::nanoseconds spin = kMinSpinTime;
    std::atomic<bool>& inside = threads_[static_cast<size_t>(index)].inside;
    for (;;) {
        uint32_t run = published_.load(std::memory_order_acquire);
        if (run == seen) {
            const Clock::time_point idle_since = Clock::now();
            do {
                for (int i = 0; i < 64 && run == seen; ++i) {
                    platform::pause();
                    run = published_.load(std::memory_order_acquire);
                }
            } while (run == seen && Clock::now() < idle_since + spin);
            const bool sleeps = run == seen;
            if (sleeps) {
                sleepers_.fetch_add(1, std::memory_order_seq_cst);
                published_.wait(seen, std::memory_order_seq_cst);
                sleepers_.fetch_sub(1, std::memory_order_seq_cst);
            }
            spin = spin_time(Clock::now() - idle_since);
            if (sleeps) continue;
        }
        seen = run;
        if (quit_.load(std::memory_order_seq_cst)) return;
        inside.store(true, std::memory_order_seq_cst);
        if (Job* job = job_.load(std::memory_order_seq_cst)) {
            const size_t n = job->steps();
            for (size_t step = 0; step < n; ++step) {
                if (!help(*job, step, index, run)) break;
                wait_done(*job, step, index, run);
            }
        }
        inside.store(false, std::memory_order_seq_cst);
    }
}

void Threads::forget(Job& job) noexcept {
    Job* expected = &job;
    job_.compare_exchange_strong(expected, nullptr, std::memory_order_seq_cst);
    if (last_ == &job) last_ = nullptr;
    settle();
}

void Threads::settle() noexcept {
    if (owner_ != platform::process_id())
        return;  // after a fork, the threads exist only in the parent
    Spin spin;
    for (int i = 1; i < size_; ++i)
        while (threads_[static_cast<size_t>(i)].inside.load(std::memory_order_seq_cst)) spin.wait();
}

}  // namespace plait::cpu
