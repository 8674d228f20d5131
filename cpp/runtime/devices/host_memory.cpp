#include "runtime/devices/host_memory.h"

#include <algorithm>
#include <fstream>
#include <map>

namespace plait {
namespace {

// Returns the number in a file; UINT64_MAX if the file is missing or has a word instead ("max").
uint64_t limit_in(const std::string& path) {
    std::ifstream in(path);
    uint64_t bytes = 0;
    return in >> bytes ? bytes : UINT64_MAX;
}

// Returns the lower of the limits of a control group and of the group at the root of the mount,
// which is that of the container if the process runs in one.
uint64_t group_limit(const std::string& mount, const std::string& group, const std::string& file) {
    return std::min(limit_in(mount + group + "/" + file), limit_in(mount + "/" + file));
}

uint64_t control_group_limit(const std::string& root) {
    std::ifstream in(root + "/proc/self/cgroup");
    uint64_t limit = UINT64_MAX;
    for (std::string line; std::getline(in, line);) {  // "0::/path" or "4:memory:/path"
        const size_t kinds = line.find(':');
        const size_t path = line.find(':', kinds + 1);
        if (kinds == std::string::npos || path == std::string::npos) continue;
        const std::string kind = line.substr(kinds + 1, path - kinds - 1);
        const std::string group = line.substr(path + 1);
        if (kind.empty())
            limit = std::min(limit, group_limit(root + "/sys/fs/cgroup", group, "memory.max"));
        if (kind == "memory")
            limit = std::min(
                limit, group_limit(root + "/sys/fs/cgroup/memory", group, "memory.limit_in_bytes"));
    }
    return limit;
}

}  // namespace

HostMemory host_memory(const std::string& root) {
    std::ifstream in(root + "/proc/meminfo");
    std::map<std::string, uint64_t> bytes;
    std::string name;
    uint64_t kib = 0;
    while (in >> name >> kib) {
        bytes[name] = kib * 1024;
        in.ignore(64, '\n');
    }
    const uint64_t limit = control_group_limit(root);
    const uint64_t free = bytes["MemAvailable:"];
    return {std::min(free, limit), std::min(free + bytes["SwapFree:"], limit)};
}

}  // namespace plait
