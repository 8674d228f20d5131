// The memories that specs and options result in.
#include <gmock/gmock.h>

#include "base/error.h"
#include "driver.h"

namespace plait {
namespace {

struct Choice {
    std::string_view model;
    MemorySpecs specs;
    std::string_view unified;  // kinds, by option
    std::string_view streams;
    int32_t n_streams;  // with streams, of 3 sequences
};

TEST(MakeMemory,
     ChoosesFromTheModelAndTheOptions) {  // # S2-02 # S4-12 # S4-16 # S4-20 # S4-18 # S2-25
    const StateSpec keys = full_layer();
    const StateSpec window = window_layer({WindowKind::sliding, 8});
    const StateSpec chunk = window_layer({WindowKind::chunked, 8});
    const StateSpec states = RecurrentSpec{{4, 8}};
    const StateSpec latent = AttentionSpec{.n_kv_heads = 1, .key_dim = 36, .value_dim = 0};
    const StateSpec cross = CrossSpec{2, 4, 4};
    const StateSpec within = WithinSpec{};
    const std::vector<Choice> choices = {
        {"llama", {{keys}, {keys}}, "unified", "streams", 3},
        {"deepseek2", {{latent}, {latent}}, "unified", "streams", 3},
        {"mistral", {{window}, {window}}, "sliding", "sliding", 3},
        {"gemma3", {{window}, {window}, {keys}}, "sliding", "sliding", 3},
        {"llama4", {{chunk}, {keys}}, "sliding", "sliding", 3},
        {"mamba", {{states}, {states}}, "recurrent", "recurrent", 1},
        {"jamba", {{states}, {keys}, {}}, "hybrid", "hybrid", 3},
        {"falcon-h1", {{keys, states}}, "hybrid", "hybrid", 3},
        {"samba", {{states}, {window}}, "hybrid", "hybrid", 3},
        {"t5", {{within}, {keys, cross}}, "cross", "cross", 3},
        {"bert", {{within}, {within}}, "none", "none", 1},
        {"no layers", {}, "none", "none", 1},
    };
    for (const Choice& choice : choices) {
        for (const bool streams : {false, true}) {
            MemoryOptions options = sized(32, 3, streams);
            options.n_batch = 8;
            const auto memory = make_memory(choice.specs, options);
            EXPECT_EQ(memory->kind(), streams ? choice.streams : choice.unified) << choice.model;
            EXPECT_EQ(memory->n_streams(), streams ? choice.n_streams : 1) << choice.model;
            uint64_t bytes = 0;
            for (const StorageInfo& storage : memory->layout().storage) bytes += storage.bytes();
            EXPECT_EQ(memory->layout().bytes(), bytes);
        }
    }
}

TEST(MakeMemory, ThereIsOneStreamOrOnePerSequence) {  // # S2-39
    MemoryOptions options = sized(8, 4, /*streams=*/true);
    options.n_cells = 16;  // two sequences to a stream
    EXPECT_EQ(
        message_of<InvalidArgument>([&] { make_memory(attention_specs({full_layer()}), options); }),
        "kv_cells is 16, but with kv=\"streams\" each of 4 sequences has n_ctx = 8 cells, "
        "together 32");
}

TEST(MakeMemory, UnsupportedCombinationsThrowWithTheReason) {  // # S4-20
    const MemoryOptions options = sized(8, 1);
    EXPECT_EQ(message_of<UnsupportedError>([&] {
                  make_memory({{CrossSpec{1, 4, 4}}}, options);
              }),
              "cross attention without self attention is not supported: no other layer records the "
              "positions of the decoder's sequences");
    EXPECT_EQ(message_of<UnsupportedError>([&] {
                  make_memory({{full_layer(), CrossSpec{1, 4, 4}, RecurrentSpec{{4}}}}, options);
              }),
              "recurrent layers of an encoder-decoder are not supported: an encoder step has no "
              "state");
}

TEST(MakeMemory, LayersWithoutStateTakeNoBytes) {  // # S1-28
    const auto one = make_memory({{full_layer()}}, sized(8, 2));
    const auto three = make_memory({{}, {full_layer()}, {}}, sized(8, 2));
    EXPECT_EQ(one->layout().bytes(), three->layout().bytes());
}

TEST(MakeMemory, ManyStreamsOfManyLayers) {  // # S2-45
    MemoryOptions options = sized(2, 256, /*streams=*/true);
    const auto memory =
        make_memory(attention_specs(std::vector<AttentionSpec>(80, full_layer())), options);
    EXPECT_EQ(memory->layout().storage.size(), 160u);
    EXPECT_EQ(memory->n_cells(), 512);
}

// # S4-33
TEST(MakeMemory, EveryKindPerformsOrRejectsEveryEdit) {
    const StateSpec keys = full_layer();
    const StateSpec states = RecurrentSpec{{4}};
    const std::vector<std::pair<MemorySpecs, bool>> memories = {
        {{{keys}}, true},
        {{{states}}, false},
        {{{keys}, {states}}, false},
        {{{window_layer({WindowKind::sliding, 3})}, {keys}}, false},
        {{{WithinSpec{}}}, true},
    };
    for (const auto& [specs, has_parts] : memories) {
        MemoryOptions options = sized(32, 2);
        options.n_batch = 8;
        options.causal = specs[0][0].get_if<WithinSpec>() == nullptr;
        Driver driver(options, specs);
        driver.feed(0, 6);
        EXPECT_EQ(driver.memory->remove(0, {2, 4}) || driver.memory->remove(0, {5, INT32_MAX}),
                  has_parts || kind_of(driver) == "sliding");
        driver.memory->clear();
        driver.feed(0, 6);
        if (has_parts) {
            driver.memory->copy(0, 1, {0, 5}, driver.moves);
        } else {
            EXPECT_THROW(driver.memory->copy(0, 1, {0, 5}, driver.moves), UnsupportedError);
        }
        driver.memory->copy(0, 1, {}, driver.moves);
        driver.memory->add(1, {}, 3, driver.moves);
        if (kind_of(driver) == "sliding") {
            EXPECT_THROW(driver.memory->divide(1, {}, 2, driver.moves), UnsupportedError);
        } else {
            driver.memory->divide(1, {}, 2, driver.moves);
        }
        driver.memory->keep(1);
        EXPECT_FALSE(driver.memory->positions(0).has_value());
        driver.memory->clear();
        EXPECT_EQ(driver.memory->n_used(), 0);
    }
}

}  // namespace
}  // namespace plait
