#include "backend/cpu/blas/library.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "platform/library.h"
#include "platform/memory.h"

namespace plait::cpu {
namespace {

constexpr const char* kNames[] = {
#if defined(_WIN32)
    "libopenblas.dll",
#elif defined(__APPLE__)
    "libopenblas.0.dylib",
    "libopenblas.dylib",
    "/opt/homebrew/opt/openblas/lib/libopenblas.0.dylib",
#else
    "libopenblasp.so.0",  // Fedora, whose libopenblas.so.0 is the variant without threads
    "libopenblas.so.0",
    "libopenblas.so",
#endif
};

// OpenBLAS maps a buffer for each call that runs at the same time as others, and one for each
// thread that it starts. If the system refuses, it retries for ever, so this maps them first.
constexpr uint64_t kBufferBytes = uint64_t{128} << 20;

bool can_map_buffers(unsigned n) {
    std::vector<std::byte*> buffers(n);
    for (std::byte*& buffer : buffers) buffer = platform::map_memory(kBufferBytes);
    const bool mapped = std::ranges::find(buffers, nullptr) == buffers.end();
    for (std::byte* buffer : buffers)
        if (buffer) platform::unmap_memory(buffer, kBufferBytes);
    return mapped;
}

// Limits the calls of OpenBLAS that run at the same time to those for which it has buffers.
class Calls {
public:
    void set_max(int max) { max_.store(max); }
    void begin() {
        for (;;) {
            int free = free_.load();
            while (free > 0)
                if (free_.compare_exchange_weak(free, free - 1)) return;
            if (add_buffer()) return;
            free_.wait(0);
        }
    }
    void end() {
        free_.fetch_add(1);
        free_.notify_one();
    }
    // Calls of other threads do not end in a child process.
    void forget_running() {
        buffers_.store(1);
        free_.store(1);
    }

private:
    // Returns whether the caller may begin a call with a new buffer.
    bool add_buffer() {
        int buffers = buffers_.load();
        do {
            if (buffers >= max_) return false;
        } while (!buffers_.compare_exchange_weak(buffers, buffers + 1));
        if (can_map_buffers(1)) return true;
        buffers_.fetch_sub(1);
        return false;
    }

    std::atomic<int> max_{1};
    std::atomic<int> buffers_{1};
    std::atomic<int> free_{1};  // buffers that no call uses
};

constinit Calls g_calls;

// What openblas_get_parallel() returns.
enum Threading { kSerial, kThreads, kOpenMp };

struct OpenBlas {
    void (*sgemm)(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha,
                  const float* a, int lda, const float* b, int ldb, float beta, float* c,
                  int ldc) = nullptr;
    void (*set_num_threads)(int) = nullptr;
    char* (*get_config)() = nullptr;
    int (*get_parallel)() = nullptr;

    std::string description;
    const char* problem = "it is not installed, or cannot be loaded";
    bool is_shared = false;  // other code of the process loaded it first
};

template <typename Function>
bool find(const platform::Library& library, const char* name, Function** target) {
    *target = reinterpret_cast<Function*>(platform::find_symbol(library, name));
    return *target != nullptr;
}

// Returns why the functions cannot be used; null if they can.
const char* check(OpenBlas& blas) {
    const char* description = blas.get_config();
    blas.description = description ? description : "";
    if (!blas.description.starts_with("OpenBLAS ")) return "the library found is not OpenBLAS";
    if (blas.description.find("USE64BITINT") != std::string::npos)
        return "the library found is a variant with 64-bit integers";
    // With more calls at once, OpenBLAS runs out of buffers and ends the process. The variant
    // without threads may have been built without locks.
    constexpr std::string_view kMaxThreads = "MAX_THREADS=";
    const size_t at = blas.description.find(kMaxThreads);
    if (blas.get_parallel() != kSerial && at != std::string::npos)
        g_calls.set_max(std::max(1, std::atoi(&blas.description[at + kMaxThreads.size()])));
    return nullptr;
}

// Ends the threads that OpenBLAS started while it was loaded.
void stop_threads(const platform::Library& library, const OpenBlas& blas) {
    blas.set_num_threads(1);
    int (*shutdown)() = nullptr;
    if (find(library, "blas_thread_shutdown_", &shutdown)) shutdown();
}

// Limits OpenBLAS to the calling thread. Does nothing if stop_threads() did so.
void limit_threads(const OpenBlas& blas) {
    // The limit is one of the process or, with OpenMP, of the calling thread.
    thread_local bool is_limited = !blas.is_shared && blas.get_parallel() != kOpenMp;
    if (is_limited) return;
    static std::mutex mutex;  // OpenBLAS allocates and frees buffers here, without a lock
    const std::lock_guard lock(mutex);
    blas.set_num_threads(1);
    is_limited = true;
}

OpenBlas load() {
    OpenBlas blas;
    // One buffer for each of its threads, and one for the first call.
    if (!can_map_buffers(std::thread::hardware_concurrency() + 1)) {
        blas.problem = "there is too little address space for its buffers";
        return blas;
    }
    for (const char* name : kNames) {
        const platform::Library library = platform::load_library(name);
        if (!library.handle) continue;
        if (find(library, "cblas_sgemm", &blas.sgemm) &&
            find(library, "openblas_set_num_threads", &blas.set_num_threads) &&
            find(library, "openblas_get_config", &blas.get_config) &&
            find(library, "openblas_get_parallel", &blas.get_parallel))
            blas.problem = check(blas);
        else
            blas.problem = "the library found lacks functions of OpenBLAS";
        if (blas.problem) continue;
        blas.is_shared = library.was_loaded;
        if (!blas.is_shared && blas.get_parallel() == kThreads) stop_threads(library, blas);
        platform::on_fork_in_child([] { g_calls.forget_running(); });
        break;
    }
    return blas;
}

const OpenBlas& openblas() {
    // Not destroyed, since threads may compute while the process exits.
    static const OpenBlas& found = *new OpenBlas(load());
    return found;
}

}  // namespace

const char* openblas_description() {
    return openblas().problem ? nullptr : openblas().description.c_str();
}

const char* openblas_problem() { return openblas().problem; }

void multiply_by_openblas(int rows, int outputs, int columns, const float* x, const float* w,
                          float* y) {
    constexpr int kRowMajor = 101, kNoTranspose = 111, kTranspose = 112;
    limit_threads(openblas());
    g_calls.begin();
    openblas().sgemm(kRowMajor, kNoTranspose, kTranspose, rows, outputs, columns, 1.0f, x, columns,
                     w, columns, 1.0f, y, outputs);
    g_calls.end();
}

}  // namespace plait::cpu
