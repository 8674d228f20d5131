// What every CPU kernel is handed. Plain C types only: this header is compiled for every
// instruction set, and a standard template instantiated there could be the copy that the linker
// keeps for everyone.
#pragma once

#include <stdint.h>

#include "backend/cpu/kernels/claim.h"
#include "base/inline.h"

namespace plait::cpu {

// The bytes a run brings along. A Ref finds its first byte by one addition.
enum Base : uint8_t { kFixed, kArena, kInputs, kOutput0, kOutput1, kBases };

struct Ref {
    uint64_t offset = 0;  // from the base; an address where the base is kFixed
    uint8_t base = kFixed;
};

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
    PLAIT_INLINE_MEMBER int64_t rows(uint8_t extent,
                                     int64_t fixed) const {  // extent: plait::Extent
        return extent == 1 ? n_tokens : extent == 2 ? n_outputs : extent == 3 ? n_moves : fixed;
    }
};

// One thread's part of a step.
struct Worker {
    int32_t index;           // 0 .. n_threads - 1
    unsigned char* scratch;  // 64-byte aligned; what the step's scratch_bytes asked for
    Claim* claim = nullptr;  // of the tasks, where another thread may take them over
};

// A kernel and the function that counts its tasks, with the type of their arguments erased: a plan
// holds kernels of every type in one list. Which thread runs which tasks never changes a bit of the
// result.
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
