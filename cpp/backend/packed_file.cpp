#include "backend/packed_file.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

#include "base/checked.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/text.h"
#include "platform/memory.h"
#include "platform/process.h"

namespace plait {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kAlignment = 65536;  // of regions; a multiple of every page size
constexpr std::string_view kSuffix = ".packed";
constexpr auto kUnusedAfter = std::chrono::days(30);

// The names of files begin with the machine and its boot.
std::string prefix_of_machine() { return text(checksum(platform::machine_identity()), "-"); }

std::string file_name(const std::string& boot, const std::string& identity) {
    return text(prefix_of_machine(), boot, "-", checksum(identity), "-",
                checksum(text("again ", identity)), kSuffix);
}

struct Entry {
    fs::path path;
    uint64_t bytes;
    fs::file_time_type opened;
    bool of_this_boot;
};

// Returns the files that this machine may delete. Containers of one image are different machines
// with the same identity, so that the boot of a file may be the present one of another machine.
std::vector<Entry> deletable_files(const fs::path& folder, const std::string& boot, bool is_local) {
    const std::string prefix = prefix_of_machine(), prefix_of_boot = prefix + boot;
    const bool has_identity = !platform::machine_identity().empty();
    const auto last_use = fs::file_time_type::clock::now() - kUnusedAfter;
    std::vector<Entry> found;
    for (const fs::directory_entry& file : fs::directory_iterator(folder)) {
        std::error_code error;
        platform::FileStatus status;
        const std::string name = file.path().filename().string();
        if (file.path().extension() != kSuffix || !name.starts_with(prefix) ||
            platform::status_of(file.path().string(), &status) != 0)
            continue;  // deleted meanwhile, or not ours
        const bool of_this_boot = name.starts_with(prefix_of_boot);
        const auto opened = file.last_write_time(error);
        if (!error && (of_this_boot || is_local || (has_identity && opened < last_use)))
            found.push_back({file.path(), status.bytes_on_disk, opened, of_this_boot});
    }
    return found;
}

// Deletes files of other boots, then those opened longest ago, until `needed` more bytes fit.
// Processes that have mapped a deleted file keep it. Returns false, and deletes nothing, if so many
// bytes are not kept.
bool make_room(const fs::path& folder, const std::string& boot, bool is_local, uint64_t needed) {
    std::vector<Entry> files = deletable_files(folder, boot, is_local);
    std::ranges::sort(files, {}, &Entry::opened);
    uint64_t used = 0, freed = 0;
    for (const Entry& file : files) used += file.bytes;
    std::vector<fs::path> unneeded;
    for (const Entry& file : files) {
        if (file.of_this_boot && used - freed + needed <= PackedFile::kMaxFolderBytes) continue;
        unneeded.push_back(file.path);
        freed += file.bytes;
    }
    const uint64_t free = fs::space(folder).available + freed;
    const uint64_t most = std::min(PackedFile::kMaxFolderBytes, free / 2);
    if (needed > most) {
        log(LogLevel::info,
            text(folder.string(), ": packed weights of ", needed, " bytes are not kept; at most ",
                 most, " are, half of the free space or the limit of the folder"));
        return false;
    }
    std::error_code ignored;
    for (const fs::path& file : unneeded) fs::remove(file, ignored);
    return true;
}

// Throws unless `error` is 0.
void check(int error, const std::string& path, const char* what) {
    if (error != 0) throw std::system_error(error, std::generic_category(), text(path, ": ", what));
}

int error_unless(const void* mapped) { return mapped ? 0 : errno; }

}  // namespace

std::unique_ptr<PackedFile> PackedFile::open(const std::string& folder, const std::string& identity,
                                             std::span<const uint64_t> bytes, bool is_local) try {
    const std::string boot = platform::boot_identity();
    // Of the library or program that contains this code, whose packing the file has.
    const std::string library =
        platform::library_identity(reinterpret_cast<const void*>(&file_name));
    if (boot.empty() || library.empty()) return nullptr;
    std::unique_ptr<PackedFile> file(new PackedFile);
    uint64_t end = align_up(bytes.size(), kAlignment), matrices = 0;
    for (const uint64_t n : bytes) {
        if (n >= platform::kHugePageBytes) end = align_up(end, platform::kHugePageBytes);
        file->regions_.push_back({end, n});
        end += align_up(n, kAlignment);
        matrices += n;
    }
    file->size_ = end;

    if (fs::create_directories(folder)) fs::permissions(folder, fs::perms::owner_all);
    const fs::path path = fs::path(folder) / file_name(boot, text(identity, " ", library));
    if (!fs::exists(path) && !make_room(folder, boot, is_local, matrices)) return nullptr;
    if (!file->map(path.string())) {
        // Another version of this format has left it.
        fs::remove(path);
        if (!file->map(path.string())) return nullptr;
    }
    return file;
} catch (const std::system_error& error) {
    log(LogLevel::info, text("packed weights are not kept: ", error.what()));
    return nullptr;
}

// Returns false if the file exists with another size.
bool PackedFile::map(const std::string& path) {
    check(file_.open(path, platform::File::Access::write_private), path, "cannot be opened");
    platform::FileStatus status;
    check(file_.status(&status), path, "cannot be inspected");
    check(status.belongs_to_user ? 0 : EPERM, path, "belongs to another user");
    // Two processes that create the file give it the same size.
    if (status.bytes == 0) check(file_.resize(size_), path, "cannot be extended");
    if (status.bytes != 0 && status.bytes != size_) return false;
    file_.touch();  // make_room deletes the least recently opened
    table_ = file_.map_shared(0, table_bytes(), true);
    check(error_unless(table_), path, "cannot be mapped");
    check(file_.reserve(0, table_bytes()), path, "cannot be extended");
    data_ = file_.map_shared(0, size_, false);
    check(error_unless(data_), path, "cannot be mapped");
    return true;
}

PackedFile::~PackedFile() {
    if (data_) platform::unmap(data_, size_);
    if (table_) platform::unmap(table_, table_bytes());
}

const std::byte* PackedFile::find(size_t i) const {
    const auto complete = std::atomic_ref(table_[i]).load(std::memory_order_acquire);
    return complete == std::byte{1} ? data_ + regions_[i].begin : nullptr;
}

// The matrix is written by calls to the system, because a page that is written through a mapping is
// cleared first (docs/decisions/0046).
const std::byte* PackedFile::fill(size_t i, const std::function<void(const WriteAt&)>& write) try {
    const auto [begin, bytes] = regions_[i];
    if (file_.reserve(begin, bytes) != 0) return nullptr;
    write([&, first = begin](uint64_t offset, std::span<const std::byte> part) {
        const int error = file_.write_at(first + offset, part);
        if (error != 0) throw std::system_error(error, std::generic_category());
    });
    std::atomic_ref(table_[i]).store(std::byte{1}, std::memory_order_release);
    return find(i);
} catch (const std::system_error& error) {
    log(LogLevel::info, text("packed weights are not kept: ", error.what()));
    return nullptr;
}

}  // namespace plait
