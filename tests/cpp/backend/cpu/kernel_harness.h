// Runs a kernel on arguments made by hand, without graph, plan or threads.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "backend/cpu/isa.h"
#include "backend/cpu/kernels/common/table.h"
#include "support/odd_values.h"

namespace plait::cpu {

template <typename T>
Ref ref_to(const T* first) {
    return {reinterpret_cast<uintptr_t>(first), kFixed};
}
template <typename T>
Ref ref_to(const std::vector<T>& values) {
    return ref_to(values.data());
}

// Floats that are not aligned.
class Floats {
public:
    explicit Floats(size_t n, size_t offset = 1) : values_(n + offset), offset_(offset), n_(n) {}
    Floats(const std::vector<float>& values) : Floats(values.size()) {
        std::copy(values.begin(), values.end(), data());
    }
    float* data() { return values_.data() + offset_; }
    const float* data() const { return values_.data() + offset_; }
    size_t size() const { return n_; }
    float& operator[](size_t i) { return data()[i]; }
    float operator[](size_t i) const { return data()[i]; }
    float* begin() { return data(); }
    float* end() { return data() + n_; }

private:
    std::vector<float> values_;
    size_t offset_;
    size_t n_;
};
inline Ref ref_to(const Floats& values) { return ref_to(values.data()); }

// How a run is cut: all tasks at once, one by one backwards, or in random pieces.
enum class Cut { whole, single, random };

template <typename Args>
void run_kernel(const KernelOf<Args>& kernel, const Args& args, const Frame& counts,
                size_t scratch_bytes = 0, Cut cut = Cut::whole) {
    Frame frame = counts;
    for (unsigned char*& base : frame.base) base = nullptr;
    std::vector<unsigned char> memory(scratch_bytes + 128, 0xff);  // as floats: NaN
    const uintptr_t address = reinterpret_cast<uintptr_t>(memory.data());
    Worker worker{0, memory.data() + (64 - address % 64) % 64};
    const int64_t tasks = kernel.tasks(&args, frame);
    std::vector<std::pair<int64_t, int64_t>> pieces;
    std::mt19937 random(7);
    for (int64_t begin = 0; begin < tasks;) {
        int64_t n = tasks;
        if (cut == Cut::single) n = 1;
        if (cut == Cut::random) n = 1 + static_cast<int64_t>(random() % 4);
        const int64_t end = std::min(tasks, begin + n);
        pieces.emplace_back(begin, end);
        begin = end;
    }
    if (cut != Cut::whole) std::reverse(pieces.begin(), pieces.end());
    for (const auto& [begin, end] : pieces) {
        std::fill(memory.begin(), memory.end(), static_cast<unsigned char>(0xff));
        kernel.run(&args, frame, worker, begin, end);
    }
    // Nothing is written past the requested scratch.
    const size_t used = static_cast<size_t>(worker.scratch - memory.data()) + scratch_bytes;
    for (size_t i = used; i < memory.size(); ++i) ASSERT_EQ(memory[i], 0xff) << "scratch overrun";
}

inline Frame tokens(int64_t n) {
    Frame frame{};
    frame.n_tokens = static_cast<int32_t>(n);
    return frame;
}
inline Frame moves(int64_t n) {
    Frame frame{};
    frame.n_moves = static_cast<int32_t>(n);
    return frame;
}

template <typename A, typename B>
bool same_bits(const A& a, const B& b) {
    if (a.size() != b.size()) return false;
    return a.size() == 0 || std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0;
}

inline Floats random_floats(size_t n, std::mt19937& random, float spread = 1.0f) {
    std::normal_distribution<float> normal(0.0f, spread);
    Floats values(n);
    for (float& x : values) x = normal(random);
    return values;
}

// Compares with a tolerance; NaN and infinities must be equal.
inline ::testing::AssertionResult near(double actual, double expected, double tolerance) {
    const bool good = std::isnan(expected)   ? std::isnan(actual)
                      : std::isinf(expected) ? actual == expected
                                             : std::abs(actual - expected) <= tolerance;
    if (good) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure()
           << actual << " is not within " << tolerance << " of " << expected;
}

// Every test runs on every instruction set of this machine.
class KernelTest : public ::testing::TestWithParam<Isa> {
protected:
    const Kernels& kernels() const { return cpu::kernels(GetParam()); }
    std::mt19937 random{12345};
};

#define PLAIT_ON_EVERY_ISA(Suite)                                               \
    INSTANTIATE_TEST_SUITE_P(Isa, Suite, ::testing::ValuesIn(available_isas()), \
                             [](const ::testing::TestParamInfo<Isa>& isa) {     \
                                 return std::string(to_string(isa.param));      \
                             })

}  // namespace plait::cpu
