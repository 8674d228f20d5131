#include "backend/cpu/threads.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <numeric>
#include <random>
#include <thread>

#include "platform/process.h"

namespace plait::cpu {
namespace {

// Counts how often each task of each step ran, and detects a step that starts before the previous
// one has ended.
class CountingJob final : public Job {
public:
    explicit CountingJob(const std::vector<uint32_t>& tasks) : Job(tasks.size()) {
        for (size_t i = 0; i < tasks.size(); ++i) {
            cut(i, {.tasks = tasks[i], .grain = 1 + static_cast<uint32_t>(i % 3)});
            counts_.emplace_back(tasks[i]);
        }
        finished_ = std::vector<std::atomic<uint32_t>>(tasks.size());
    }
    void work(size_t step, int, int64_t begin, int64_t end, Claim*) noexcept override {
        if (step > 0 && finished_[step - 1] != counts_[step - 1].size()) out_of_order_ = true;
        for (int64_t t = begin; t < end; ++t) ++counts_[step][static_cast<size_t>(t)];
        finished_[step] += static_cast<uint32_t>(end - begin);
    }
    bool each_ran_once() const {
        for (const auto& step : counts_)
            for (const auto& count : step)
                if (count != 1) return false;
        return true;
    }
    bool out_of_order() const { return out_of_order_; }
    void reset() {
        for (auto& step : counts_)
            for (auto& count : step) count = 0;
        for (auto& f : finished_) f = 0;
    }

private:
    std::vector<std::vector<std::atomic<int>>> counts_;
    std::vector<std::atomic<uint32_t>> finished_;
    std::atomic<bool> out_of_order_{false};
};

std::vector<uint32_t> random_tasks(std::mt19937& random) {
    std::vector<uint32_t> tasks(1 + random() % 40);
    for (uint32_t& n : tasks) n = static_cast<uint32_t>(random() % 5 == 0 ? 0 : random() % 100);
    return tasks;
}

bool never() { return false; }

// Detects threads on which a denormal number is not treated as zero.
class DenormalJob final : public Job {
public:
    DenormalJob() : Job(1) { cut(0, {.tasks = 1000, .grain = 1}); }
    static bool any() {
        volatile float tiny = 1e-30f, denormal = 1e-40f;
        return tiny * 1e-10f != 0.0f || denormal * 1e10f != 0.0f;
    }
    void work(size_t, int, int64_t, int64_t, Claim*) noexcept override {
        seen_ = seen_ || any();
        std::this_thread::yield();
    }
    bool seen() const { return seen_; }

private:
    std::atomic<bool> seen_{false};
};

TEST(Threads, TreatDenormalsAsZeroDuringRunsOnly) {
    for (const int n : {1, 3}) {
        Threads threads(n);
        DenormalJob job;
        ASSERT_TRUE(DenormalJob::any());
        for (int i = 0; i < 20; ++i) {
            threads.run(job, [] {
                EXPECT_TRUE(DenormalJob::any()) << "stop() may call functions of the caller";
                return false;
            });
        }
#if defined(__x86_64__) || defined(__aarch64__)
        EXPECT_FALSE(job.seen()) << n;
#endif
        EXPECT_TRUE(DenormalJob::any());
        threads.forget(job);
    }
}

TEST(Threads, EveryTaskRunsOnceAndStepsRunInOrder) {
    std::mt19937 random(1);
    for (const int n : {1, 2, 3, 8}) {
        Threads threads(n);
        for (int round = 0; round < 200; ++round) {
            CountingJob job(random_tasks(random));
            EXPECT_TRUE(threads.run(job, never));
            EXPECT_TRUE(job.each_ran_once());
            EXPECT_FALSE(job.out_of_order());
            threads.forget(job);
        }
    }
}

TEST(Threads, OneJobRunsAgainAndAgain) {
    Threads threads(3);
    CountingJob job({5, 0, 17, 1, 64});
    for (int round = 0; round < 2000; ++round) {
        job.reset();
        ASSERT_TRUE(threads.run(job, never));
        ASSERT_TRUE(job.each_ran_once());
    }
    threads.forget(job);
}

// A thread that was suspended in one run resumes while the next run is prepared.
TEST(Threads, ALateThreadTakesNothingOfTheNextRun) {
    class Changing final : public Job {
    public:
        explicit Changing(size_t steps) : Job(steps), ran_(steps) {}
        void prepare(uint32_t tasks) {
            for (size_t i = 0; i < steps(); ++i) cut(i, {.tasks = tasks});
            for (auto& ran : ran_) ran = 0;
            tasks_ = tasks;
        }
        void work(size_t step, int, int64_t begin, int64_t end, Claim*) noexcept override {
            ran_[step] += static_cast<uint32_t>(end - begin);
            std::this_thread::yield();
        }
        bool each_ran_once() const {
            return std::ranges::all_of(ran_, [&](const auto& ran) { return ran == tasks_; });
        }

    private:
        std::vector<std::atomic<uint32_t>> ran_;
        uint32_t tasks_ = 0;
    };
    Threads threads(8);
    Changing job(6);
    for (uint32_t round = 0; round < 4000; ++round) {
        job.prepare(1 + round % 5);
        ASSERT_TRUE(threads.run(job, never));
        ASSERT_TRUE(job.each_ran_once()) << round;
    }
    threads.forget(job);
}

// A job that suspends one of its threads, once.
class StallingJob final : public Job {
public:
    explicit StallingJob(bool redo) : Job(3) {
        for (size_t i = 0; i < steps(); ++i) cut(i, {.tasks = 40, .redo = redo});
    }
    void work(size_t step, int thread, int64_t begin, int64_t end, Claim* claim) noexcept override {
        if (thread == 0)
            while (!stalled_) std::this_thread::yield();
        if (thread == 1 && !stalled_.exchange(true)) {
            while (!released_) std::this_thread::yield();
            late_commit_ = claim != nullptr && claim->begin_commit();
            if (claim != nullptr) return;
        }
        if (claim != nullptr && !claim->begin_commit()) return;
        ran_[step] += end - begin;
        if (claim != nullptr) claim->end_commit();
    }
    void release() { released_ = true; }
    bool released() const { return released_; }
    bool late_commit() const { return late_commit_; }
    bool each_ran_once() const {
        return std::ranges::all_of(ran_, [](const auto& ran) { return ran == 40; });
    }
    void reset() {
        for (auto& ran : ran_) ran = 0;
    }

private:
    std::atomic<bool> stalled_{false}, released_{false}, late_commit_{false};
    std::array<std::atomic<int64_t>, 3> ran_{};
};

#if defined(__SANITIZE_THREAD__)
#define PLAIT_NEEDS_TAKE_OVER GTEST_SKIP() << "chunks are not taken over under this sanitizer"
#else
#define PLAIT_NEEDS_TAKE_OVER
#endif

TEST(Threads, AnotherThreadTakesOverTheChunkOfASuspendedThread) {
    PLAIT_NEEDS_TAKE_OVER;
    for (int round = 0; round < 20; ++round) {
        Threads threads(2);
        StallingJob job(true);
        ASSERT_TRUE(threads.run(job, never));
        EXPECT_TRUE(job.each_ran_once());
        EXPECT_EQ(threads.taken_over(), 1u);
        for (int i = 0; i < 50; ++i) {  // the suspended thread misses these runs as well
            job.reset();
            ASSERT_TRUE(threads.run(job, never));
            EXPECT_TRUE(job.each_ran_once());
        }
        job.release();
        threads.settle();
        EXPECT_FALSE(job.late_commit());
        EXPECT_TRUE(job.each_ran_once());
        job.reset();
        ASSERT_TRUE(threads.run(job, never));
        EXPECT_TRUE(job.each_ran_once());
        threads.forget(job);
    }
}

// Another job may use the same scratch.
TEST(Threads, AnotherJobWaitsForASuspendedThread) {
    PLAIT_NEEDS_TAKE_OVER;
    Threads threads(2);
    StallingJob job(true);
    ASSERT_TRUE(threads.run(job, never));
    std::jthread later([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        job.release();
    });
    CountingJob other({3, 100});
    ASSERT_TRUE(threads.run(other, never));
    EXPECT_TRUE(job.released());
    EXPECT_TRUE(other.each_ran_once());
    threads.forget(other);
    threads.forget(job);
}

TEST(Threads, AChunkThatMayNotBeRepeatedIsWaitedFor) {
    Threads threads(2);
    StallingJob job(false);
    std::jthread later([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        job.release();
    });
    ASSERT_TRUE(threads.run(job, never));
    EXPECT_TRUE(job.released());
    EXPECT_TRUE(job.each_ran_once());
    EXPECT_EQ(threads.taken_over(), 0u);
    threads.forget(job);
}

// The time of a task says little about the next one, as with experts of few and of many rows. A
// thread takes a long task for one that hangs, but two threads must not take it from each other
// again and again.
TEST(Threads, LongTasksAmongShortOnesAreRepeatedAFewTimes) {
    PLAIT_NEEDS_TAKE_OVER;
    class Uneven final : public Job {
    public:
        Uneven() : Job(8) {
            for (size_t i = 0; i < steps(); ++i) cut(i, {.tasks = 64, .redo = true});
        }
        void work(size_t step, int, int64_t begin, int64_t end, Claim* claim) noexcept override {
            using Clock = std::chrono::steady_clock;
            const bool is_long = step % 2 == 1 && end == 64;
            if (is_long) {
                ++long_ones_;
                const Clock::time_point until = Clock::now() + std::chrono::milliseconds(2);
                while (Clock::now() < until) {
                }
            }
            if (!claim->begin_commit()) return;
            ran_ += end - begin;
            claim->end_commit();
        }
        int64_t long_ones() const { return long_ones_; }
        int64_t ran() const { return ran_; }

    private:
        std::atomic<int64_t> long_ones_{0}, ran_{0};
    };
    Threads threads(2);
    Uneven job;
    constexpr int kRuns = 10;
    for (int run = 0; run < kRuns; ++run) ASSERT_TRUE(threads.run(job, never));
    EXPECT_EQ(job.ran(), kRuns * 8 * 64);
    EXPECT_LE(job.long_ones(), kRuns * 4 * 8);
    threads.forget(job);
}

// The first chunk of a step takes unexpectedly long, for example because its weights are not in
// memory. Threads must not take it from each other, again and again, before one has ended it.
TEST(Threads, AFirstChunkIsRepeatedAFewTimes) {
    PLAIT_NEEDS_TAKE_OVER;
    class Slow final : public Job {
    public:
        Slow() : Job(1) { cut(0, {.tasks = 1, .redo = true}); }
        void work(size_t, int, int64_t, int64_t, Claim* claim) noexcept override {
            if (++calls_ > 1000) return;  // fails, instead of never returning
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
            if (claim->begin_commit()) claim->end_commit();
        }
        int calls() const { return calls_; }

    private:
        std::atomic<int> calls_{0};
    };
    Threads threads(8);
    Slow job;
    ASSERT_TRUE(threads.run(job, never));
    EXPECT_LE(job.calls(), 20);
    threads.forget(job);
}

// With many more threads than cores, some are always suspended. Each commit belongs to one task.
TEST(Threads, EveryTaskIsCommittedOnceUnderOversubscription) {
    class Squares final : public Job {
    public:
        Squares() : Job(30) {
            for (size_t i = 0; i < steps(); ++i) cut(i, {.tasks = 50, .redo = true});
        }
        void work(size_t step, int, int64_t begin, int64_t end, Claim* claim) noexcept override {
            for (int64_t t = begin; t < end; ++t) {
                double x = 2 + static_cast<double>(base_ + t);
                const double square = x * x;
                for (int i = 0; i < 300; ++i) x = (x + square / x) / 2;
                if (claim != nullptr && !claim->begin_commit()) return;
                roots_[step * 50 + static_cast<size_t>(t)].store(x, std::memory_order_relaxed);
                if (claim != nullptr) claim->end_commit();
            }
        }
        void prepare(int64_t base) {
            base_ = base;
            for (auto& root : roots_) root = 0;
        }
        bool right() const {
            for (size_t i = 0; i < roots_.size(); ++i)
                if (std::abs(roots_[i] -
                             static_cast<double>(2 + base_ + static_cast<int64_t>(i % 50))) > 1e-9)
                    return false;
            return true;
        }

    private:
        std::atomic<int64_t> base_{0};
        std::array<std::atomic<double>, 1500> roots_{};
    };
    Threads threads(12);
    Squares job;
    for (int round = 0; round < 200; ++round) {
        job.prepare(round);
        ASSERT_TRUE(threads.run(job, never));
        ASSERT_TRUE(job.right()) << round;
    }
    threads.forget(job);
}

TEST(Threads, StoppingLeavesNoTaskRunningAndTheNextRunIsComplete) {
    std::mt19937 random(2);
    Threads threads(4);
    for (int round = 0; round < 300; ++round) {
        CountingJob job(random_tasks(random));
        const int after = static_cast<int>(random() % 20);
        int asked = 0;
        const bool finished = threads.run(job, [&] { return asked++ >= after; });
        EXPECT_EQ(finished, static_cast<size_t>(after) >= job.steps());
        job.reset();  // a race with a leftover task would show here
        EXPECT_TRUE(threads.run(job, never));
        EXPECT_TRUE(job.each_ran_once());
        threads.forget(job);
    }
}

TEST(Threads, AForkedChildStartsItsOwnThreads) {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "the thread sanitizer cannot start threads after a fork";
#endif
    Threads threads(3);
    CountingJob job({100, 100});
    ASSERT_TRUE(threads.run(job, never));
    const pid_t child = fork();
    if (child == 0) {
        job.reset();
        const bool right = threads.run(job, never) && job.each_ran_once();
        _exit(right ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    threads.forget(job);
}

// Code on worker threads cannot throw; everything that may throw runs on the caller's thread
// before.
TEST(Threads, WorkCannotThrow) {  // G25
    RecordProperty("goal", "G25");
    RecordProperty("figure", "work() is noexcept");
    static_assert(noexcept(std::declval<Job&>().work(0, 0, 0, 0, nullptr)));
}

TEST(Threads, TheDefaultIsWithinTheMachine) {
    EXPECT_GE(platform::usable_cores(), 1);
    EXPECT_LE(platform::usable_cores(), static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace
}  // namespace plait::cpu
