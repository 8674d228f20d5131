// The peak rates of one thread of this machine, measured on first use, and how close a benchmark
// comes to them.
#pragma once

#include <benchmark/benchmark.h>

#include "backend/cpu/isa.h"

namespace plait::cpu {

// The multiplications that a kernel uses.
enum class Unit {
    f32,   // fused multiply-adds
    bf16,  // tdpbf16ps on AMX, vdpbf16ps on AVX-512, otherwise as f32
    int8,  // tdpbssd on AMX; vpdpbusd on AVX-512; vpmaddubsw, vpmaddwd and an addition on AVX2
};

struct Limits {
    double read;    // bytes per second from memory
    double ops[3];  // multiplications and additions per second, by Unit
};

const Limits& limits(Isa isa);

// Sets the counters "bytes/s", "ops/s" and "limit": the time of a round at the peak rates, divided
// by its real time. `bytes` are read from memory in each round; 0 if the data is in caches.
void report_limit(benchmark::State& state, Isa isa, Unit unit, double bytes, double ops);

}  // namespace plait::cpu
