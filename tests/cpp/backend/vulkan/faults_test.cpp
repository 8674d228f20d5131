// What is left of contexts when a Vulkan device refuses a call, any call: BackendError, and either
// nothing has changed or the context says that it is of no use any more.
#ifdef PLAIT_HAS_VULKAN

#include "backend/vulkan/faults.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <random>

#include "backend/vulkan/devices.h"
#include "base/error.h"
#include "runtime/context.h"
#include "support/bytes_of.h"
#include "support/tiny_model.h"

namespace plait {
namespace {

using test::Bytes;
using test::bytes_of;
using testing::AnyOf;
using testing::HasSubstr;
using testing::StartsWith;

std::vector<float> feed(Context& context, SequenceId sequence, size_t n, uint32_t seed) {
    std::mt19937 random(seed);
    Batch batch;
    for (size_t i = 0; i < n; ++i)
        batch.add(static_cast<TokenId>(random() % 80), {}, std::span(&sequence, 1), i + 1 == n);
    const Outputs outputs = context.session()->decode(batch.view());
    return {outputs.logits().begin(), outputs.logits().end()};
}

ContextOptions on(const std::string& backend) {
    ContextOptions options;
    options.backend = backend;
    options.n_ctx = 64;
    options.n_seq_max = 4;
    options.n_ubatch = 8;
    options.threads = 1;
    return options;
}

void nothing(Context&) {}

class VulkanFaults : public testing::Test {
protected:
    using Use = std::function<void(Context&)>;

    void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
        GTEST_SKIP() << "drivers keep memory and threads of their own, which sanitizers report";
#endif
        setenv("PLAIT_VULKAN_CACHE", "off", /*overwrite=*/0);
        if (vulkan::devices().empty()) GTEST_SKIP() << "no Vulkan device";
        Context context(model_, options_);
        feed(context, 0, 20, 1);
        feed(context, 1, 9, 2);
        context.session()->seq_cp(0, 2, shared_);
        saved_ = bytes_of(context);
        next_ = feed(context, 1, 3, 7);
    }
    std::unique_ptr<Context> restored() const {
        auto context = std::make_unique<Context>(model_, options_);
        context->session()->load_state(saved_, {});
        return context;
    }

    // Does `use` with a call refused; BackendError where that call came.
    template <typename Fails>
    void fail(int64_t n, VkResult result, Context& context, const Use& use) {
        try {
            const Fails fails(n, result);
            use(context);
        } catch (const BackendError& error) {
            EXPECT_TRUE(test::Fault::came) << error.what();
            EXPECT_THAT(error.what(), StartsWith("vulkan:0: "));
        }
    }
    // Whether a context still holds its bytes; otherwise it must say that it is of no use.
    bool is_intact(Context& context, const Bytes& before) const {
        try {
            EXPECT_TRUE(bytes_of(context) == before);
            return true;
        } catch (const BackendError& error) {
            EXPECT_THAT(error.what(), AnyOf(HasSubstr("this context's memory is damaged"),
                                            HasSubstr("the device was lost")));
        }
        EXPECT_THROW(feed(context, 0, 1, 1), BackendError);
        EXPECT_THROW(context.session()->load_state(saved_, {}), BackendError);
        if (has_keys_) {
            EXPECT_THROW(context.session()->keys(0, 0), BackendError);
        }
        return false;
    }

    struct Count {
        int intact = 0, of_no_use = 0;
    };
    // Refuses every call in turn that `use` makes of the device, until it gets through. `arrange`
    // comes before each.
    Count without_memory(const Use& arrange, const Use& use) {
        auto context = restored();
        arrange(*context);
        const Bytes before = bytes_of(*context);
        Count count;
        for (int64_t n = 0; n < 2000; ++n) {
            context->session()->load_state(saved_, {});
            arrange(*context);
            fail<test::CallWithoutMemory>(n, VK_ERROR_OUT_OF_DEVICE_MEMORY, *context, use);
            if (!test::Fault::came) {
                context->session()->load_state(saved_, {});
                EXPECT_EQ(feed(*context, 1, 3, 7), next_);
                return count;
            }
            if (is_intact(*context, before)) {
                ++count.intact;
            } else {
                ++count.of_no_use;
                context = restored();
            }
        }
        ADD_FAILURE() << "no end of calls";
        return count;
    }

    // The device is lost at the n-th submission or wait of `use`: the context is of no use, a new
    // one is as ever.
    void lose(int64_t n, const Use& arrange, const Use& use) {
        const auto context = restored();
        context->session()->graph(8, 1, 1, /*embeddings=*/false, /*encode=*/false);
        arrange(*context);
        fail<test::CallThatLosesTheDevice>(n, VK_ERROR_DEVICE_LOST, *context, use);
        EXPECT_TRUE(test::Fault::came);
        EXPECT_FALSE(is_intact(*context, {}));
        EXPECT_EQ(feed(*restored(), 1, 3, 7), next_);
    }

    std::shared_ptr<const LoadedModel> model_ = test::TinyModel{}.open();
    PositionRange shared_{.end = 12};  // of sequences 0 and 2
    bool has_keys_ = true;             // the first layer
    ContextOptions options_ = on("vulkan");
    Bytes saved_;              // a state
    std::vector<float> next_;  // what it says next
};

void decode(Context& context) { feed(context, 1, 20, 5); }  // in three pieces
void save(Context& context) { bytes_of(context); }
void shift(Context& context) { context.session()->seq_add(2, {.begin = 4}, 3); }
void rotate(Context& context) { context.session()->keys(0, 2); }

// With edits of two values, each of one sequence: the plan applies an array, and is cut for a
// function.
void decode_with_edits(Context& context) {
    struct Halve final : public RowFunction {
        void apply(std::span<float> rows, const Shape&) override {
            for (float& x : rows) x *= 0.5f;
        }
    };
    struct OpenEdit {
        OpenEdit(Context& given, const std::string& name, std::shared_ptr<const ValueEdit> edit)
            : context(given), id(context.session()->start_edit(name, std::move(edit))) {}
        ~OpenEdit() { context.stop_edit(id); }
        OpenEdit(const OpenEdit&) = delete;
        OpenEdit& operator=(const OpenEdit&) = delete;

        Context& context;
        uint64_t id;
    };
    const auto edit_of = [](SequenceId sequence) {
        auto edit = std::make_shared<ValueEdit>();
        edit->selection = RowSelection(std::vector{sequence}, RowSelection::Range{});
        return edit;
    };
    const auto array = edit_of(1), function = edit_of(1), other = edit_of(2);
    const std::string name = "l_out.0";
    array->width = static_cast<size_t>(context.session()->value_shape(name).elements());
    array->rows.assign(array->width, 0.25f);
    function->function = std::make_unique<Halve>();
    other->width = array->width;
    other->rows = array->rows;
    const OpenEdit first(context, name, array), second(context, "blk.1.l_out", function);
    const OpenEdit third(context, name, other);
    decode(context);
}
void fragment(Context& context) {
    context.session()->seq_rm(0, {.begin = 3, .end = 6});
    feed(context, 3, 5, 3);
    context.session()->seq_rm(0, {.begin = 8, .end = 11});
}
void defragment(Context& context) { context.session()->defrag(4); }

TEST_F(VulkanFaults, ACallWithoutMemoryLeavesTheBytes) {  // S4-08
    EXPECT_EQ(without_memory(nothing, decode).of_no_use, 0);
    EXPECT_EQ(without_memory(nothing, save).of_no_use, 0);
    const Count planned = without_memory(nothing, [](Context& context) {
        context.session()->graph(5, 3, 2, /*embeddings=*/false, /*encode=*/false);
    });
    EXPECT_GT(planned.intact, 5);
    EXPECT_EQ(planned.of_no_use, 0);
}

// S4-08: rows that move, and rows that are loaded, cannot be taken back. Whatever lacks memory
// before the first of them leaves the bytes.
TEST_F(VulkanFaults, AChangeThatEndsHalfwayIsSaidAloud) {
    for (const auto& [arrange, use] :
         {std::pair<Use, Use>{nothing, shift}, std::pair<Use, Use>{shift, rotate},
          std::pair<Use, Use>{fragment, defragment}}) {
        const Count count = without_memory(arrange, use);
        EXPECT_GE(count.intact, 5);
        EXPECT_GE(count.of_no_use, 2);
    }
    const Count loaded = without_memory(
        decode, [&](Context& context) { context.session()->load_state(saved_, {}); });
    EXPECT_GE(loaded.of_no_use, 4);
    options_.kv = "streams";
    const Count copied =
        without_memory(nothing, [](Context& context) { context.session()->seq_cp(0, 3, {}); });
    EXPECT_GE(copied.intact, 5);
    EXPECT_GE(copied.of_no_use, 2);
}

// A layer on the CPU: what fails on the device leaves that one's cache of no use too.
TEST_F(VulkanFaults, ADeviceThatHasSomeOfTheLayers) {
    options_.layers.n_gpu_layers = 2;
    next_ = feed(*restored(), 1, 3, 7);
    EXPECT_EQ(without_memory(nothing, decode).of_no_use, 0);
    EXPECT_GE(without_memory(shift, rotate).of_no_use, 1);
    EXPECT_GE(without_memory(fragment, defragment).of_no_use, 1);
    EXPECT_GE(
        without_memory(decode, [&](Context& context) { context.session()->load_state(saved_, {}); })
            .of_no_use,
        2);
}

TEST_F(VulkanFaults, ADeviceThatIsLostIsOpenedAnew) {  // S4-08
    struct Loss {
        Use arrange, use;
        int64_t n;  // submissions and waits take turns
    };
    for (const auto& [arrange, use, n] :
         {Loss{nothing, decode, 4}, Loss{nothing, decode, 5}, Loss{shift, rotate, 1}}) {
        lose(n, arrange, use);
    }
}

TEST_F(VulkanFaults, AStepWithEditsThatFailsLeavesTheBytes) {
    const Count count = without_memory(nothing, decode_with_edits);
    EXPECT_GT(count.intact, 5);
    EXPECT_EQ(count.of_no_use, 0);
    for (const int64_t n : {4, 5, 6, 7, 8}) lose(n, nothing, decode_with_edits);
}

// Windows, states and what both have beside them: a model of each memory.
class VulkanFaultsOf : public VulkanFaults, public testing::WithParamInterface<const char*> {
protected:
    void SetUp() override {
        const char* data = std::getenv("PLAIT_TEST_DATA");
        const auto path = std::filesystem::path(data ? data : "") / "conformance" / GetParam();
        if (!std::filesystem::is_directory(path))
            GTEST_SKIP() << "PLAIT_TEST_DATA does not say where the reference data is";
        model_ = LoadedModel::open(path / "model.gguf", {});
        shared_ = {};  // what has forgotten cannot be shared in part
        VulkanFaults::SetUp();
        if (IsSkipped()) return;
        try {
            restored()->session()->keys(0, 0);
        } catch (const UnsupportedError&) {
            has_keys_ = false;
        }
    }
};

TEST_P(VulkanFaultsOf, ACallThatFailsLeavesTheBytes) {  // S4-08
    const Count decoded = without_memory(nothing, decode);
    EXPECT_GT(decoded.intact, 5);
    EXPECT_EQ(decoded.of_no_use, 0);
    EXPECT_EQ(without_memory(nothing, save).of_no_use, 0);
    const Count loaded = without_memory(
        decode, [&](Context& context) { context.session()->load_state(saved_, {}); });
    EXPECT_GE(loaded.of_no_use, 1);
    without_memory(nothing, [](Context& context) { context.session()->seq_cp(1, 3, {}); });
    const Count begun = without_memory([](Context& context) { context.session()->seq_rm(1, {}); },
                                       [](Context& context) { feed(context, 1, 9, 4); });
    EXPECT_GT(begun.intact, 5);
    EXPECT_EQ(begun.of_no_use, 0);
}

TEST_P(VulkanFaultsOf, ADeviceThatIsLostIsOpenedAnew) {  // S4-08
    for (const int64_t n : {4, 5}) lose(n, nothing, decode);
}

INSTANTIATE_TEST_SUITE_P(Memories, VulkanFaultsOf,
                         testing::Values("gemma3", "mamba", "mamba2", "rwkv7", "jamba",
                                         "qwen3next"),
                         [](const auto& of) { return std::string(of.param); });

// The one it runs on is lost to all contexts, and to no other device.
TEST_F(VulkanFaults, OtherDevicesAreNotLost) {
    Context cpu(model_, on("cpu"));
    cpu.session()->load_state(saved_, {});
    Context first(model_, options_), second(model_, options_);
    first.session()->load_state(saved_, {});
    {
        const test::CallThatLosesTheDevice lost(0, VK_ERROR_DEVICE_LOST);
        EXPECT_THAT([&] { cpu.copy_state_to(second); },
                    testing::ThrowsMessage<BackendError>(
                        AllOf(StartsWith("vulkan:0: "), HasSubstr("ErrorDeviceLost"))));
    }
    EXPECT_THAT([&] { first.copy_state_to(cpu); },
                testing::ThrowsMessage<BackendError>(HasSubstr("the device was lost")));
    EXPECT_TRUE(bytes_of(cpu) == saved_);
    EXPECT_EQ(feed(*restored(), 1, 3, 7), next_);
}

TEST_F(VulkanFaults, AContextThatLacksMemoryIsNotMade) {
    {  // so that the device is opened again, too
        const auto context = restored();
        const test::CallThatLosesTheDevice lost(0, VK_ERROR_DEVICE_LOST);
        EXPECT_THROW(feed(*context, 0, 1, 1), BackendError);
    }
    const auto context = restored();
    int refused = 0;
    for (int64_t n = 0; n < 2000; ++n) {
        const test::CallWithoutMemory fails(n, VK_ERROR_OUT_OF_DEVICE_MEMORY);
        try {
            Context another(model_, options_);
            if (!test::Fault::came) break;
        } catch (const BackendError& error) {
            EXPECT_THAT(error.what(), StartsWith("vulkan:0: cannot "));
            ++refused;
        }
    }
    EXPECT_GT(refused, 50);
    EXPECT_TRUE(bytes_of(*context) == saved_);
    EXPECT_EQ(feed(*context, 1, 3, 7), next_);
}

TEST_F(VulkanFaults, ShadersThatDoNotCompileAreNamed) {
    const auto context = restored();
    ContextOptions other = options_;
    other.type_k = DType::iq4_nl;
    const auto make = [&] {
        const test::CallOfTheCompiler fails(0, VK_ERROR_UNKNOWN);
        Context another(model_, other);
    };
    EXPECT_THAT(make, testing::ThrowsMessage<BackendError>(
                          AllOf(StartsWith("vulkan:0: cannot compile shader hadamard"),
                                HasSubstr("ErrorUnknown"))));
    EXPECT_TRUE(bytes_of(*context) == saved_);
    Context another(model_, other);  // not remembered as failed
    EXPECT_EQ(feed(another, 0, 1, 1).size(), 80u);
}

}  // namespace
}  // namespace plait

#endif  // PLAIT_HAS_VULKAN
