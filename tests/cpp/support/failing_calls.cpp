#include "support/failing_calls.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <optional>

namespace plait::test {
namespace {

struct Refusal {
    Call call;
    int error;
    int n_good;
    int n_times;
};
thread_local std::optional<Refusal> refusal;

// Sets errno where this call is to fail.
bool refused(Call call) {
    if (!refusal || refusal->call != call) return false;
    if (refusal->n_good > 0) {
        --refusal->n_good;
        return false;
    }
    if (refusal->n_times == 0) return false;
    --refusal->n_times;
    errno = refusal->error;
    return true;
}

int failure() { return refusal->error == 0 ? 0 : -1; }

template <typename Function>
Function* real(const char* name) {
    return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

FailingCall::FailingCall(Call call, int error, int n_good, int n_times) {
    refusal = Refusal{call, error, n_good, n_times};
}

FailingCall::~FailingCall() { refusal.reset(); }

}  // namespace plait::test

using plait::test::Call, plait::test::failure, plait::test::real, plait::test::refused;

extern "C" {

int open(const char* path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    const int mode = (flags & O_CREAT) != 0 ? va_arg(arguments, int) : 0;
    va_end(arguments);
    if (refused(Call::open)) return failure();
    static auto* const call = real<int(const char*, int, ...)>("open");
    return call(path, flags, mode);
}

int stat(const char* path, struct stat* status) noexcept {
    if (refused(Call::stat)) return failure();
    static auto* const call = real<int(const char*, struct stat*)>("stat");
    return call(path, status);
}

int fstat(int fd, struct stat* status) noexcept {
    if (refused(Call::fstat)) return failure();
    static auto* const call = real<int(int, struct stat*)>("fstat");
    return call(fd, status);
}

ssize_t pread(int fd, void* target, size_t bytes, off_t offset) {
    if (refused(Call::pread)) return failure();
    static auto* const call = real<ssize_t(int, void*, size_t, off_t)>("pread");
    return call(fd, target, bytes, offset);
}

ssize_t write(int fd, const void* source, size_t bytes) {
    if (refused(Call::write)) return failure();
    static auto* const call = real<ssize_t(int, const void*, size_t)>("write");
    return call(fd, source, bytes);
}

int fsync(int fd) {
    if (refused(Call::fsync)) return failure();
    static auto* const call = real<int(int)>("fsync");
    return call(fd);
}

int ftruncate(int fd, off_t bytes) noexcept {
    if (refused(Call::ftruncate)) return failure();
    static auto* const call = real<int(int, off_t)>("ftruncate");
    return call(fd, bytes);
}

int rename(const char* from, const char* to) noexcept {
    if (refused(Call::rename)) return failure();
    static auto* const call = real<int(const char*, const char*)>("rename");
    return call(from, to);
}

}  // extern "C"
