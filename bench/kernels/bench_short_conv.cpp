// The convolution of a layer of mamba-790m.
#include "backend/cpu/kernels/recurrence/states.h"

#include "recurrence.h"

namespace plait::cpu {
namespace {

void short_conv(benchmark::State& state, Isa isa) {
    constexpr int64_t kChannels = 3072, kTaps = 4;
    Recurrent on(state, kChannels * (kTaps - 1));
    const std::vector<float> weight(kChannels * kTaps, 0.25f), bias(kChannels, 0.1f);
    ShortConvArgs args{};
    args.x = on.input(kChannels, 0.5f);
    args.y = on.input(kChannels, 0.0f);
    args.weight = ref_to(weight);
    args.bias = ref_to(bias);
    args.has_bias = true;
    args.channels = kChannels;
    args.taps = kTaps;
    args.states = on.states();
    on.run(state, kernels(isa).short_conv, args, kTaps * kConvChunk);
}

const bool kRegistered = on_every_isa("short_conv", short_conv);

}  // namespace
}  // namespace plait::cpu
