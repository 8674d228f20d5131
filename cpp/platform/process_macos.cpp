#if defined(__APPLE__)
#include <sys/sysctl.h>
#include <sys/time.h>

#include <algorithm>

#include "base/text.h"
#include "platform/process.h"

namespace plait::platform {

std::string machine_identity() {
    char id[64] = {};
    size_t size = sizeof id - 1;
    if (sysctlbyname("kern.uuid", id, &size, nullptr, 0) != 0) return {};
    return id;
}

std::string boot_identity() {
    timeval boot{};
    size_t size = sizeof boot;
    if (sysctlbyname("kern.boottime", &boot, &size, nullptr, 0) != 0) return {};
    return text(boot.tv_sec, "-", boot.tv_usec);
}

// The performance cores of Apple silicon: tasks of equal size would wait for the others.
int usable_cores() {
    for (const char* name : {"hw.perflevel0.physicalcpu", "hw.physicalcpu"}) {
        int cores = 0;
        size_t size = sizeof cores;
        if (sysctlbyname(name, &cores, &size, nullptr, 0) == 0 && cores > 0) return cores;
    }
    return 1;
}

}  // namespace plait::platform
#endif
