#include "backend/cpu/kernels/attend.h"

#include <algorithm>

#include "backend/cpu/ops/operands.h"
#include "tensor/run.h"

namespace plait::cpu {

static_assert(sizeof(Run) == 16);  // key_blocks.h reads these bytes

void bind(const AttendOp& op, const Node& node, Binder& binder) {
    AttendArgs args{};
    auto input = node.inputs.begin();
    const auto next = [&] { return binder.ref(*input++); };
    if (op.values_in_keys || op.bias != PositionBias::none)
        throw UnsupportedError("this attention has no CPU kernel");
    args.q = next();
    args.keys = next();
    args.values = next();
    args.token_begin = next();
    args.runs = next();
    args.run_begin = next();
    args.first = next();
    args.last = next();
    args.has_sinks = op.sinks;
    if (op.sinks) args.sinks = operand(*input++, binder);
    args.y = binder.ref(id_of(node, binder));
    args.heads = op.n_heads;
    args.kv_heads = op.n_kv_heads;
    args.key_dim = op.key_dim;
    args.value_dim = op.value_dim;
    args.tile_tokens = std::max(1, kTileQueries / (op.n_heads / op.n_kv_heads));
    args.scale = op.scale;
    args.softcap = op.softcap;
    args.key_cache = cache_layout(binder.type(node.inputs[1]), op.n_kv_heads);
    args.value_cache = cache_layout(binder.type(node.inputs[2]), op.n_kv_heads);
    PLAIT_CHECK(op.key_dim <= args.key_cache.head_elements);
    PLAIT_CHECK(op.value_dim <= args.value_cache.head_elements);
    const auto scratch = static_cast<uint64_t>(attend_scratch(args).end) * sizeof(float);
    const Kernels& kernels = binder.kernels();
    binder.step(node, op.flash ? kernels.attend : kernels.attend_scores, args, scratch);
}

}  // namespace plait::cpu
