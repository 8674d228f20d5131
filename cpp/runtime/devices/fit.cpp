#include "runtime/devices/fit.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace plait {

uint64_t free_memory() {
    std::ifstream in("/proc/meminfo");
    std::string name;
    uint64_t kib = 0;
    while (in >> name >> kib) {
        if (name == "MemAvailable:") return kib * 1024;
        in.ignore(64, '\n');
    }
    return 0;
}

int64_t fitting_n_ctx(const MemorySpecs& specs, const MemoryOptions& options, int64_t n_ctx_train) {
    const int64_t wanted = n_ctx_train > 0 ? n_ctx_train : 512;
    const uint64_t max_bytes = free_memory() / 2;
    const auto bytes = [&](int64_t n_ctx) {
        MemoryOptions trial = options;
        trial.n_ctx = n_ctx;
        return make_memory(specs, trial)->layout().bytes();
    };
    if (max_bytes == 0 || bytes(wanted) <= max_bytes) return wanted;
    int64_t fits = 1, too_many = wanted;
    while (too_many - fits > 1) {
        const int64_t middle = fits + (too_many - fits) / 2;
        (bytes(middle) <= max_bytes ? fits : too_many) = middle;
    }
    return fits;
}

}  // namespace plait
