#include "backend/cpu/ops/operands.h"
#include "backend/shared/references.h"
#include "tensor/run.h"

namespace plait::cpu {

static_assert(sizeof(Run) == 16);  // key_blocks.h reads these bytes

namespace {

void set_bias(AttendArgs& args, const ops::Attend& op, Binder& binder) {
    args.bias_kind = op.params.bias;
    if (op.params.bias == PositionBias::none) return;
    args.position_stride = static_cast<int32_t>(row_elements(binder.type(*op.positions)));
    args.max_bias = op.params.max_bias;
    if (op.params.bias != PositionBias::buckets) return;
    args.buckets = static_cast<int32_t>(binder.type(*op.bias).shape[0]);
    args.max_distance = op.params.max_distance;
    args.both_directions = op.params.both_directions;
}

AttendArgs arguments(const ops::Attend& op, Binder& binder) {
    const AttendParams& params = op.params;
    const NodeId values = op.values ? *op.values : op.keys.id;
    AttendArgs args{};
    set_references(args, op, binder);
    args.key_cache = cache_layout(binder.type(op.keys), params.n_kv_heads);
    args.value_cache = cache_layout(binder.type(values), params.n_kv_heads);
    args.values_in_keys = !op.values;
    set_bias(args, op, binder);
    args.heads = params.n_heads;
    args.kv_heads = params.n_kv_heads;
    args.key_dim = params.key_dim;
    args.value_dim = params.value_dim;
    args.tile_queries = kTileQueries;
    args.threads = binder.n_threads();
    args.scale = params.scale;
    args.softcap = params.softcap;
    // Tasks are counted from these before the run, so nodes cannot compute them.
    for (const Ref ref : {args.token_begin, args.runs, args.run_begin, args.first, args.last})
        PLAIT_CHECK(ref.base == kInputs);
    PLAIT_CHECK(params.key_dim <= args.key_cache.head_elements);
    PLAIT_CHECK(params.value_dim <= args.value_cache.head_elements);
    return args;
}

void set_splits(AttendArgs& args, Ref splits, const TensorType& type) {
    args.splits = splits;
    args.splits_floats = type.shape.elements();
}

uint64_t scratch_bytes(const AttendArgs& args) {
    return static_cast<uint64_t>(attend_scratch(args).end) * sizeof(float);
}

}  // namespace

template <>
void bind(const ops::Attend& op, const CpuNode& node, Binder& binder) {
    AttendArgs args = arguments(op, binder);
    args.y = binder.result(node);
    const Kernels& kernels = binder.kernels();
    binder.call(node, op.params.flash ? kernels.attend : kernels.attend_scores, args,
                scratch_bytes(args));
}

template <>
void bind(const AttendMerge& op, const CpuNode& node, Binder& binder) {
    AttendArgs args = arguments(op.attend, binder);
    args.y = binder.result(node);
    set_splits(args, binder.ref(op.splits), binder.type(op.splits));
    binder.call(node, binder.kernels().attend, args, scratch_bytes(args));
}

template <>
void bind(const AttendHadamard& op, const CpuNode& node, Binder& binder) {
    AttendArgs args = arguments(op.attend, binder);
    args.y = binder.result(node);
    args.hadamard = op.block;
    if (op.splits) set_splits(args, binder.ref(*op.splits), binder.type(*op.splits));
    const Kernels& kernels = binder.kernels();
    binder.call(node, op.attend.params.flash ? kernels.attend : kernels.attend_scores, args,
                scratch_bytes(args));
}

template <>
void bind(const AttendSplits& op, const CpuNode& node, Binder& binder) {
    AttendArgs args = arguments(op.attend, binder);
    set_splits(args, binder.result(node), node.type);
    binder.call(node, binder.kernels().attend_splits, args, scratch_bytes(args));
}

}  // namespace plait::cpu
