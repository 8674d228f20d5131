// Damaged files. Each row of the table tests one rule: the file is refused, and the message names
// the file, the field and the expected value.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <random>

#include "base/error.h"
#include "gguf/reader.h"
#include "gguf/writer.h"

namespace plait::gguf {
namespace {

using test::GgufWriter;
using test::raw;
using test::raw_string;
using test::TempFolder;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr uint64_t kMax = ~0ull;
constexpr uint32_t kU8 = 0, kU64 = 10, kString = 8, kArray = 9, kBoolean = 7;

// A valid file with two keys and three tensors.
GgufWriter sound() {
    GgufWriter writer;
    writer.string("general.architecture", "llama").numbers<float>("scores", ValueType::f32, {1, 2});
    writer.tensor("a", {8, 4}, DType::f32, std::string(128, 'a'))
        .tensor("b", {64}, DType::q4_0, std::string(36, 'b'))
        .tensor("c", {8}, DType::f32, std::string(32, 'c'));
    return writer;
}

struct Defect {
    std::string name;
    std::function<void(GgufWriter&)> make;
    std::string message;  // part of what(), without the file name
};

void PrintTo(const Defect& defect, std::ostream* out) { *out << defect.name; }

// Inserts a key before all others.
auto with_key(std::string name, uint32_t type, std::string payload) {
    return [=](GgufWriter& w) { w.entries.insert(w.entries.begin(), {name, type, payload}); };
}

auto array_of(uint32_t element, uint64_t count, const std::string& body = std::string(16, '\0')) {
    return with_key("bad", kArray, raw(element) + raw(count) + body);
}

auto alignment(uint32_t type, const std::string& payload) {
    return with_key("general.alignment", type, payload);
}

auto dims(std::vector<uint64_t> sizes) {
    return [=](GgufWriter& w) { w.tensors[0].dims = sizes; };
}

auto rank(uint32_t n) {
    return [=](GgufWriter& w) { w.tensors[0].rank = n; };
}

auto offset(size_t tensor, uint64_t value) {
    return [=](GgufWriter& w) {
        w.tensors[tensor].offset = value;
        w.tensors[tensor].bytes.clear();
    };
}

auto element_type(uint32_t id) {
    return [=](GgufWriter& w) { w.tensors[0].type = id; };
}

const std::vector<Defect>& defects() {
    static const std::vector<Defect> table = {
        // The first bytes.
        {"magic", [](auto& w) { w.magic = "GGUG"; }, "header field 'magic' is not that of a GGUF"},
        {"magic_big_endian", [](auto& w) { w.magic = "FUGG"; }, "big-endian"},
        {"version_1", [](auto& w) { w.version = 1; }, "'version' is 1, expected 2 or 3"},
        {"version_4", [](auto& w) { w.version = 4; }, "'version' is 4, expected 2 or 3"},
        {"version_big_endian", [](auto& w) { w.version = 0x03000000; }, "big-endian"},
        // Counts larger than the file, R2.
        {"tensor_count", [](auto& w) { w.tensor_count = kMax; },
         "'tensor_count' claims 18446744073709551615 tensors"},
        {"tensor_count_fits_uint32", [](auto& w) { w.tensor_count = uint64_t{1} << 32; },
         "'tensor_count' claims 4294967296 tensors"},
        {"entry_count", [](auto& w) { w.entry_count = kMax; }, "'metadata_kv_count' claims"},
        {"entry_count_signed", [](auto& w) { w.entry_count = uint64_t{1} << 63; },
         "'metadata_kv_count' claims"},
        {"entry_count_one_more", [](auto& w) { w.entry_count = 3; }, "tensor 0"},
        {"entry_count_one_less", [](auto& w) { w.entry_count = 1; }, "tensor 0"},
        {"tensor_count_one_less", [](auto& w) { w.tensor_count = 2; },
         "header field 'tensor_count' is 2, but more bytes follow the entry of the last tensor"},
        {"tensor_count_one_more",
         [](auto& w) {
             w.tensor_count = 4;
             for (auto& tensor : w.tensors) tensor.bytes.clear();
         },
         "tensor"},
        // Lengths, R1 R2 R7.
        {"key_length",
         [](auto& w) {
             w.entries[0] = {"", 0, raw(kMax)};
             w.entry_count = 1;
         },
         "key 0"},
        {"string_length", with_key("bad", kString, raw(kMax) + "abc"),
         "key 0 'bad' claims 18446744073709551615 bytes of a string"},
        {"string_length_signed", with_key("bad", kString, raw(uint64_t{1} << 63) + "abc"),
         "'bad' claims"},
        {"string_length_2_to_the_32", with_key("bad", kString, raw(uint64_t{1} << 32) + "abc"),
         "'bad' claims 4294967296 bytes"},
        {"array_count", array_of(kU8, kMax), "key 0 'bad' claims"},
        {"array_count_wraps", array_of(kU64, (uint64_t{1} << 61) + 1),
         "'bad' claims 2305843009213693953 elements, more than the"},
        {"array_of_strings_count", array_of(kString, uint64_t{1} << 40),
         "'bad' claims 1099511627776 strings"},
        {"array_of_strings_inner_length", array_of(kString, 2, raw_string("a") + raw(kMax - 4)),
         "'bad' claims 18446744073709551611 bytes"},
        // Types of values.
        {"value_type", with_key("bad", 13, raw(uint64_t{0})),
         "key 0 'bad' has value type 13, expected 0 to 12"},
        {"value_type_signed", with_key("bad", 0x80000000, raw(uint64_t{0})),
         "value type 2147483648"},
        {"element_type_of_array", array_of(13, 1), "'bad' has element type 13"},
        {"boolean", with_key("bad", kBoolean, "\x02"),
         "'bad' holds 2 as a boolean, expected 0 or 1"},
        {"boolean_in_array", array_of(kBoolean, 2, "\x01\xff"), "'bad' holds 255 as a boolean"},
        // Names, R5.
        {"key_empty", with_key("", kU8, raw(uint8_t{1})), "key 0 has no name"},
        {"key_twice", with_key("scores", kU8, raw(uint8_t{1})),
         "key 'scores' appears again as key 2"},
        {"key_long", with_key(std::string(65536, 'k'), kU8, raw(uint8_t{1})),
         "has a name of 65536 bytes, expected at most 65535"},
        {"key_with_nul", with_key(std::string("a\0b", 3), kU8, raw(uint8_t{1})),
         "key 0 'a\\x00b' has a name that is not printable ASCII"},
        {"key_not_utf8", with_key("a\xff", kU8, raw(uint8_t{1})), "'a\\xff'"},
        {"tensor_empty_name", [](auto& w) { w.tensors[1].name = ""; }, "tensor 1 has no name"},
        {"tensor_twice", [](auto& w) { w.tensors[2].name = "a"; },
         "tensor 'a' appears again as tensor 2"},
        {"tensor_long_name", [](auto& w) { w.tensors[0].name = std::string(64, 'n'); },
         "has a name of 64 bytes, expected at most 63"},
        {"tensor_name_with_newline", [](auto& w) { w.tensors[0].name = "a\nb"; },
         "tensor 0 'a\\x0ab' has a name that is not printable ASCII"},
        // Alignment, R3.
        {"alignment_0", alignment(4, raw(0u)), "'general.alignment' is 0, expected a power of two"},
        {"alignment_4", alignment(4, raw(4u)), "'general.alignment' is 4"},
        {"alignment_48", alignment(4, raw(48u)), "'general.alignment' is 48"},
        {"alignment_u64", alignment(kU64, raw(uint64_t{32})),
         "'general.alignment' holds u64, expected u32"},
        {"alignment_string", alignment(kString, raw_string("32")), "holds string, expected u32"},
        {"alignment_larger_than_file", alignment(4, raw(0x80000000u)), "tensor 0 'a'"},
        // Shapes, R3 R4.
        {"rank_0", rank(0), "tensor 0 'a' has 0 dimensions, expected 1 to 4"},
        {"rank_5", rank(5), "tensor 0 'a' has 5 dimensions"},
        {"rank_signed", rank(0x80000000), "tensor 0 'a' has 2147483648 dimensions"},
        {"dimension_0", dims({8, 0}), "tensor 0 'a' has dimension 1 of 0"},
        {"dimension_negative", dims({kMax, 4}), "has dimension 0 of 18446744073709551615"},
        {"elements_wrap_to_0", dims({uint64_t{1} << 32, uint64_t{1} << 32}),
         "tensor 0 'a' has shape [4294967296, 4294967296], whose size overflows"},
        {"elements_wrap_to_1", dims({7, 0x6DB6DB6DB6DB6DB7}), "overflows"},
        {"elements_negative", dims({uint64_t{1} << 62, 2}), "overflows"},
        {"elements_overflow_and_bytes_do_not",
         [](auto& w) {
             w.tensors[1].dims = {uint64_t{1} << 32, uint64_t{1} << 31};
         },
         "tensor 1 'b' has shape [2147483648, 4294967296], whose size overflows"},
        {"bytes_wrap_to_0", dims({uint64_t{1} << 31, uint64_t{1} << 31}), "overflows"},
        {"bytes_wrap_to_64", dims({16, (uint64_t{1} << 58) + 1}), "overflows"},
        {"row_is_no_block", [](auto& w) { w.tensors[1].dims = {33}; },
         "tensor 1 'b' has rows of 33 elements, expected a multiple of 32 for Q4_0"},
        {"row_is_no_block_but_product_is",
         [](auto& w) {
             w.tensors[1].dims = {16, 4};
         },
         "rows of 16 elements"},
        {"element_type_withdrawn", element_type(4), "tensor 0 'a' has element type 4, which does"},
        {"element_type_unknown", element_type(1000), "element type 1000"},
        {"element_type_signed", element_type(0xFFFFFFFF), "element type 4294967295"},
        // Offsets, R3.
        {"offset_unaligned", offset(2, 65),
         "tensor 2 'c' has offset 65, expected a multiple of 32"},
        {"offset_past_end", offset(2, 4096), "tensor 2 'c' has 32 bytes at offset 4096, beyond"},
        {"offset_2_to_the_63", offset(2, uint64_t{1} << 63), "tensor 2 'c'"},
        {"offset_wraps", offset(2, kMax - 31), "tensor 2 'c' has 32 bytes at offset 1844674"},
        {"overlap", offset(2, 32), "tensors 'a' and 'c' overlap"},
        {"same_place",
         [](auto& w) {
             w.tensors[2].dims = {8, 4};
             w.tensors[2].offset = 0;
         },
         "overlap"},
        {"data_cut", [](auto& w) { w.tensors[2].bytes.pop_back(); }, "tensor 2 'c'"},
        {"data_missing",
         [](auto& w) {
             for (auto& tensor : w.tensors) tensor.bytes.clear();
         },
         "tensor 0 'a' has 128 bytes at offset 0, beyond the end of the file"},
        // Split models.
        {"split_without_pattern", with_key("split.count", 2, raw(uint16_t{2})),
         "'split.count' is 2"},
        {"split_second", with_key("split.no", 2, raw(uint16_t{1})), "'split.no' is 1, expected 0"},
        {"split_negative", with_key("split.count", 5, raw(int32_t{-1})), "'split.count' is -1"},
        {"split_huge", with_key("split.count", 4, raw(0xFFFFFFFFu)), "'split.count' is 4294967295"},
    };
    return table;
}

class Defects : public testing::TestWithParam<Defect> {
protected:
    TempFolder folder_;
};

INSTANTIATE_TEST_SUITE_P(Table, Defects, testing::ValuesIn(defects()),
                         [](const auto& test) { return test.param.name; });

TEST_P(Defects, AreRefusedByName) {
    GgufWriter writer = sound();
    ASSERT_NO_THROW(File::open(folder_.write("sound.gguf", writer.bytes())));
    GetParam().make(writer);
    const std::string path = folder_.write("bad.gguf", writer.bytes());
    for (const bool mmap : {false, true}) {
        EXPECT_THAT([&] { File::open(path, {.mmap = mmap}); },
                    ThrowsMessage<ModelError>(
                        AllOf(HasSubstr("bad.gguf: "), HasSubstr(GetParam().message))));
    }
}

class BadFiles : public testing::Test {
protected:
    void expect_refused(const std::string& path, const std::string& why) {
        EXPECT_THAT([&] { File::open(path); },
                    ThrowsMessage<ModelError>(AllOf(HasSubstr(path), HasSubstr(why))));
    }
    // Passes if the file opens or is refused with ModelError or UnsupportedError.
    void open_or_refuse(const std::string& bytes) {
        try {
            const auto file = File::open(folder_.write("any.gguf", bytes));
            std::vector<std::byte> data;
            for (const TensorInfo& tensor : file->tensors()) {
                data.resize(tensor.bytes);
                file->read(tensor, 0, data);
            }
        } catch (const ModelError&) {
        } catch (const UnsupportedError&) {
        }
    }

    TempFolder folder_;
};

TEST_F(BadFiles, ValidFilesWithUnsupportedTypesAreRefused) {
    GgufWriter nested = sound();
    nested.array("nested", kArray, 1, raw(kU8) + raw(uint64_t{1}) + "x");
    EXPECT_THAT([&] { File::open(folder_.write("m.gguf", nested.bytes())); },
                ThrowsMessage<UnsupportedError>(
                    AllOf(HasSubstr("m.gguf: key 2 'nested'"), HasSubstr("array of arrays"))));
    GgufWriter doubles = sound();
    doubles.tensors[0].type = 28;
    EXPECT_THAT([&] { File::open(folder_.write("m.gguf", doubles.bytes())); },
                ThrowsMessage<UnsupportedError>(
                    AllOf(HasSubstr("m.gguf: tensor 0 'a'"), HasSubstr("F64"))));
}

TEST_F(BadFiles, EveryTruncationIsRefused) {
    const std::string whole = sound().bytes();
    for (size_t size = 0; size < whole.size(); ++size) {
        const std::string path = folder_.write("cut.gguf", whole.substr(0, size));
        EXPECT_THROW(File::open(path), ModelError) << size << " of " << whole.size();
    }
}

TEST_F(BadFiles, FlippedBitsDoNoHarm) {
    const GgufWriter writer = sound();
    const std::string whole = writer.bytes();
    for (size_t bit = 0; bit < writer.head().size() * 8; ++bit) {
        std::string changed = whole;
        changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ 1 << bit % 8);
        open_or_refuse(changed);
    }
}

TEST_F(BadFiles, ChangedWordsDoNoHarm) {
    const GgufWriter writer = sound();
    const std::string whole = writer.bytes();
    const uint64_t words[] = {
        0,        1,   0x7FFFFFFF, 0x80000000, uint64_t{1} << 32, kMax >> 1, uint64_t{1} << 63,
        kMax - 7, kMax};
    for (size_t at = 0; at + 8 <= writer.head().size(); ++at) {
        for (const uint64_t word : words) {
            std::string changed = whole;
            changed.replace(at, 8, raw(word));
            open_or_refuse(changed);
        }
    }
}

TEST_F(BadFiles, PipesAndFoldersAreRefusedWithoutBlocking) {  // G5 R10
    expect_refused(folder_.file("absent.gguf"), "cannot be opened");
    std::filesystem::create_directory(folder_.file("folder.gguf"));
    expect_refused(folder_.file("folder.gguf"), "is a directory, expected a regular file");
    ASSERT_EQ(::mkfifo(folder_.file("pipe.gguf").c_str(), 0600), 0);
    expect_refused(folder_.file("pipe.gguf"), "is a pipe");
    expect_refused("/dev/zero", "is a device");
    std::filesystem::create_symlink("loop.gguf", folder_.file("loop.gguf"));
    expect_refused(folder_.file("loop.gguf"), "cannot be opened");
    EXPECT_THROW(File::open(folder_.write("m.gguf", sound().bytes()) + '\0' + "x"), ModelError);
}

TEST_F(BadFiles, AnUnreadableFileIsRefused) {
    if (::geteuid() == 0) GTEST_SKIP() << "root can read all files";
    const std::string path = folder_.write("secret.gguf", sound().bytes());
    ASSERT_EQ(::chmod(path.c_str(), 0), 0);
    expect_refused(path, "Permission denied");
}

TEST_F(BadFiles, MessagesAreShortAndPrintable) {
    GgufWriter writer = sound();
    writer.string(std::string(5000, 'k') + "\n\x1b[31m\xff", "x");
    const std::string path = folder_.write("bad.gguf", writer.bytes());
    try {
        File::open(path);
        FAIL() << "a key of control characters was accepted";
    } catch (const ModelError& error) {
        const std::string what = error.what();
        EXPECT_LT(what.size(), path.size() + 300);
        for (const char c : what) EXPECT_TRUE(c >= 0x20 && c < 0x7F) << what;
    }
}

// A quadratic check of names would take minutes here. The bound allows for sanitisers.
TEST_F(BadFiles, ManyKeysAndTensorsTakeLinearTime) {
    GgufWriter writer;
    for (int i = 0; i < 500'000; ++i) {
        writer.number("k." + std::to_string(i), ValueType::u8, uint8_t{0});
    }
    for (uint64_t i = 0; i < 100'000; ++i) {
        writer.tensors.push_back({"t." + std::to_string(i), {8}, 0, i * 32, {}, std::nullopt});
    }
    std::string bytes = writer.head();
    bytes.resize(writer.padded(bytes.size()) + 100'000 * 32);
    const std::string path = folder_.write("many.gguf", bytes);
    const auto start = std::chrono::steady_clock::now();
    const auto file = File::open(path);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
    EXPECT_EQ(file->tensors().size(), 100'000u);
    EXPECT_TRUE(file->metadata().has("k.499999"));
    EXPECT_EQ(file->find("t.99999")->type, (TensorType{DType::f32, {8}}));
}

// The size of a sparse file must not determine allocations.
TEST_F(BadFiles, SparseFilesCauseNoLargeAllocations) {
    GgufWriter writer;
    writer.entries.push_back({"bad", kArray, raw(kU8) + raw(uint64_t{60} << 30)});
    const std::string path = folder_.write("sparse.gguf", writer.bytes());
    std::filesystem::resize_file(path, uint64_t{64} << 30);
    expect_refused(path, "key 0 'bad' claims 64424509440 elements");
}

}  // namespace
}  // namespace plait::gguf
