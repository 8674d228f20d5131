#include "gguf/reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "base/error.h"
#include "gguf/writer.h"

namespace plait::gguf {
namespace {

using test::GgufWriter;
using test::TempFolder;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

std::string counting(size_t size, int first = 0) {
    std::string bytes(size, '\0');
    for (size_t i = 0; i < size; ++i)
        bytes[i] = static_cast<char>(i * 7 + static_cast<size_t>(first));
    return bytes;
}

std::string read_all(const File& file, const TensorInfo& tensor) {
    std::string out(tensor.bytes, '\0');
    file.read(tensor, 0, std::as_writable_bytes(std::span(out)));
    return out;
}

std::string as_string(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

GgufWriter sample() {
    GgufWriter writer;
    writer.string("general.architecture", "llama")
        .number("u8", ValueType::u8, uint8_t{255})
        .number("i8", ValueType::i8, int8_t{-128})
        .number("u16", ValueType::u16, uint16_t{65535})
        .number("i16", ValueType::i16, int16_t{-32768})
        .number("u32", ValueType::u32, uint32_t{0xFFFFFFFF})
        .number("i32", ValueType::i32, int32_t{-5})
        .number("u64", ValueType::u64, uint64_t{1} << 40)
        .number("i64", ValueType::i64, -(int64_t{1} << 40))
        .number("f32", ValueType::f32, 0.25f)
        .number("f64", ValueType::f64, 1e300)
        .number("boolean", ValueType::boolean, true)
        .string("bytes", std::string("\0\xff\n", 3))
        .numbers<uint8_t>("array.u8", ValueType::u8, {1, 2})
        .numbers<int8_t>("array.i8", ValueType::i8, {-1, 2})
        .numbers<uint16_t>("array.u16", ValueType::u16, {1, 65535})
        .numbers<int16_t>("array.i16", ValueType::i16, {-1, 2})
        .numbers<uint32_t>("array.u32", ValueType::u32, {1, 2})
        .numbers<int32_t>("array.i32", ValueType::i32, {-1, 2})
        .numbers<uint64_t>("array.u64", ValueType::u64, {1, 2})
        .numbers<int64_t>("array.i64", ValueType::i64, {-1, 2})
        .numbers<float>("array.f32", ValueType::f32, {0.5f, 2})
        .numbers<double>("array.f64", ValueType::f64, {0.5, 2})
        .numbers<uint8_t>("array.boolean", ValueType::boolean, {0, 1})
        .numbers<uint32_t>("array.empty", ValueType::u32, {})
        .strings("array.string", {"", "b", "\xc3\xa9"});
    writer.tensor("a.weight", {3, 5}, DType::f32, counting(60))
        .tensor("b.weight", {256, 2, 1, 3}, DType::q6_k, counting(6 * 210, 1))
        .tensor("c.weight", {1}, DType::bf16, counting(2, 2));
    return writer;
}

class Reader : public testing::Test {
protected:
    std::shared_ptr<const File> open(const GgufWriter& writer, OpenOptions options = {}) {
        return File::open(folder_.write("model.gguf", writer.bytes()), options);
    }

    TempFolder folder_;
};

TEST_F(Reader, ReadsEveryValueTypeOfBothVersions) {
    for (const uint32_t version : {2u, 3u}) {
        GgufWriter writer = sample();
        writer.version = version;
        const auto file = open(writer);
        const Metadata& m = file->metadata();
        EXPECT_EQ(m.size(), writer.entries.size());
        size_t i = 0;
        for (const Entry& entry : m) EXPECT_EQ(entry.key, writer.entries[i++].key);
        EXPECT_EQ(m.string("general.architecture"), "llama");
        EXPECT_EQ(m.integer("u8"), 255);
        EXPECT_EQ(m.integer("i8"), -128);
        EXPECT_EQ(m.integer("u16"), 65535);
        EXPECT_EQ(m.integer("i16"), -32768);
        EXPECT_EQ(m.integer("u32"), 0xFFFFFFFF);
        EXPECT_EQ(m.integer("i32"), -5);
        EXPECT_EQ(m.integer("u64"), int64_t{1} << 40);
        EXPECT_EQ(m.integer("i64"), -(int64_t{1} << 40));
        EXPECT_EQ(m.real("f32"), 0.25);
        EXPECT_EQ(m.real("f64"), 1e300);
        EXPECT_TRUE(m.boolean("boolean"));
        EXPECT_EQ(m.string("bytes"), std::string("\0\xff\n", 3));
        for (const char* key : {"array.u8", "array.u32", "array.u64"}) {
            EXPECT_THAT(m.integers(key), ElementsAre(1, 2)) << key;
        }
        for (const char* key : {"array.i8", "array.i16", "array.i32", "array.i64"}) {
            EXPECT_THAT(m.integers(key), ElementsAre(-1, 2)) << key;
        }
        EXPECT_THAT(m.integers("array.u16"), ElementsAre(1, 65535));
        EXPECT_THAT(m.integers("array.empty"), ElementsAre());
        EXPECT_THAT(m.reals("array.f32"), ElementsAre(0.5f, 2.0f));
        EXPECT_THAT(m.reals("array.f64"), ElementsAre(0.5f, 2.0f));
        EXPECT_THAT(m.booleans("array.boolean"), ElementsAre(false, true));
        EXPECT_THAT(m.strings("array.string"), ElementsAre("", "b", "\xc3\xa9"));
    }
}

TEST_F(Reader, ReadsTensors) {
    for (const bool mmap : {false, true}) {
        const GgufWriter writer = sample();
        const auto file = open(writer, {.mmap = mmap});
        ASSERT_EQ(file->tensors().size(), 3u);
        const TensorInfo* b = file->find("b.weight");
        ASSERT_NE(b, nullptr);
        EXPECT_EQ(b, &file->tensors()[1]);
        EXPECT_EQ(b->type, (TensorType{DType::q6_k, {3, 1, 2, 256}}));
        EXPECT_EQ(b->bytes, 6u * 210);
        EXPECT_EQ(b->bytes, b->type.bytes());
        EXPECT_EQ(b->offset % 32, 0u);
        EXPECT_EQ(file->find("b.weigh"), nullptr);
        EXPECT_EQ(file->total_bytes(), 60u + 6 * 210 + 2);
        for (size_t i = 0; i < 3; ++i) {
            const TensorInfo& tensor = file->tensors()[i];
            EXPECT_EQ(tensor.name, writer.tensors[i].name);
            EXPECT_EQ(read_all(*file, tensor), writer.tensors[i].bytes);
            EXPECT_EQ(as_string(file->mapped(tensor)), mmap ? writer.tensors[i].bytes : "");
        }
        std::string part(10, '\0');
        file->read(*b, 1250, std::as_writable_bytes(std::span(part)));
        EXPECT_EQ(part, writer.tensors[1].bytes.substr(1250));
        EXPECT_THROW(file->read(*b, 1251, std::as_writable_bytes(std::span(part))), InternalError);
        EXPECT_THROW(file->read(*b, ~0ull, std::as_writable_bytes(std::span(part))), InternalError);
    }
}

TEST_F(Reader, ReadsEveryElementType) {
    GgufWriter writer;
    for (const DTypeInfo& type : all_dtypes()) {
        writer.tensor(std::string(type.name), {type.block_elements * 2, 3}, type.dtype,
                      counting(6 * type.block_bytes, static_cast<int>(type.gguf_id)));
    }
    const auto file = open(writer);
    for (size_t i = 0; i < writer.tensors.size(); ++i) {
        EXPECT_EQ(info(file->tensors()[i].type.dtype).name, writer.tensors[i].name);
        EXPECT_EQ(read_all(*file, file->tensors()[i]), writer.tensors[i].bytes);
    }
}

TEST_F(Reader, TensorsMayBeInAnyOrderWithGaps) {
    GgufWriter writer;
    writer.tensor("late", {8}, DType::f32, counting(32))
        .tensor("early", {8}, DType::f32, counting(32, 9));
    writer.tensors[0].offset = 4096;
    writer.tensors[1].offset = 0;
    const auto file = open(writer);
    EXPECT_EQ(read_all(*file, *file->find("late")), counting(32));
    EXPECT_EQ(read_all(*file, *file->find("early")), counting(32, 9));
}

TEST_F(Reader, AcceptsOtherAlignments) {
    for (const uint32_t alignment : {8u, 64u, 4096u}) {
        GgufWriter writer;
        writer.alignment = alignment;
        writer.number("general.alignment", ValueType::u32, alignment)
            .tensor("a", {1}, DType::f32, counting(4))
            .tensor("b", {1}, DType::f32, counting(4, 1));
        const auto file = open(writer);
        EXPECT_EQ(file->find("b")->offset - file->find("a")->offset, alignment);
        EXPECT_EQ(read_all(*file, *file->find("b")), counting(4, 1));
    }
}

TEST_F(Reader, OpensFilesWithoutTensors) {
    GgufWriter writer;
    writer.strings("tokenizer.ggml.tokens", {"a", "b"});
    const auto file = open(writer);
    EXPECT_TRUE(file->tensors().empty());
    EXPECT_EQ(file->total_bytes(), 0u);
    EXPECT_EQ(file->metadata().strings("tokenizer.ggml.tokens").size(), 2u);
    EXPECT_TRUE(open(GgufWriter{}, {.mmap = true})->tensors().empty());
}

TEST_F(Reader, ThreadsReadTogether) {
    GgufWriter writer;
    for (int i = 0; i < 16; ++i) {
        writer.tensor("t" + std::to_string(i), {4096}, DType::f32, counting(16384, i));
    }
    const auto file = open(writer);
    std::vector<std::thread> threads;
    std::atomic<int> wrong = 0;
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&] {
            for (size_t i = 0; i < 16; ++i) {
                wrong += read_all(*file, file->tensors()[i]) != writer.tensors[i].bytes;
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0);
}

TEST_F(Reader, FilesReplacedOrRemovedAfterOpeningStayReadable) {
    const GgufWriter writer = sample();
    const auto file = open(writer);
    folder_.write("other.gguf", "something else");
    std::filesystem::rename(folder_.file("other.gguf"), folder_.file("model.gguf"));
    EXPECT_EQ(read_all(*file, file->tensors()[1]), writer.tensors[1].bytes);
    std::filesystem::remove(folder_.file("model.gguf"));
    EXPECT_EQ(read_all(*file, file->tensors()[0]), writer.tensors[0].bytes);
}

TEST_F(Reader, FilesHaveDifferentIdentities) {
    const std::string identity = open(sample())->identity();
    EXPECT_EQ(File::open(folder_.file("model.gguf"))->identity(), identity);
    const std::string other = folder_.write("other.gguf", sample().bytes());
    EXPECT_NE(File::open(other)->identity(), identity);
}

TEST_F(Reader, HasTheSameFilesWhateverTheirName) {
    const auto file = open(sample());
    EXPECT_TRUE(file->has_same_files(*file));
    EXPECT_TRUE(file->has_same_files(*File::open(file->path())));
    EXPECT_TRUE(file->has_same_files(*File::open(file->path(), {.mmap = true})));
    const std::string renamed = folder_.file("renamed.gguf");
    std::filesystem::rename(file->path(), renamed);
    EXPECT_TRUE(file->has_same_files(*File::open(renamed)));
    const std::string copy = folder_.write("copy.gguf", sample().bytes());
    EXPECT_FALSE(file->has_same_files(*File::open(copy)));
}

TEST_F(Reader, DoesNotHaveTheSameFilesOnceOneWasReplacedOrWritten) {
    const auto file = open(sample());
    const auto replaced = open(sample());
    EXPECT_FALSE(file->has_same_files(*replaced));
    const auto before = std::filesystem::last_write_time(replaced->path());
    std::filesystem::last_write_time(replaced->path(), before + std::chrono::seconds(2));
    EXPECT_FALSE(replaced->has_same_files(*File::open(replaced->path())));
    std::filesystem::last_write_time(replaced->path(), before);
    EXPECT_TRUE(replaced->has_same_files(*File::open(replaced->path())));
    // Longer, but with the same modification time.
    std::filesystem::resize_file(replaced->path(), 2 * sample().bytes().size());
    std::filesystem::last_write_time(replaced->path(), before);
    EXPECT_FALSE(replaced->has_same_files(*File::open(replaced->path())));
}

TEST_F(Reader, AFileThatShrankIsRefused) {
    for (const bool mmap : {false, true}) {
        const auto file = open(sample(), {.mmap = mmap});
        std::filesystem::resize_file(file->path(), 1000);
        EXPECT_THAT([&] { read_all(*file, file->tensors()[2]); },
                    ThrowsMessage<ModelError>(
                        AllOf(HasSubstr("model.gguf"), HasSubstr("changed"), HasSubstr("1000"))));
    }
}

TEST_F(Reader, AFileWrittenInPlaceIsRefused) {
    const auto file = open(sample());
    const auto before = std::filesystem::last_write_time(file->path());
    std::filesystem::last_write_time(file->path(), before + std::chrono::seconds(2));
    EXPECT_THAT([&] { read_all(*file, file->tensors()[0]); },
                ThrowsMessage<ModelError>(HasSubstr("modified")));
}

GgufWriter shard(int number, int count) {
    GgufWriter writer;
    writer.number("split.count", ValueType::u16, static_cast<uint16_t>(count))
        .number("split.no", ValueType::u16, static_cast<uint16_t>(number))
        .number("split.tensors.count", ValueType::i32, int32_t{count * 2});
    if (number == 0) writer.string("general.architecture", "llama");
    for (int i = 0; i < 2; ++i) {
        writer.tensor("t" + std::to_string(number * 2 + i), {16}, DType::f32,
                      counting(64, number * 2 + i));
    }
    return writer;
}

class SplitReader : public Reader {
protected:
    std::string write(int number, const GgufWriter& writer) {
        return folder_.write("m-0000" + std::to_string(number + 1) + "-of-00003.gguf",
                             writer.bytes());
    }
    std::string write_all() {
        for (int i = 1; i < 3; ++i) write(i, shard(i, 3));
        return write(0, shard(0, 3));
    }
    void expect_refused(const std::string& path, const std::string& file, const std::string& why) {
        EXPECT_THAT([&] { File::open(path); },
                    ThrowsMessage<ModelError>(AllOf(HasSubstr(file), HasSubstr(why))));
    }
};

TEST_F(SplitReader, OpensEveryFileOfTheModel) {
    for (const bool mmap : {false, true}) {
        const auto file = File::open(write_all(), {.mmap = mmap});
        ASSERT_EQ(file->tensors().size(), 6u);
        for (int i = 0; i < 6; ++i) {
            const TensorInfo* tensor = file->find("t" + std::to_string(i));
            ASSERT_NE(tensor, nullptr);
            EXPECT_EQ(tensor->shard, static_cast<uint32_t>(i / 2));
            EXPECT_EQ(read_all(*file, *tensor), counting(64, i));
            EXPECT_EQ(as_string(file->mapped(*tensor)), mmap ? counting(64, i) : "");
        }
        EXPECT_EQ(file->metadata().string("general.architecture"), "llama");
        EXPECT_EQ(file->total_bytes(), 6u * 64);
    }
}

TEST_F(SplitReader, HasTheSameFilesIfEverySiblingIsTheSame) {
    const auto file = File::open(write_all());
    EXPECT_TRUE(file->has_same_files(*File::open(file->path())));
    const auto alone = open(sample());
    EXPECT_FALSE(file->has_same_files(*alone));
    EXPECT_FALSE(alone->has_same_files(*file));
    write(2, shard(2, 3));
    EXPECT_FALSE(file->has_same_files(*File::open(file->path())));
}

TEST_F(SplitReader, RequiresTheFirstFileAndItsSiblings) {
    const std::string first = write_all();
    expect_refused(folder_.file("m-00002-of-00003.gguf"), "00002-of", "open the first file");
    expect_refused(folder_.write("plain.gguf", shard(0, 3).bytes()), "plain.gguf",
                   "must end in -00001-of-00003.gguf");
    std::filesystem::remove(folder_.file("m-00003-of-00003.gguf"));
    expect_refused(first, "m-00003-of-00003.gguf", "cannot be opened");
}

TEST_F(SplitReader, RequiresMatchingSiblings) {
    const std::string first = write_all();
    write(2, shard(1, 3));
    expect_refused(first, "00003-of", "'split.no' is 1, expected 2");
    write(2, shard(2, 4));
    expect_refused(first, "00003-of", "'split.count' is 4, expected 3");
    GgufWriter repeated = shard(2, 3);
    repeated.tensors[1].name = "t0";
    write(2, repeated);
    expect_refused(first, "00003-of", "'t0' appears again");
    GgufWriter short_of_one = shard(2, 3);
    short_of_one.tensors.pop_back();
    write(2, short_of_one);
    expect_refused(first, "00001-of", "'split.tensors.count' is 6, but the files hold 5");
    GgufWriter wrong_type = shard(0, 3);
    wrong_type.entries[0] = {"split.count", static_cast<uint32_t>(ValueType::string),
                             test::raw_string("3")};
    expect_refused(write(0, wrong_type), "00001-of", "'split.count' holds string");
}

}  // namespace
}  // namespace plait::gguf
