// The scan of a layer of mamba2-780m, with three multiplications per state element.
#include "backend/cpu/kernels/recurrence/states.h"

#include "recurrence.h"

namespace plait::cpu {
namespace {

void ssd_scan(benchmark::State& state, Isa isa) {
    constexpr int64_t kHeads = 48, kDim = 64, kStates = 128;
    Recurrent on(state, kHeads * kDim * kStates);
    const std::vector<float> a(kHeads, -1.0f), d(kHeads, 1.0f);
    SsdScanArgs args{};
    args.x = on.input(kHeads * kDim, 0.5f);
    args.y = on.input(kHeads * kDim, 0.0f);
    args.dt = on.input(kHeads, 0.1f);
    args.a = ref_to(a);
    args.d = ref_to(d);
    args.b = on.input(kStates, 0.2f);
    args.c = on.input(kStates, 0.3f);
    args.groups = 1;
    args.states = {on.states(), kHeads, kStates, kDim};
    on.run(state, kernels(isa).ssd_scan, args);
}

const bool kRegistered = on_every_isa("ssd_scan", ssd_scan);

}  // namespace
}  // namespace plait::cpu
