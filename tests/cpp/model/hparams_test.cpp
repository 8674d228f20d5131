#include "model/hparams.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "model/blocks/attention.h"
#include "model/rope.h"

namespace plait {
namespace {

gguf::Metadata metadata(std::vector<std::pair<std::string, gguf::Value::Data>> values) {
    std::vector<gguf::Entry> entries;
    for (auto& [suffix, data] : values)
        entries.push_back({"toy." + suffix, gguf::Value(std::move(data))});
    return {"toy.gguf", std::move(entries)};
}

std::string windows_of(const gguf::Metadata& metadata, int pattern, int tokens = 0) {
    std::string kinds;
    for (const Window& window : read_windows(Hparams(metadata, "toy"), 6, pattern, tokens))
        kinds += window.kind == WindowKind::full ? "-" : std::to_string(window.tokens);
    return kinds;
}

gguf::Value::Data numbers(std::vector<uint32_t> values) {
    return gguf::Array{gguf::ValueType::u32, std::move(values)};
}

gguf::Value::Data flags(std::vector<uint8_t> values) {
    return gguf::Array{gguf::ValueType::boolean, std::move(values)};
}

TEST(Hparams, LayersWithAWindow) {
    EXPECT_EQ(windows_of(metadata({}), 3), "------");
    EXPECT_EQ(windows_of(metadata({}), 3, 7), "77-77-");
    EXPECT_EQ(windows_of(metadata({{"attention.sliding_window", 0u}}), 3, 7), "------");
    const std::pair<std::string, gguf::Value::Data> nine{"attention.sliding_window", 9u};
    EXPECT_EQ(windows_of(metadata({nine}), 2), "9-9-9-");
    EXPECT_EQ(windows_of(metadata({nine}), 1), "------");
    EXPECT_EQ(windows_of(metadata({nine}), 0), "999999");
    const auto pattern = [&](gguf::Value::Data value) {
        return windows_of(metadata({nine, {"attention.sliding_window_pattern", value}}), 2);
    };
    EXPECT_EQ(pattern(4u), "999-99");
    EXPECT_EQ(pattern(numbers({1, 0, 0, 1, 0, 1, 1})), "9--9-9");
    EXPECT_EQ(pattern(flags({0, 1, 1, 0, 1, 0})), "-99-9-");
    EXPECT_THROW(pattern(flags({0, 1})), ModelError);
    EXPECT_THROW(pattern(numbers({0, 1, 2, 0, 0, 0})), ModelError);
    EXPECT_THROW(pattern(std::string("LLLG")), ModelError);
}

TEST(Hparams, ScalingOfPositions) {
    const auto scale = [](std::vector<std::pair<std::string, gguf::Value::Data>> values) {
        const gguf::Metadata held = metadata(std::move(values));
        return read_rope(Hparams(held, "toy"), 8, RopePairs::neighbours).scale;
    };
    const std::pair<std::string, gguf::Value::Data> by4{"rope.scaling.factor", 4.0f};
    EXPECT_EQ(scale({}), 1.0);
    EXPECT_EQ(scale({by4}), 0.25);  // linear is the default
    EXPECT_EQ(scale({{"rope.scale_linear", 2.0f}}), 0.5);
    EXPECT_EQ(scale({by4, {"rope.scale_linear", 2.0f}}), 0.25);
    EXPECT_EQ(scale({by4, {"rope.scaling.type", std::string("none")}}), 1.0);
    EXPECT_EQ(scale({{"rope.scaling.factor", 0.0f}}), 1.0);
    EXPECT_THROW(scale({{"rope.scaling.factor", -1.0f}}), ModelError);
    EXPECT_THROW(scale({by4, {"rope.scaling.type", std::string("spiral")}}), UnsupportedError);
}

TEST(Hparams, SectionsOfSeveralPositions) {
    const auto sections = [](std::vector<uint32_t> pairs) {
        const gguf::Metadata held =
            metadata({{"rope.dimension_sections", numbers(std::move(pairs))}});
        const Hparams hp(held, "toy");
        const Rope rope = read_mrope(hp, 16);
        EXPECT_FALSE(rope.interleaved);
        return std::vector<int>(rope.sections, rope.sections + 4);
    };
    EXPECT_EQ(sections({2, 3, 3}), (std::vector{2, 3, 3, 0}));
    EXPECT_EQ(sections({2, 3, 3, 0}), (std::vector{2, 3, 3, 0}));
    EXPECT_THROW(sections({2, 3}), ModelError);
    EXPECT_THROW(sections({2, 3, 3, 0, 0}), ModelError);
    EXPECT_THROW(sections({2, 9, 3}), ModelError);
    EXPECT_THROW(sections({0, 0, 0, 0}), ModelError);
}

}  // namespace
}  // namespace plait
