#include "gguf/metadata.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"
#include "gguf/keys.h"

namespace plait::gguf {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

Metadata sample_metadata() {
    std::vector<Entry> entries;
    const auto add = [&](const char* key, Value::Data data) {
        entries.push_back({key, Value(std::move(data))});
    };
    add("u8", uint8_t{200});
    add("i8", int8_t{-3});
    add("u64.fits", uint64_t{std::numeric_limits<int64_t>::max()});
    add("u64.large", uint64_t{1} << 63);
    add("f32", 1.5f);
    add("f64", 0.1);
    add("yes", true);
    add("name", std::string("a model"));
    add("ints", Array{ValueType::i16, std::vector<int16_t>{-1, 2}});
    add("huge", Array{ValueType::u64, std::vector<uint64_t>{1, uint64_t{1} << 63}});
    add("reals", Array{ValueType::f64, std::vector<double>{0.5, 2}});
    add("flags", Array{ValueType::boolean, std::vector<uint8_t>{1, 0}});
    add("words", Array{ValueType::string, std::vector<std::string>{"a", ""}});
    return {"m.gguf", std::move(entries)};
}

TEST(Metadata, KeepsTheOrderOfTheFile) {
    const Metadata metadata = sample_metadata();
    EXPECT_EQ(metadata.size(), 13u);
    EXPECT_EQ(metadata.begin()->key, "u8");
    EXPECT_EQ((metadata.end() - 1)->key, "words");
    EXPECT_TRUE(metadata.has("name"));
    EXPECT_FALSE(metadata.has("nam"));
    EXPECT_FALSE(metadata.has(""));
    EXPECT_EQ(metadata.find("absent"), nullptr);
}

TEST(Metadata, IntegersOfEveryWidthConvertWhenTheyFit) {
    const Metadata metadata = sample_metadata();
    EXPECT_EQ(metadata.integer("u8"), 200);
    EXPECT_EQ(metadata.integer("i8"), -3);
    EXPECT_EQ(metadata.integer("u64.fits"), std::numeric_limits<int64_t>::max());
    EXPECT_EQ(metadata.integer("absent", 7), 7);
    EXPECT_THAT(metadata.integers("ints"), ElementsAre(-1, 2));
    EXPECT_THAT([&] { metadata.integer("u64.large"); },
                ThrowsMessage<ModelError>(AllOf(HasSubstr("m.gguf"), HasSubstr("'u64.large'"),
                                                HasSubstr("9223372036854775808"))));
    EXPECT_THAT([&] { metadata.integers("huge"); }, ThrowsMessage<ModelError>(HasSubstr("'huge'")));
}

TEST(Metadata, TypesAreNotConverted) {
    const Metadata metadata = sample_metadata();
    EXPECT_EQ(metadata.real("f32"), 1.5);
    EXPECT_EQ(metadata.real("f64"), 0.1);
    EXPECT_EQ(metadata.real("absent", 2.5), 2.5);
    EXPECT_EQ(metadata.real("f32", 2.5), 1.5);
    EXPECT_TRUE(metadata.boolean("yes"));
    EXPECT_TRUE(metadata.boolean("absent", true));
    EXPECT_EQ(metadata.string("name"), "a model");
    EXPECT_EQ(metadata.string("absent", "other"), "other");
    EXPECT_THAT(metadata.reals("reals"), ElementsAre(0.5f, 2.0f));
    EXPECT_THAT(metadata.booleans("flags"), ElementsAre(true, false));
    EXPECT_THAT(metadata.strings("words"), ElementsAre("a", ""));

    const auto says = [](const char* key, const char* held, const char* expected) {
        return ThrowsMessage<ModelError>(
            AllOf(HasSubstr("m.gguf: "), HasSubstr(key), HasSubstr(held), HasSubstr(expected)));
    };
    EXPECT_THAT([&] { metadata.integer("f32"); }, says("'f32'", "f32", "an integer"));
    EXPECT_THAT([&] { metadata.integer("yes", 1); }, says("'yes'", "boolean", "an integer"));
    EXPECT_THAT([&] { metadata.real("u8"); }, says("'u8'", "u8", "a real number"));
    EXPECT_THAT([&] { metadata.boolean("u8"); }, says("'u8'", "u8", "a boolean"));
    EXPECT_THAT([&] { metadata.string("ints"); }, says("'ints'", "array of i16", "a string"));
    EXPECT_THAT([&] { metadata.integers("flags"); },
                says("'flags'", "array of boolean", "an array of integers"));
    EXPECT_THAT([&] { metadata.integers("u8"); }, says("'u8'", "u8", "an array of integers"));
    EXPECT_THAT([&] { metadata.reals("ints"); },
                says("'ints'", "array of i16", "an array of real numbers"));
    EXPECT_THAT([&] { metadata.booleans("ints"); },
                says("'ints'", "array of i16", "an array of booleans"));
    EXPECT_THAT([&] { metadata.strings("ints"); },
                says("'ints'", "array of i16", "an array of strings"));
}

TEST(Metadata, AMissingKeyIsNamed) {
    const Metadata metadata = sample_metadata();
    EXPECT_THAT([&] { metadata.at("llama.block_count"); },
                ThrowsMessage<ModelError>("m.gguf: key 'llama.block_count' is missing"));
    EXPECT_THROW(metadata.integer("absent"), ModelError);
    EXPECT_THROW(metadata.strings("absent"), ModelError);
}

TEST(Metadata, ValuesHaveTypeNames) {
    const Metadata metadata = sample_metadata();
    EXPECT_EQ(metadata.at("f64").type(), ValueType::f64);
    EXPECT_EQ(metadata.at("f64").type_name(), "f64");
    EXPECT_TRUE(metadata.at("words").is_array());
    EXPECT_EQ(metadata.at("words").type_name(), "array of string");
    EXPECT_EQ(std::get<Array>(metadata.at("words").data()).size(), 2u);
}

TEST(Keys, ArePrefixedWithTheArchitecture) {
    EXPECT_EQ(key("llama", "attention.head_count"), "llama.attention.head_count");
}

TEST(NameIndex, FindsTheFirstRepetition) {
    const std::vector<std::string> names = {"a", "b", "c", "b", "a", "a"};
    const auto name_of = [&](uint64_t i) { return std::string_view(names[i]); };
    NameIndex index;
    index.build(3, name_of);
    EXPECT_EQ(index.duplicate(name_of), std::nullopt);
    EXPECT_EQ(index.find("c", name_of), 2u);
    EXPECT_EQ(index.find("d", name_of), std::nullopt);
    index.build(names.size(), name_of);
    EXPECT_EQ(index.duplicate(name_of), 3u);
}

}  // namespace
}  // namespace plait::gguf
