// Contexts: what they allow after close(), calls from several threads, and how options are
// resolved.
#include "runtime/context.h"

#include <gmock/gmock.h>

#include <thread>
#include <vector>

#include "batch/batch.h"
#include "support/tiny_model.h"

namespace plait {
namespace {

ContextOptions small() {
    ContextOptions options;
    options.n_ctx = 64;
    options.n_seq_max = 2;
    options.threads = 1;
    return options;
}

Batch tokens(int n) {
    Batch batch;
    const SequenceId sequence = 0;
    for (int i = 0; i < n; ++i) batch.add(3 + i, {}, std::span(&sequence, 1), true);
    return batch;
}

class Doubled final : public RowFunction {
public:
    void apply(std::span<float> rows, const Shape&) override {
        for (float& x : rows) x *= 2;
    }
};

auto refuses_closed() {
    return testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr("the context is closed"));
}

TEST(Context, KeepsWhatItsScopesStillAskForAfterClose) {
    Context context(test::TinyModel{}.open(), small());
    const std::vector<std::string> names = context.session()->value_names();
    const std::string name = names.at(0);
    context.session()->start_capture(std::span(&name, 1));
    const auto edit = std::make_shared<ValueEdit>();
    edit->function = std::make_unique<Doubled>();
    const uint64_t id = context.session()->start_edit(name, edit);
    const SequenceId held = context.session()->open_sequence();
    context.session()->decode(tokens(5).view());
    const std::vector<std::string> devices = context.devices();
    EXPECT_FALSE(devices.empty());

    context.close();
    context.close();
    EXPECT_TRUE(context.closed());
    EXPECT_THAT([&] { context.session()->decode(tokens(1).view()); }, refuses_closed());
    EXPECT_THAT([&] { context.session()->memory().n_used(); }, refuses_closed());
    EXPECT_THAT([&] { context.copy_state_to(context); }, refuses_closed());
    context.close_sequence(held);
    EXPECT_EQ(context.stats().tokens, 5u);
    EXPECT_EQ(context.devices(), devices);
    EXPECT_EQ(context.take_captured().size(), 1u);
    EXPECT_TRUE(context.stop_capture().calls.empty());
    EXPECT_EQ(context.stop_edit(id), edit);
    EXPECT_EQ(context.stop_edit(id), nullptr);
    EXPECT_TRUE(context.take_trace().empty());
    context.reset_stats();
    EXPECT_EQ(context.stats().tokens, 0u);
}

TEST(Context, CopiesInBothDirectionsAtOnceDoNotDeadlock) {
    const auto model = test::TinyModel{}.open();
    Context a(model, small()), b(model, small());
    a.session()->decode(tokens(5).view());
    b.session()->decode(tokens(9).view());
    const auto copy = [](Context& from, Context& to) {
        for (int i = 0; i < 200; ++i) from.copy_state_to(to);
    };
    std::thread there(copy, std::ref(a), std::ref(b));
    std::thread back(copy, std::ref(b), std::ref(a));
    there.join();
    back.join();
    const int64_t n = a.session()->memory().n_used();
    EXPECT_TRUE(n == 5 || n == 9) << n;
    EXPECT_EQ(b.session()->memory().n_used(), n);
}

// Decodes n tokens of a sequence one by one. Returns the logits of all.
std::vector<float> decode_steps(Context& context, SequenceId sequence, int n) {
    std::vector<float> all;
    for (int i = 0; i < n; ++i) {
        Batch batch;
        batch.add(3 + (i * 7 + sequence) % 60, {}, std::span(&sequence, 1), true);
        const Outputs outputs = context.session()->decode(batch.view());
        const std::span<const float> logits = outputs.logits();
        all.insert(all.end(), logits.begin(), logits.end());
    }
    return all;
}

TEST(Context, TwoContextsOfOneModelDecodeAtOnce) {  // G15
    const auto model = test::TinyModel{}.open();
    ContextOptions options = small();
    options.threads = 2;
    constexpr int kSteps = 60;
    Context alone(model, options);
    const std::vector<float> wanted[] = {decode_steps(alone, 0, kSteps),
                                         decode_steps(alone, 1, kSteps)};
    Context a(model, options), b(model, options);
    std::vector<float> got[2];
    std::thread first([&] { got[0] = decode_steps(a, 0, kSteps); });
    std::thread second([&] { got[1] = decode_steps(b, 1, kSteps); });
    first.join();
    second.join();
    EXPECT_EQ(got[0], wanted[0]);
    EXPECT_EQ(got[1], wanted[1]);
    RecordProperty("goal", "G15");
    RecordProperty("figure", "120 decodes by two threads on two contexts, as serial ones");
}

TEST(Context, TwoThreadsOnOneContextGetTheResultsOfASerialOrder) {  // G16
    const auto model = test::TinyModel{}.open();
    ContextOptions options = small();
    options.threads = 2;
    constexpr int kSteps = 60;
    Context alone(model, options), shared(model, options);
    const std::vector<float> wanted[] = {decode_steps(alone, 0, kSteps),
                                         decode_steps(alone, 1, kSteps)};
    std::vector<float> got[2];
    std::thread first([&] { got[0] = decode_steps(shared, 0, kSteps); });
    std::thread second([&] { got[1] = decode_steps(shared, 1, kSteps); });
    first.join();
    second.join();
    EXPECT_EQ(got[0], wanted[0]);
    EXPECT_EQ(got[1], wanted[1]);
    RecordProperty("goal", "G16");
    RecordProperty("figure", "120 decodes by two threads on one context, as serial ones");
}

TEST(Context, CallsFromSeveralThreadsRunOneAfterTheOther) {
    Context context(test::TinyModel{}.open(), small());
    const auto decode = [&](SequenceId sequence) {
        for (int i = 0; i < 20; ++i) {
            Batch batch;
            batch.add(3, {}, std::span(&sequence, 1), true);
            context.session()->decode(batch.view());
        }
    };
    std::thread first(decode, 0), second(decode, 1);
    first.join();
    second.join();
    EXPECT_EQ(context.session()->memory().n_used(), 40);
    EXPECT_EQ(context.stats().tokens, 40u);
}

TEST(ContextSettings, ResolveDefaultsAndCallsOfADecoder) {
    const auto model = test::TinyModel{}.open();
    ContextOptions options = small();
    options.n_batch = 16;
    ContextSettings settings = resolve(options, model->model());
    EXPECT_EQ(settings.n_ubatch(), 16);
    EXPECT_TRUE(settings.flash_attention);
    EXPECT_EQ(settings.calls.encode_memory, EncodeMemory::own);
    EXPECT_EQ(settings.calls.decode.name, "decode");
    EXPECT_EQ(settings.calls.encode.name, "encode");
    EXPECT_TRUE(settings.calls.decode.causal);
    EXPECT_TRUE(settings.calls.decode.outputs.logits);
    EXPECT_FALSE(settings.calls.decode.outputs.hidden);
    options.pooling = Pooling::mean;
    options.causal = false;
    settings = resolve(options, model->model());
    EXPECT_TRUE(settings.calls.encode.outputs.hidden);
    EXPECT_EQ(settings.calls.encode.outputs.pooling, Pooling::mean);
    EXPECT_FALSE(settings.calls.decode.causal);
    options.pooling = Pooling::rank;
    EXPECT_THAT(
        [&] { resolve(options, model->model()); },
        testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr("needs a classification head")));
}

}  // namespace
}  // namespace plait
