// The recurrence of a layer of qwen3-next-80b, with four multiplications per state element.
#include "backend/cpu/kernels/recurrence/states.h"

#include "recurrence.h"

namespace plait::cpu {
namespace {

void delta_rule(benchmark::State& state, Isa isa) {
    constexpr int64_t kHeads = 32, kKeyHeads = 16, kDim = 128;
    Recurrent on(state, kHeads * kDim * kDim);
    DeltaRuleArgs args{};
    args.q = on.input(kKeyHeads * kDim, 0.1f);
    args.k = on.input(kKeyHeads * kDim, 0.05f);
    args.v = on.input(kHeads * kDim, 0.5f);
    args.y = on.input(kHeads * kDim, 0.0f);
    args.g = on.input(kHeads, -0.1f);
    args.beta = on.input(kHeads, 0.5f);
    args.key_heads = kKeyHeads;
    args.states = {on.states(), kHeads, kDim, kDim};
    on.run(state, kernels(isa).delta_rule, args);
}

const bool kRegistered = on_every_isa("delta_rule", delta_rule);

}  // namespace
}  // namespace plait::cpu
