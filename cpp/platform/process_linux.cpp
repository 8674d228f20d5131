#if defined(__linux__)
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <utility>

#include "platform/process.h"

namespace plait::platform {
namespace {

int read_int(const std::string& path) {
    std::ifstream in(path);
    int value = -1;
    in >> value;
    return in ? value : -1;
}

// The number of CPUs that the control group's quota allows, or a large number if there is no quota.
double cgroup_cpus() {
    std::ifstream in("/sys/fs/cgroup/cpu.max");
    std::string quota;
    double period = 0;
    if (in >> quota >> period && quota != "max" && period > 0) return std::stod(quota) / period;
    const int old_quota = read_int("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
    const int old_period = read_int("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
    if (old_quota > 0 && old_period > 0) return static_cast<double>(old_quota) / old_period;
    return 1e9;
}

}  // namespace

std::string machine_identity() {
    std::string id;
    std::ifstream("/etc/machine-id") >> id;
    return id;
}

std::string boot_identity() {
    std::string id;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
    return id;
}

int usable_cores() {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    std::set<std::pair<int, int>> cores;
    int unknown = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
        if (!CPU_ISSET(cpu, &set)) continue;
        const std::string topology =
            "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
        const int core = read_int(topology + "core_id");
        if (core < 0)
            ++unknown;
        else
            cores.emplace(read_int(topology + "physical_package_id"), core);
    }
    const double usable = std::min(static_cast<double>(cores.size()) + unknown, cgroup_cpus());
    return std::max(1, static_cast<int>(std::floor(usable)));
}

}  // namespace plait::platform
#endif
