#include "backend/packed_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <stdexcept>
#include <thread>
#include <vector>

#include "backend/cpu/products/products.h"
#include "base/hash.h"
#include "base/text.h"
#include "gguf/writer.h"
#include "platform/memory.h"
#include "platform/process.h"

namespace plait::cpu {
namespace {

namespace fs = std::filesystem;

constexpr std::array<uint64_t, 4> kSizes = {5000, 0, 1, 300000};

// Writes bytes that count up, in parts, the last one first.
void count_up(const PackedFile::WriteAt& write, uint64_t bytes) {
    std::vector<std::byte> all(bytes);
    for (uint64_t i = 0; i < bytes; ++i) all[i] = static_cast<std::byte>(i % 251);
    const uint64_t middle = bytes / 3;
    write(middle, std::span(all).subspan(middle));
    write(0, std::span(all).first(middle));
}

bool counts_up(const std::byte* data, uint64_t bytes) {
    for (uint64_t i = 0; i < bytes; ++i)
        if (data[i] != static_cast<std::byte>(i % 251)) return false;
    return true;
}

struct PackedFiles : testing::Test {
    test::TempFolder folder;
    std::string path = folder.file("packed");

    std::unique_ptr<PackedFile> open(const std::string& identity = "a model",
                                     bool is_local = true) {
        return PackedFile::open(path, identity, kSizes, is_local);
    }
    const std::byte* fill(PackedFile& file, size_t i) {
        return file.fill(i, [i](const PackedFile::WriteAt& write) { count_up(write, kSizes[i]); });
    }
    std::vector<fs::path> files() const {
        std::vector<fs::path> found;
        for (const auto& file : fs::directory_iterator(path)) found.push_back(file.path());
        return found;
    }
};

TEST_F(PackedFiles, AnotherOpenFindsWhatWasFilled) {
    auto first = open();
    ASSERT_NE(first, nullptr);
    auto second = open();
    for (const size_t i : {size_t{0}, size_t{2}, size_t{3}}) EXPECT_EQ(first->find(i), nullptr);
    for (const size_t i : {size_t{3}, size_t{0}}) {
        const std::byte* data = fill(*first, i);
        ASSERT_NE(data, nullptr);
        EXPECT_EQ(first->find(i), data);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 4096, 0u);
        ASSERT_NE(second->find(i), nullptr);
        EXPECT_TRUE(counts_up(second->find(i), kSizes[i]));
    }
    EXPECT_EQ(second->find(2), nullptr);
    first.reset();
    second.reset();
    EXPECT_TRUE(counts_up(open()->find(3), kSizes[3]));
}

TEST_F(PackedFiles, TheFolderIsPrivate) {
    ASSERT_NE(open(), nullptr);
    struct stat status {};
    ASSERT_EQ(stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0700u);
    ASSERT_EQ(stat(files().front().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST_F(PackedFiles, OtherModelsHaveOtherFiles) {
    fill(*open("one"), 0);
    EXPECT_EQ(open("two")->find(0), nullptr);
    EXPECT_NE(open("one")->find(0), nullptr);
    EXPECT_EQ(files().size(), 2u);
}

TEST_F(PackedFiles, AFillThatFailsIsNotComplete) {
    auto file = open();
    EXPECT_THROW(file->fill(0,
                            [](const PackedFile::WriteAt& write) {
                                write(7, std::array{std::byte{1}});
                                throw std::runtime_error("no");
                            }),
                 std::runtime_error);
    EXPECT_EQ(file->find(0), nullptr);
    EXPECT_TRUE(counts_up(fill(*file, 0), kSizes[0]));
}

TEST_F(PackedFiles, AWriteThatTheSystemRefusesIsNotComplete) {
    auto file = open();
    const auto past_every_file = [](const PackedFile::WriteAt& write) {
        write(uint64_t{1} << 63, std::array{std::byte{1}});
    };
    EXPECT_EQ(file->fill(0, past_every_file), nullptr);
    EXPECT_EQ(file->find(0), nullptr);
    EXPECT_TRUE(counts_up(fill(*file, 0), kSizes[0]));
}

TEST_F(PackedFiles, ADeletedFileStaysReadable) {
    auto file = open();
    const std::byte* data = fill(*file, 3);
    fs::remove_all(path);
    EXPECT_TRUE(counts_up(data, kSizes[3]));
    EXPECT_TRUE(counts_up(fill(*file, 0), kSizes[0]));
    EXPECT_EQ(open()->find(3), nullptr);
}

TEST_F(PackedFiles, AFileOfAnotherSizeIsReplaced) {
    fill(*open(), 0);
    fs::resize_file(files().front(), 100);
    auto file = open();
    ASSERT_NE(file, nullptr);
    EXPECT_EQ(file->find(0), nullptr);
    EXPECT_TRUE(counts_up(fill(*file, 0), kSizes[0]));
}

TEST_F(PackedFiles, FilesOfEarlierBootsAreDeleted) {
    fs::create_directories(path);
    const std::string boot = "-00000000-0000-0000-0000-000000000000-1-2.packed";
    const fs::path old = fs::path(path) / text(checksum(platform::machine_identity()), boot);
    const fs::path of_another_machine = fs::path(path) / text(checksum("another machine"), boot);
    const fs::path other = fs::path(path) / "notes.txt";
    for (const fs::path& file : {old, of_another_machine, other}) std::ofstream(file) << "old";
    ASSERT_NE(open(), nullptr);
    EXPECT_FALSE(fs::exists(old));
    EXPECT_TRUE(fs::exists(of_another_machine));
    EXPECT_TRUE(fs::exists(other));
}

TEST_F(PackedFiles, FilesOfOtherBootsAreKeptForThirtyDaysWhereMachinesShareAFolder) {
    fs::create_directories(path);
    const std::string machine = platform::machine_identity();
    const std::string prefix = text(checksum(machine), "-00000000-0000-0000-0000-000000000000-");
    const fs::path used = fs::path(path) / (prefix + "1-2.packed");
    const fs::path unused = fs::path(path) / (prefix + "3-4.packed");
    for (const fs::path& file : {used, unused}) std::ofstream(file) << "old";
    const auto now = fs::file_time_type::clock::now();
    fs::last_write_time(used, now - std::chrono::days(29));
    fs::last_write_time(unused, now - std::chrono::days(31));
    ASSERT_NE(open("a model", false), nullptr);
    EXPECT_TRUE(fs::exists(used));
    EXPECT_EQ(fs::exists(unused), machine.empty());
}

TEST_F(PackedFiles, RefusesWhatCannotBeKept) {
    const std::string file = folder.write("file", {});
    EXPECT_EQ(PackedFile::open(file, "a", kSizes, true), nullptr);
    EXPECT_EQ(PackedFile::open("/proc/no/such/folder", "a", kSizes, true), nullptr);
    ASSERT_NE(open(), nullptr);
    const std::array<uint64_t, 1> huge = {PackedFile::kMaxFolderBytes + 1};
    EXPECT_EQ(PackedFile::open(path, "a", huge, true), nullptr);
    EXPECT_EQ(files().size(), 1u) << "files of other models are deleted for one that is not kept";
}

TEST_F(PackedFiles, ThreadsMayFillTheSameMatrix) {
    auto one = open(), other = open();
    std::vector<std::jthread> threads;
    for (PackedFile* file : {one.get(), other.get(), one.get()})
        threads.emplace_back([this, file] { EXPECT_TRUE(counts_up(fill(*file, 3), kSizes[3])); });
}

// A source whose packed copies are kept.
class Kept final : public WeightSource {
public:
    Kept(const WeightSource& weights, KeptCopies kept)
        : weights_(weights), kept_(std::move(kept)) {}
    size_t count() const override { return weights_.count(); }
    const std::string& name(WeightId id) const override { return weights_.name(id); }
    const TensorType& type(WeightId id) const override { return weights_.type(id); }
    void read(WeightId id, uint64_t begin, std::span<std::byte> target) const override {
        ++reads;
        weights_.read(id, begin, target);
    }
    KeptCopies kept_copies() const override { return kept_; }
    mutable std::atomic<int> reads = 0;

private:
    const WeightSource& weights_;
    KeptCopies kept_;
};

// Every type and instruction set: the second store reads nothing and holds the same bytes.
TEST_F(PackedFiles, AStorePacksOnlyWhatTheFileLacks) {
    for (const Isa isa : available_isas()) {
        for (const DType dtype : products::matrix_types()) {
            products::One one(isa, {dtype, {3, 37, 512}});
            const auto source = std::make_shared<Kept>(
                *one.source, KeptCopies{path, 0, std::string(info(dtype).name)});
            CpuWeights first(source, isa);
            const PackedWeight& plain = one.packed();
            const PackedWeight& packed = first.matrix(0, 2);
            const auto bytes = packed_bytes(packed);
            EXPECT_EQ(std::memcmp(packed.data, plain.data, bytes), 0);
            const int reads = source->reads;
            EXPECT_GT(reads, 0);
            CpuWeights second(source, isa);
            EXPECT_EQ(std::memcmp(second.matrix(0, 2).data, plain.data, bytes), 0);
            EXPECT_EQ(source->reads, reads);
            EXPECT_EQ(second.bytes(), first.bytes());
        }
    }
}

// Threads write slices of a huge page, which begin and end within panels.
TEST_F(PackedFiles, ASliceMayBeginWithinAPanel) {
    for (const Isa isa : available_isas()) {
        for (const TensorType& type :
             {TensorType{DType::f32, {2, 333, 1001}}, {DType::q8_0, {3, 1001, 1056}}}) {
            products::One one(isa, type);
            const auto source = std::make_shared<Kept>(
                *one.source, KeptCopies{path, 0, std::string(info(type.dtype).name)});
            const auto bytes = packed_bytes(one.packed());
            ASSERT_GT(bytes, platform::kHugePageBytes);
            CpuWeights kept(source, isa);
            EXPECT_EQ(std::memcmp(kept.matrix(0, 3).data, one.packed().data, bytes), 0);
        }
    }
}

TEST_F(PackedFiles, LargeMatricesBeginAtMultiplesOfAHugePage) {
    const std::array<uint64_t, 4> sizes = {5000, platform::kHugePageBytes, 5000,
                                           platform::kHugePageBytes + 1};
    auto file = PackedFile::open(path, "large", sizes, true);
    ASSERT_NE(file, nullptr);
    std::vector<const std::byte*> begins;
    for (size_t i = 0; i < sizes.size(); ++i)
        begins.push_back(
            file->fill(i, [&](const PackedFile::WriteAt& write) { count_up(write, sizes[i]); }));
    EXPECT_EQ((begins[3] - begins[1]) % platform::kHugePageBytes, 0u);
    for (size_t i = 0; i < sizes.size(); ++i) EXPECT_TRUE(counts_up(begins[i], sizes[i]));
}

TEST_F(PackedFiles, SmallModelsAreNotKept) {
    products::One one(available_isas().back(), {DType::f32, {16, 512}});
    const auto source = std::make_shared<Kept>(*one.source, KeptCopies{path, 1 << 20, "small"});
    CpuWeights store(source, available_isas().back());
    store.matrix(0, 1);
    EXPECT_FALSE(fs::exists(path));
}

}  // namespace
}  // namespace plait::cpu
