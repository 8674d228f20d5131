#include "backend/cpu/kernels/attention/attend.h"

#include "backend/cpu/ops/operands.h"
#include "tensor/run.h"

namespace plait::cpu {

static_assert(sizeof(Run) == 16);  // key_blocks.h reads these bytes
static_assert(static_cast<int>(PositionBias::none) == kNoBias);
static_assert(static_cast<int>(PositionBias::alibi) == kAlibi);
static_assert(static_cast<int>(PositionBias::buckets) == kBuckets);

namespace {

AttendArgs arguments(const AttendOp& op, const Node& node, Binder& binder) {
    AttendArgs args{};
    auto input = node.inputs.begin();
    const auto next = [&] { return binder.ref(*input++); };
    args.q = next();
    args.key_cache = cache_layout(binder.type(*input), op.n_kv_heads);
    args.keys = next();
    args.values_in_keys = op.values_in_keys;
    args.value_cache =
        op.values_in_keys ? args.key_cache : cache_layout(binder.type(*input), op.n_kv_heads);
    args.values = op.values_in_keys ? args.keys : next();
    args.token_begin = next();
    args.runs = next();
    args.run_begin = next();
    args.first = next();
    args.last = next();
    args.has_sinks = op.sinks;
    if (op.sinks) args.sinks = operand(*input++, binder);
    args.bias_kind = static_cast<uint8_t>(op.bias);
    if (op.bias != PositionBias::none) {
        args.position_stride = static_cast<int32_t>(row_elements(binder.type(*input)));
        args.positions = next();
        args.key_positions = next();
        args.key_begin = next();
        args.max_bias = op.max_bias;
    }
    if (op.bias == PositionBias::buckets) {
        args.buckets = static_cast<int32_t>(binder.type(*input).shape[0]);
        args.max_distance = op.max_distance;
        args.both_directions = op.both_directions;
        args.bias = operand(*input++, binder);
    }
    if (input != node.inputs.end()) {
        args.splits_floats = binder.type(*input).shape.elements();
        args.splits = next();
    }
    args.heads = op.n_heads;
    args.kv_heads = op.n_kv_heads;
    args.key_dim = op.key_dim;
    args.value_dim = op.value_dim;
    args.tile_queries = kTileQueries;
    args.threads = binder.n_threads();
    args.scale = op.scale;
    args.softcap = op.softcap;
    PLAIT_CHECK(op.key_dim <= args.key_cache.head_elements);
    PLAIT_CHECK(op.value_dim <= args.value_cache.head_elements);
    return args;
}

uint64_t scratch_bytes(const AttendArgs& args) {
    return static_cast<uint64_t>(attend_scratch(args).end) * sizeof(float);
}

}  // namespace

void bind(const AttendOp& op, const Node& node, Binder& binder) {
    AttendArgs args = arguments(op, node, binder);
    args.y = binder.ref(id_of(node, binder));
    const Kernels& kernels = binder.kernels();
    binder.step(node, op.flash ? kernels.attend : kernels.attend_scores, args, scratch_bytes(args));
}

void bind(const AttendSplitsOp& op, const Node& node, Binder& binder) {
    AttendArgs args = arguments(op.how, node, binder);
    args.splits = binder.ref(id_of(node, binder));
    args.splits_floats = node.type.shape.elements();
    binder.step(node, binder.kernels().attend_splits, args, scratch_bytes(args));
}

}  // namespace plait::cpu
