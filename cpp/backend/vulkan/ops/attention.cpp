#include <algorithm>
#include <bit>

#include "backend/shared/positions.h"
#include "backend/shared/references.h"
#include "backend/vulkan/ops/operands.h"

namespace plait::vulkan {
namespace {

constexpr int kMaxValueDim = 2048;  // 16 elements for each invocation of the shader

struct AttentionArgs {
    Ref q, y, parts, keys, values, token_begin, runs, run_begin, first, last, sinks, positions;
    Ref key_positions, key_begin, bias, bucket_of;
    Rows rows;
    uint32_t heads, kv_heads, key_dim, value_dim;
    uint32_t key_head_bytes, key_row_bytes, value_head_bytes, value_row_bytes;
    uint32_t has_sinks, position_stride, max_distance, later_buckets;
    float max_bias, scale, softcap;
};

std::vector<int32_t> bucket_of_distances(int buckets, int max_distance) {
    std::vector<int32_t> result;
    for_each_distance(buckets, max_distance,
                      [&](int32_t, int32_t bucket) { result.push_back(bucket); });
    return result;
}

void set_cache(AttentionArgs& args, const ShaderLayout& keys, const ShaderLayout& values) {
    args.key_head_bytes = keys.head_bytes;
    args.key_row_bytes = keys.row_bytes;
    args.value_head_bytes = values.head_bytes;
    args.value_row_bytes = values.row_bytes;
}

struct MergeArgs {
    Ref parts, y, sinks;
    Rows rows;
    uint32_t heads, value_dim, has_sinks;
};

// A few subgroups, and at least one invocation per 16 elements of a value.
uint32_t invocations(uint32_t value_groups, const Limits& limits) {
    constexpr uint32_t kMax = 128;  // supported by every device
    return std::clamp(4 * limits.subgroup, std::bit_ceil(value_groups), kMax);
}

// Consecutive tokens per workgroup. More than one only if that leaves many workgroups, and only as
// many as fit into shared memory.
uint32_t queries_of(const Rows& rows, uint32_t key_groups, uint32_t n, const Limits& limits) {
    constexpr uint32_t kManyRows = 32, kMax = 4;
    if (rows.fixed < kManyRows) return 1;
    const auto bytes = [&](uint32_t queries) {
        return 4 * (queries * (16 * key_groups + 2 * n) + 17 * n);
    };
    uint32_t queries = kMax;
    while (queries > 1 && bytes(queries) > limits.shared_bytes) queries /= 2;
    return queries;
}

// Few rows leave most of a GPU idle, so several workgroups split the keys of a row.
uint32_t splits_of(const Rows& rows, const Node& keys) {
    constexpr uint32_t kFewRows = 4;
    constexpr int64_t kMaxSplits = 16, kMinKeys = 256;
    if (rows.fixed > kFewRows || keys.extent != Extent::fixed) return 1;
    return static_cast<uint32_t>(std::clamp<int64_t>(keys.type.shape[0] / kMinKeys, 1, kMaxSplits));
}

void set_bias(AttentionArgs& args, const ops::Attend& op, Binder& binder) {
    const AttendParams& params = op.params;
    if (params.bias == PositionBias::none) return;
    args.position_stride = to_u32(row_elements(binder.type(*op.positions)));
    args.max_bias = params.max_bias;
    if (params.bias != PositionBias::buckets) return;
    const auto buckets = static_cast<int>(binder.type(*op.bias).shape[0]);
    const int one_way = params.both_directions ? buckets / 2 : buckets;
    args.max_distance = to_u32(params.max_distance);
    args.later_buckets = params.both_directions ? to_u32(one_way) : 0;
    args.bucket_of = binder.constant(bucket_of_distances(one_way, params.max_distance));
}

}  // namespace

bool fits(const ops::Attend& op) { return op.params.value_dim <= kMaxValueDim; }

template <>
void bind(const ops::Attend& op, const Node& node, Binder& binder) {
    PLAIT_CHECK(fits(op));
    const AttendParams& params = op.params;
    const NodeId values_id = op.values ? *op.values : op.keys.id;
    const ShaderLayout keys = shader_layout(binder.type(op.keys), params.n_kv_heads);
    const ShaderLayout values = shader_layout(binder.type(values_id), params.n_kv_heads);
    AttentionArgs args{};
    set_references(args, op, binder);
    args.y = binder.result(node);
    set_cache(args, keys, values);
    set_bias(args, op, binder);
    args.rows = rows_of(node);
    args.heads = to_u32(params.n_heads);
    args.kv_heads = to_u32(params.n_kv_heads);
    args.key_dim = to_u32(params.key_dim);
    args.value_dim = to_u32(params.value_dim);
    args.scale = params.scale;
    args.softcap = params.softcap;
    const uint32_t splits = splits_of(args.rows, binder.node(op.keys));
    if (splits > 1)
        args.parts = binder.scratch(node, uint64_t{args.rows.fixed} * args.heads * splits *
                                              (args.value_dim + 2) * sizeof(float));
    const uint32_t key_groups = (args.key_dim + 15) / 16, value_groups = (args.value_dim + 15) / 16;
    const uint32_t n = invocations(value_groups, binder.limits());
    const uint32_t queries = splits > 1 ? 1 : queries_of(args.rows, key_groups, n, binder.limits());
    binder.dispatch(
        node, "attend",
        {static_cast<uint32_t>(keys.dtype), static_cast<uint32_t>(values.dtype), key_groups,
         value_groups, static_cast<uint32_t>(params.bias), splits, n, queries},
        {fixed_axis(params.n_heads), axis(args.rows, 1, queries), fixed_axis(splits)}, args);
    if (splits == 1) return;
    const MergeArgs merge{args.parts, args.y,         args.sinks,    args.rows,
                          args.heads, args.value_dim, args.has_sinks};
    binder.dispatch(node, "attend_merge", {splits}, {fixed_axis(params.n_heads), axis(args.rows)},
                    merge);
}

}  // namespace plait::vulkan
