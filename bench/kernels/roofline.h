// What one thread of this machine can do at most, measured when it is first asked for, and how near
// to that a benchmark comes.
#pragma once

#include <benchmark/benchmark.h>

#include "backend/cpu/isa.h"

namespace plait::cpu {

// The multiplications that a kernel is made of.
enum class Unit {
    f32,   // fused multiply-adds
    bf16,  // vdpbf16ps on AVX-512 without AMX, else as f32
    int8,  // tdpbssd on AMX; vpdpbusd on AVX-512; vpmaddubsw, vpmaddwd and an addition on AVX2
};

struct Limits {
    double read;    // bytes a second from memory
    double ops[3];  // multiplications and additions a second, by Unit
};

const Limits& limits(Isa isa);

// Sets the counters "bytes/s", "ops/s" and "limit": of the time that a round takes, the share that
// it would take at the limit of either. bytes: read from memory each round; 0 where caches hold
// them.
void beside_limit(benchmark::State& state, Isa isa, Unit unit, double bytes, double ops);

}  // namespace plait::cpu
