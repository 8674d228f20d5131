// State files: atomic writes, and errors that contain the path.
#include "runtime/state/state_file.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "gguf/writer.h"
#include "runtime/context.h"
#include "support/failing_calls.h"
#include "support/tiny_model.h"

namespace plait {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

struct StateFiles : testing::Test {
    static ContextOptions small() {
        ContextOptions options;
        options.n_ctx = 64;
        options.n_seq_max = 3;
        options.threads = 1;
        return options;
    }
    static void feed(Context& to, SequenceId s, int n) {
        Batch batch;
        for (int i = 0; i < n; ++i) batch.add(3 + i, {}, std::span(&s, 1), i + 1 == n);
        to.session()->decode(batch.view());
    }
    static void save_file(const Context& from, const std::string& path,
                          std::optional<SequenceId> sequence) {
        FileBytes state;
        from.session()->save_state(sequence, [&](uint64_t n) {
            state = FileBytes(n);
            return state.all();
        });
        write_state_file(path, state.view());
    }
    static void load_file(const Context& to, const std::string& path,
                          std::optional<SequenceId> sequence) {
        const FileBytes state = read_state_file(path);
        to.session()->load_state(state.view(), sequence);
    }
    void expect_refused(auto call, const std::string& why) {
        EXPECT_THAT(call, ThrowsMessage<StateError>(HasSubstr(why)));
    }

    test::TempFolder folder;
    std::string path = folder.file("a.state");
    std::shared_ptr<const LoadedModel> model = test::TinyModel{}.open();
    Context context{model, small()};
    Context other{model, small()};
    StateFiles() {
        feed(context, 0, 20);
        feed(context, 1, 7);
    }
};

TEST_F(StateFiles, WhatIsSavedIsLoaded) {  // S3
    save_file(context, path, {});
    save_file(context, path, {});  // in place of an old one
    load_file(other, path, {});
    EXPECT_EQ(other.session()->memory().n_used(), 27);
    save_file(context, path, 1);
    load_file(other, path, 2);
    EXPECT_EQ(other.session()->seq_positions(2)->max, 6);
    std::filesystem::create_symlink(path, folder.file("link"));
    save_file(context, folder.file("link"), 0);
    EXPECT_TRUE(std::filesystem::is_symlink(folder.file("link")));
    other.session()->clear();
    load_file(other, path, {});
    EXPECT_EQ(other.session()->memory().n_used(), 20);
}

TEST_F(StateFiles, WhatCannotBeSavedOrLoadedIsNamed) {  // R10 S2
    const std::string pipe = folder.file("pipe");
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    expect_refused([&] { save_file(context, pipe, {}); }, "pipe: is not a regular file");
    expect_refused([&] { load_file(context, pipe, {}); }, "pipe: is not a regular file");
    expect_refused([&] { save_file(context, path + '\0', {}); }, "NUL byte");
    expect_refused([&] { save_file(context, folder.file("none/a"), {}); }, "cannot be written");
    expect_refused([&] { load_file(context, folder.file("none"), {}); }, "cannot be opened");
    ASSERT_EQ(::mkfifo((path + ".plait-tmp").c_str(), 0600), 0);
    expect_refused([&] { save_file(context, path, {}); }, "not a regular file");
    std::filesystem::remove(path + ".plait-tmp");
    save_file(context, path, {});
    std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
    expect_refused([&] { load_file(context, path, {}); }, "bytes, expected");
    EXPECT_EQ(context.session()->memory().n_used(), 27);
    EXPECT_THROW(save_file(context, path, 3), InvalidArgument);
    EXPECT_THROW(load_file(context, path, -1), StateError);
}

// The old file stays.
TEST_F(StateFiles, CallsThatTheSystemRefusesLeaveTheOldFile) {  // G8 S3
    using test::Call;
    save_file(context, path, {});
    const FileBytes old = read_state_file(path);
    for (const Call call :
         {Call::open, Call::fstat, Call::write, Call::fsync, Call::ftruncate, Call::rename}) {
        {
            const test::FailingCall refused(call, EIO);
            expect_refused([&] { save_file(context, path, 0); }, "a.state: cannot be");
        }
        EXPECT_TRUE(std::ranges::equal(read_state_file(path).view(), old.view()));
        // If fstat fails, the temporary file may belong to another writer, so it is kept.
        EXPECT_EQ(std::filesystem::exists(path + ".plait-tmp"), call == Call::fstat);
        std::filesystem::remove(path + ".plait-tmp");
    }
    for (const Call call : {Call::open, Call::fstat, Call::pread}) {
        const test::FailingCall refused(call, EIO);
        expect_refused([&] { load_file(other, path, {}); }, "a.state: cannot be");
    }
    {
        const test::FailingCall ended(Call::pread, 0, 1);
        expect_refused([&] { load_file(other, path, {}); }, "ends at byte 0");
    }
    EXPECT_EQ(other.session()->memory().n_used(), 0);
}

TEST_F(StateFiles, InterruptedCallsAreRetried) {  // S3
    using test::Call;
    for (const Call call : {Call::open, Call::write, Call::fsync}) {
        const test::FailingCall interrupted(call, EINTR, 0, 2);
        save_file(context, path, {});
    }
    {
        const test::FailingCall interrupted(Call::pread, EINTR, 0, 2);
        load_file(other, path, {});
    }
    {
        // Another writer renamed the temporary file: the first stat() finds no file.
        const test::FailingCall absent(Call::stat, ENOENT, 1, 1);
        save_file(context, path, {});
    }
    {
        // Failing to sync the directory is not an error, since the file has been replaced.
        const test::FailingCall refused(Call::open, EACCES, 1);
        save_file(context, path, 0);
    }
    load_file(other, path, {});
    EXPECT_EQ(other.session()->seq_positions(0)->max, 19);
    const auto here = std::filesystem::current_path();
    std::filesystem::current_path(std::filesystem::path(path).parent_path());
    save_file(context, "bare.state", {});
    std::filesystem::current_path(here);
    EXPECT_TRUE(std::filesystem::exists(folder.file("bare.state")));
}

TEST_F(StateFiles, TooLargeStatesThrowCacheFull) {
    save_file(context, path, {});
    ContextOptions options = small();
    options.kv_cells = 12;
    Context few(model, options);
    EXPECT_THAT([&] { load_file(few, path, {}); },
                ThrowsMessage<CacheFull>(HasSubstr("the cache has 12")));
    EXPECT_EQ(few.session()->memory().n_used(), 0);
}

TEST_F(StateFiles, CopiesCanBeRewoundAndDefragmented) {
    context.copy_state_to(other);
    context.copy_state_to(context);
    EXPECT_EQ(other.session()->memory().n_used(), 27);
    EXPECT_EQ(other.session()->rewind(0, 12), 12);
    EXPECT_EQ(other.session()->memory().n_used(), 19);
    EXPECT_THROW(other.session()->defrag(0), InvalidArgument);
    EXPECT_FALSE(other.session()->last_defrag());
    other.session()->defrag({});
    other.session()->defrag(5);
    EXPECT_TRUE(other.session()->last_defrag());
    EXPECT_LE(fragmentation(other.session()->memory().count_runs()), 1.0);
}

// A recurrent state cannot be truncated: rewind goes back to the state of a fork.
TEST(Rewind, UsesTheStateOfAFork) {
    const char* data = std::getenv("PLAIT_TEST_DATA");
    const auto file =
        std::filesystem::path(data ? data : "") / "conformance" / "jamba" / "model.gguf";
    if (!std::filesystem::exists(file)) GTEST_SKIP() << "no reference data";
    Context context(LoadedModel::open(file.string(), {}), StateFiles::small());
    StateFiles::feed(context, 0, 9);
    context.session()->seq_cp(0, 1, {});
    StateFiles::feed(context, 0, 5);
    EXPECT_EQ(context.session()->rewind(0, 12), 9);
    EXPECT_EQ(context.session()->seq_positions(0)->max, 8);
    EXPECT_EQ(context.session()->rewind(0, 4), 0);
}

}  // namespace
}  // namespace plait
