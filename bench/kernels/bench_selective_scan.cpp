// The scan of a layer of mamba-790m. Each state element costs an exponential.
#include "backend/cpu/kernels/recurrence/states.h"

#include "recurrence.h"

namespace plait::cpu {
namespace {

void selective_scan(benchmark::State& state, Isa isa) {
    constexpr int64_t kChannels = 3072, kStates = 16;
    Recurrent on(state, kChannels * kStates);
    const std::vector<float> a(kChannels * kStates, -1.0f), d(kChannels, 1.0f);
    SelectiveScanArgs args{};
    args.x = on.input(kChannels, 0.5f);
    args.dt = on.input(kChannels, 0.1f);
    args.y = on.input(kChannels, 0.0f);
    args.a = ref_to(a);
    args.d = ref_to(d);
    args.b = on.input(kStates, 0.2f);
    args.c = on.input(kStates, 0.3f);
    args.states = {on.states(), 1, kStates, kChannels};
    on.run(state, kernels(isa).selective_scan, args, kStates * kTileColumns);
}

const bool kRegistered = on_every_isa("selective_scan", selective_scan);

}  // namespace
}  // namespace plait::cpu
