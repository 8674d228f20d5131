#include "backend/cpu/threads.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <random>
#include <thread>

namespace plait::cpu {
namespace {

// Counts how often each task of each step ran, and whether a step began before the one before ended.
class CountingJob final : public Job {
public:
    explicit CountingJob(const std::vector<uint32_t>& tasks) : Job(tasks.size()) {
        for (size_t i = 0; i < tasks.size(); ++i) {
            cut(i, {.tasks = tasks[i], .grain = 1 + static_cast<uint32_t>(i % 3)});
            counts_.emplace_back(tasks[i]);
        }
        finished_ = std::vector<std::atomic<uint32_t>>(tasks.size());
    }
    void work(size_t step, int, int64_t begin, int64_t end) noexcept override {
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

// Whether any thread met a number that is not zero though it is below the smallest normal one.
class DenormalJob final : public Job {
public:
    DenormalJob() : Job(1) { cut(0, {.tasks = 1000, .grain = 1}); }
    static bool any() {
        volatile float tiny = 1e-30f, denormal = 1e-40f;
        return tiny * 1e-10f != 0.0f || denormal * 1e10f != 0.0f;
    }
    void work(size_t, int, int64_t, int64_t) noexcept override {
        seen_ = seen_ || any();
        std::this_thread::yield();
    }
    bool seen() const { return seen_; }

private:
    std::atomic<bool> seen_{false};
};

TEST(Threads, TakeDenormalsForZeroWhileTheyWorkAndNotAfterwards) {
    for (const int n : {1, 3}) {
        Threads threads(n);
        DenormalJob job;
        ASSERT_TRUE(DenormalJob::any());
        for (int i = 0; i < 20; ++i) threads.run(job, never);
#if defined(__x86_64__)
        EXPECT_FALSE(job.seen()) << n;
#endif
        EXPECT_TRUE(DenormalJob::any());
        threads.forget(job);
    }
}

TEST(Threads, EveryTaskRunsOnceAndStepsFollowEachOther) {
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

// A thread that was set aside in one run comes back while the next one is prepared.
TEST(Threads, ALateThreadTakesNothingOfTheNextRun) {
    class Changing final : public Job {
    public:
        explicit Changing(size_t steps) : Job(steps), ran_(steps) {}
        void prepare(uint32_t tasks) {
            for (size_t i = 0; i < steps(); ++i) cut(i, {.tasks = tasks});
            for (auto& ran : ran_) ran = 0;
            tasks_ = tasks;
        }
        void work(size_t step, int, int64_t begin, int64_t end) noexcept override {
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

TEST(Threads, StoppingLeavesNoTaskRunningAndTheNextRunIsWhole) {
    std::mt19937 random(2);
    Threads threads(4);
    for (int round = 0; round < 300; ++round) {
        CountingJob job(random_tasks(random));
        const int after = static_cast<int>(random() % 20);
        int asked = 0;
        const bool finished = threads.run(job, [&] { return asked++ >= after; });
        EXPECT_EQ(finished, static_cast<size_t>(after) >= job.steps());
        job.reset();  // races with a leftover task would be seen here
        EXPECT_TRUE(threads.run(job, never));
        EXPECT_TRUE(job.each_ran_once());
        threads.forget(job);
    }
}

TEST(Threads, AForkedChildGetsThreadsOfItsOwn) {
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

// What a thread of ours runs cannot throw; what might is done before, by the caller.
TEST(Threads, WorkCannotThrow) {  // G25
    RecordProperty("goal", "G25");
    RecordProperty("figure", "work() is noexcept");
    static_assert(noexcept(std::declval<Job&>().work(0, 0, 0, 0)));
}

TEST(Threads, TheDefaultIsWithinTheMachine) {
    EXPECT_GE(default_threads(), 1);
    EXPECT_LE(default_threads(), static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace
}  // namespace plait::cpu
