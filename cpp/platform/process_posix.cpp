#if !defined(_WIN32)
#include <dlfcn.h>
#include <unistd.h>

#include "base/text.h"
#include "platform/file.h"
#include "platform/process.h"

namespace plait::platform {

int64_t process_id() { return ::getpid(); }

std::string library_identity(const void* code) {
    Dl_info found{};
    FileStatus status;
    if (::dladdr(code, &found) == 0 || status_of(found.dli_fname, &status) != 0) return {};
    return text(status.device, ":", status.inode, ":", status.bytes, ":", status.changed.seconds,
                ".", status.changed.nanoseconds);
}

}  // namespace plait::platform
#endif
