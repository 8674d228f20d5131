#include "backend/cpu/kernels/attend.h"

#include <algorithm>

#include "backend/cpu/ops/operands.h"
#include "tensor/run.h"

namespace plait::cpu {

static_assert(sizeof(Run) == 16);  // key_blocks.h reads these bytes

void bind(const AttendOp& op, const Node& node, Binder& binder) {
    AttendArgs args{};
    args.q = binder.ref(node.inputs[0]);
    args.keys = binder.ref(node.inputs[1]);
    args.values = binder.ref(node.inputs[2]);
    args.token_begin = binder.ref(node.inputs[3]);
    args.runs = binder.ref(node.inputs[4]);
    args.run_begin = binder.ref(node.inputs[5]);
    args.first = binder.ref(node.inputs[6]);
    args.last = binder.ref(node.inputs[7]);
    args.has_sinks = node.inputs.size() > 8;
    if (args.has_sinks) args.sinks = operand(node.inputs[8], binder);
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
