// A decode with a cached plan allocates nothing, with every kind of memory. S0-07, S0-16, S1-33,
// S1-40, S3-13
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "batch/batch.h"
#include "memory/allocations.h"
#include "runtime/context.h"
#include "support/tiny_model.h"

namespace plait {
namespace {

struct Kind {
    const char* name;
    const char* model;  // directory in conformance/ of the reference data; null: the tiny llama
    const char* kv = "auto";
};

std::shared_ptr<const LoadedModel> open(const Kind& kind) {
    if (kind.model == nullptr) return test::TinyModel{}.open();
    const char* data = std::getenv("PLAIT_TEST_DATA");
    const auto path =
        std::filesystem::path(data ? data : "") / "conformance" / kind.model / "model.gguf";
    return std::filesystem::exists(path) ? LoadedModel::open(path.string(), {}) : nullptr;
}

class PlanCacheHit : public ::testing::TestWithParam<Kind> {};

TEST_P(PlanCacheHit, AllocatesNothing) {  // G17 A6
    RecordProperty("goal", "G17");
    RecordProperty("figure", "0 allocations a step");
    const auto model = open(GetParam());
    if (!model) GTEST_SKIP() << "no reference data: set PLAIT_TEST_DATA to its directory";
    ContextOptions options;
    options.n_ctx = 512;
    options.n_seq_max = 3;
    options.kv = GetParam().kv;
    Context context(model, options);
    const auto feed = [&](Batch& batch, bool encode) {
        return encode ? context.session()->encode(batch.view())
                      : context.session()->decode(batch.view());
    };
    const auto some = [](SequenceId s, int n) {
        Batch batch;
        for (int i = 0; i < n; ++i) batch.add(3 + i, {}, std::span(&s, 1), i + 1 == n);
        return batch;
    };
    const bool encoder = model->info().has_encoder;
    if (encoder)
        for (const SequenceId s : {0, 1, 2}) {
            Batch batch = some(s, 5);
            feed(batch, true);
        }
    // A prompt for each, then steps of all three together.
    Batch step;
    for (const SequenceId s : {2, 0, 1}) {
        Batch prompt = some(s, 7 + s);
        feed(prompt, false);
        step.add(5, {}, std::span(&s, 1), true);
    }
    for (int i = 0; i < 4; ++i) feed(step, false);
    const uint64_t built = context.stats().plans_built;
    for (int i = 0; i < 40; ++i) {
        const uint64_t before = n_allocations();
        { const Outputs outputs = feed(step, false); }
        EXPECT_EQ(n_allocations() - before, 0u) << "step " << i;
    }
    EXPECT_EQ(context.stats().plans_built, built);
    // The same for microbatches of several tokens.
    Batch more = some(1, 6);
    for (int i = 0; i < 3; ++i) feed(more, false);
    for (int i = 0; i < 10; ++i) {
        const uint64_t before = n_allocations();
        { const Outputs outputs = feed(more, false); }
        EXPECT_EQ(n_allocations() - before, 0u) << "microbatch " << i;
    }
}

constexpr Kind kKinds[] = {
    {"unified", nullptr},    {"streams", nullptr, "streams"},
    {"sliding", "gemma3"},   {"recurrent", "mamba"},
    {"hybrid", "jamba"},     {"cross", "t5"},
    {"latent", "deepseek2"}, {"experts", "mixtral"},
    {"axes", "qwen2vl"},     {"both", "falcon-h1"},
    {"delta", "qwen3next"},  {"none", "bert"},
};

INSTANTIATE_TEST_SUITE_P(Kinds, PlanCacheHit, ::testing::ValuesIn(kKinds),
                         [](const auto& of) { return std::string(of.param.name); });

}  // namespace
}  // namespace plait
