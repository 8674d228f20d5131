// Recurrent kernels on one thread, for sequences of several tokens each, with states that are read
// and written in different rows. elements/s counts updates of state elements, bytes/s the bytes of
// states that single tokens read and write.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "backend/cpu/isa.h"
#include "backend/cpu/kernels/common/table.h"
#include "backend/cpu/kernels/recurrence/states.h"
#include "backend/cpu/memory.h"

namespace plait::cpu {

template <typename T>
Ref ref_to(const std::vector<T>& values) {
    return {reinterpret_cast<uintptr_t>(values.data()), kFixed};
}

class Recurrent {
public:
    Recurrent(const benchmark::State& state, int64_t elements) : elements_(elements) {
        sequences_ = static_cast<int32_t>(state.range(0));
        tokens_ = static_cast<int32_t>(state.range(1));
        storage_ = room((2 * sequences_ + 1) * elements, 0.0f);
        for (int32_t s = 0; s < sequences_; ++s) {
            read_.push_back(1 + s);
            write_.push_back(1 + sequences_ + s);
        }
        for (int32_t s = 0; s <= sequences_; ++s) begin_.push_back(s * tokens_);
    }

    int64_t n_tokens() const { return int64_t{sequences_} * tokens_; }
    // A value for all tokens, [n, width]; valid as long as this object.
    Ref input(int64_t width, float value) { return room(n_tokens() * width, value); }
    StateArgs states() const {
        return {storage_, ref_to(read_), ref_to(write_), ref_to(begin_), elements_};
    }

    template <typename Args>
    void run(benchmark::State& state, const KernelOf<Args>& kernel, const Args& args,
             size_t scratch_floats = 0) {
        Frame frame{};
        frame.n_tokens = static_cast<int32_t>(n_tokens());
        frame.n_sequences = sequences_;
        const Ref scratch = room(static_cast<int64_t>(scratch_floats) + 1, 0.0f);
        const Worker worker{0, frame.at<unsigned char>(scratch)};
        for (auto _ : state) kernel.run(&args, frame, worker, 0, kernel.tasks(&args, frame));
        const double rounds = static_cast<double>(state.iterations());
        const double elements = static_cast<double>(elements_);
        state.counters["elements/s"] =
            benchmark::Counter(rounds * elements * static_cast<double>(n_tokens()), kRate);
        state.counters["bytes/s"] = benchmark::Counter(8 * rounds * elements * sequences_, kRate);
        state.counters["us/token"] =
            benchmark::Counter(rounds * static_cast<double>(n_tokens()) / 1e6,
                               benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
    }

private:
    static constexpr auto kRate = benchmark::Counter::kIsRate;

    // Memory with the alignment of a context's memory.
    Ref room(int64_t n, float value) {
        memory_.push_back(allocate_host(static_cast<uint64_t>(n) * sizeof(float)));
        auto* first = reinterpret_cast<float*>(memory_.back()->host());
        std::fill_n(first, n, value);
        return {reinterpret_cast<uintptr_t>(first), kFixed};
    }

    int64_t elements_;
    int32_t sequences_, tokens_;
    std::vector<std::unique_ptr<Buffer>> memory_;
    Ref storage_;
    std::vector<int32_t> read_, write_, begin_;
};

// A prompt, one token, and one token each of many sequences.
inline bool on_every_isa(const std::string& name, void (*run)(benchmark::State&, Isa)) {
    for (const Isa isa : available_isas())
        benchmark::RegisterBenchmark((name + "/" + std::string(to_string(isa))).c_str(), run, isa)
            ->Args({1, 512})
            ->Args({1, 1})
            ->Args({32, 1});
    return true;
}

}  // namespace plait::cpu
