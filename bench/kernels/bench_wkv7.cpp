// The recurrence of a layer of rwkv7-1.5b, with five multiplications per state element.
#include "backend/cpu/kernels/recurrence/states.h"

#include "recurrence.h"

namespace plait::cpu {
namespace {

void wkv7(benchmark::State& state, Isa isa) {
    constexpr int64_t kHeads = 32, kDim = 64, kWidth = kHeads * kDim;
    Recurrent on(state, kWidth * kDim);
    Wkv7Args args{};
    args.r = on.input(kWidth, 0.5f);
    args.w = on.input(kWidth, 0.9f);
    args.k = on.input(kWidth, 0.5f);
    args.v = on.input(kWidth, 0.5f);
    args.a = on.input(kWidth, -0.01f);
    args.b = on.input(kWidth, 0.01f);
    args.y = on.input(kWidth, 0.0f);
    args.states = {on.states(), kHeads, kDim, kDim};
    on.run(state, kernels(isa).wkv7, args);
}

const bool kRegistered = on_every_isa("wkv7", wkv7);

}  // namespace
}  // namespace plait::cpu
