// What every CPU kernel receives. Plain C types only: this header is compiled for every instruction
// set, and the linker could keep the copy of a standard template that was compiled for the newest
// one.
#pragma once

#include <stdint.h>

#include "base/inline.h"
#include "graph/op_enums.h"

namespace plait::cpu {

class Claim;

// The memory blocks of a run. A Ref finds its first byte with one addition.
enum Base : uint8_t { kFixed, kArena, kInputs, kOutput0, kOutput1, kBases };

struct Ref {
    uint64_t offset = 0;  // from the base, in bytes; an address if the base is kFixed
    uint8_t base = kFixed;
};

// True if a thread that the operating system has suspended may still read the memory after the run:
// the arena and the inputs live until no thread reads them (Threads::settle), but the caller may
// free outputs.
PLAIT_INLINE bool outlives_run(Ref ref) { return ref.base == kArena || ref.base == kInputs; }

struct Frame {
    unsigned char* base[kBases];  // base[kFixed] is null
    int32_t n_tokens;
    int32_t n_outputs;
    int32_t n_sequences;
    int32_t n_moves;

    template <typename T>
    PLAIT_INLINE_MEMBER T* at(Ref ref) const {
        return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(base[ref.base]) + ref.offset);
    }
    // The rows of a value in this run.
    PLAIT_INLINE_MEMBER int64_t rows(Extent extent, int64_t fixed) const {
        switch (extent) {
        case Extent::tokens: return n_tokens;
        case Extent::outputs: return n_outputs;
        case Extent::moves: return n_moves;
        case Extent::fixed: break;
        }
        return fixed;
    }
};

// The vectors along the last axis of an operand, and how kernels cut them into tasks.
struct Vectors {
    Extent extent;
    int64_t fixed_rows;
    int64_t per_row;  // vectors in a row of the extent: heads, or 1
    int64_t width;    // elements of a vector
};

PLAIT_INLINE int64_t vectors_per_task(const Vectors& v) {
    constexpr int64_t kTaskElements = 4096;
    return v.width < kTaskElements ? kTaskElements / v.width : 1;
}
PLAIT_INLINE int64_t count_vectors(const Vectors& v, const Frame& frame) {
    return frame.rows(v.extent, v.fixed_rows) * v.per_row;
}
PLAIT_INLINE int64_t vector_tasks(const Vectors& v, const Frame& frame) {
    return (count_vectors(v, frame) + vectors_per_task(v) - 1) / vectors_per_task(v);
}

// Vectors begin <= v < end.
struct VectorRange {
    int64_t begin, end;
};

// The vectors of tasks begin <= task < end.
PLAIT_INLINE VectorRange vectors_in(const Vectors& v, const Frame& frame, int64_t begin,
                                    int64_t end) {
    const int64_t per_task = vectors_per_task(v);
    const int64_t all = count_vectors(v, frame);
    return {begin * per_task, end * per_task < all ? end * per_task : all};
}

// The thread that runs a kernel.
struct Worker {
    int32_t index;           // 0 .. n_threads - 1
    unsigned char* scratch;  // 64-byte aligned, of the size that was requested for the kernel
    Claim* claim = nullptr;  // on the tasks, if another thread may take them over
};

// A kernel and the function that counts its tasks, with the type of their arguments erased: a plan
// holds kernels of every type in one list. Tasks are counted before the run, from inputs alone. The
// split of tasks among threads never changes a result.
struct Kernel {
    // Runs tasks begin <= task < end.
    void (*run)(const void* args, const Frame& frame, const Worker& worker, int64_t begin,
                int64_t end);
    int64_t (*tasks)(const void* args, const Frame& frame);
};

// A kernel that takes Args: the compiler checks what is passed to it.
template <class Args>
struct KernelOf : Kernel {};

// kErased<f> calls f(const Args&, rest...) with the arguments behind a `const void*`. This is the
// only place that casts them.
template <auto f>
struct Erase;
template <class Result, class Args, class... Rest, Result (*f)(const Args&, Rest...)>
struct Erase<f> {
    static Result call(const void* args, Rest... rest) {
        return f(*static_cast<const Args*>(args), rest...);
    }
};
template <auto f>
constexpr auto kErased = &Erase<f>::call;

}  // namespace plait::cpu
