// Failing system calls: errors name the file, and no descriptor is leaked.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "gguf/reader.h"
#include "gguf/writer.h"
#include "support/failing_calls.h"

namespace plait::gguf {
namespace {

using test::Call;
using test::FailingCall;
using test::GgufWriter;
using test::TempFolder;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

size_t n_open_files() {
    const auto files = std::filesystem::directory_iterator("/proc/self/fd");
    return static_cast<size_t>(std::distance(begin(files), end(files)));
}

struct FileCalls : testing::Test {
    TempFolder folder;
    // A string and an array longer than one read.
    std::string path = [this] {
        GgufWriter writer;
        writer.string("long", std::string(400'000, 'x'));
        writer.numbers("many", ValueType::u32, std::vector<uint32_t>(200'000, 7));
        writer.tensor("a", {8}, DType::f32, std::string(32, 'a'));
        return folder.write("m.gguf", writer.bytes());
    }();
    size_t n_before = n_open_files();
    std::vector<std::byte> target = std::vector<std::byte>(32);

    void expect_refused(auto call, const std::string& why) {
        EXPECT_THAT(call, ThrowsMessage<ModelError>(AllOf(HasSubstr("m.gguf: "), HasSubstr(why))));
        EXPECT_EQ(n_open_files(), n_before);
    }
};

TEST_F(FileCalls, InterruptedCallsAreRepeated) {
    for (const Call call : {Call::open, Call::pread}) {
        const FailingCall interrupted(call, EINTR, 0, 2);
        EXPECT_EQ(File::open(path)->tensors().size(), 1u);
    }
}

TEST_F(FileCalls, FailuresAtOpeningNameTheFile) {
    {
        const FailingCall refused(Call::open, EMFILE);
        expect_refused([&] { File::open(path); }, "cannot be opened: Too many");
    }
    for (const int n_good : {0, 1}) {
        const FailingCall refused(Call::fstat, EIO, n_good);
        expect_refused([&] { File::open(path); }, "cannot be inspected: Input/output");
    }
    // At the start, in the middle of the string, and in the middle of the array.
    for (const int n_good : {0, 1, 2, 3}) {
        const FailingCall refused(Call::pread, EIO, n_good);
        expect_refused([&] { File::open(path); },
                       "cannot be read at byte " + std::to_string(n_good << 18));
        const FailingCall ended(Call::pread, 0, n_good);
        expect_refused([&] { File::open(path); }, "ends at byte");
    }
}

TEST_F(FileCalls, LaterFailuresNameTheFile) {
    const auto file = File::open(path);
    n_before = n_open_files();
    const TensorInfo& tensor = file->tensors()[0];
    {
        const FailingCall refused(Call::fstat, EIO);
        expect_refused([&] { file->read(tensor, 0, target); }, "cannot be inspected");
    }
    {
        const FailingCall refused(Call::pread, EIO);
        expect_refused([&] { file->read(tensor, 0, target); }, "cannot be read at byte");
    }
    file->read(tensor, 0, target);
    EXPECT_EQ(target[31], std::byte{'a'});
}

TEST_F(FileCalls, SecondsAndNanosecondsBothRevealAChange) {
    const auto file = File::open(path);
    struct stat status {};
    ASSERT_EQ(::stat(path.c_str(), &status), 0);
    const timespec was = status.st_mtim;
    const timespec next = {was.tv_sec, (was.tv_nsec + 1) % 1'000'000'000};
    for (const timespec now : {next, timespec{was.tv_sec + 1, was.tv_nsec}}) {
        const timespec times[2] = {{0, UTIME_OMIT}, now};
        ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
        EXPECT_THAT([&] { file->read(file->tensors()[0], 0, target); },
                    ThrowsMessage<ModelError>(HasSubstr("it was modified")));
    }
    const timespec times[2] = {{0, UTIME_OMIT}, was};
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
    file->read(file->tensors()[0], 0, target);
}

TEST_F(FileCalls, EmptyFilesMapAndFailingMapsAreErrors) {
    expect_refused([&] { File::open(folder.write("m.gguf", ""), {.mmap = true}); }, "cut short");
    GgufWriter writer;
    writer.tensor("a", {8}, DType::f32, std::string(32, 'a'));
    path = folder.write("m.gguf", writer.bytes());
    {
        const auto file = File::open(path, {.mmap = true});
        file->read(file->tensors()[0], 32, {});
    }
    // More than the remaining address space.
    std::filesystem::resize_file(path, uint64_t{1} << 31);
    uint64_t n_pages = 0;
    std::ifstream("/proc/self/statm") >> n_pages;
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
    const auto most = n_pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)) + (1u << 28);
    const rlimit little = {most, before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_AS, &little), 0);
    expect_refused([&] { File::open(path, {.mmap = true}); }, "cannot be mapped");
    ASSERT_EQ(::setrlimit(RLIMIT_AS, &before), 0);
}

}  // namespace
}  // namespace plait::gguf
