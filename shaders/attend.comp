#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// softmax(scale * q k^T + bias) v over the keys that a token sees, read from the rows that its sequence's
// runs list, with a running softmax (arXiv:2205.14135). A workgroup has one head of QUERIES neighbouring
// tokens, or of as many of them as are of one sequence; it takes keys in blocks: an invocation a key for the
// scores, then an invocation 16 elements of some of the values, each unpacked once for all queries.
// Where rows are few, workgroups share a token's keys out and attend_merge.comp adds up.
// Twin: cpp/backend/cpu/kernels/attention/attend.cpp. Dispatch: heads, rows / QUERIES, splits.

layout(constant_id = 0) const uint KEY_TYPE = 0;  // plait::DType
layout(constant_id = 1) const uint VALUE_TYPE = 0;
layout(constant_id = 2) const uint KEY_GROUPS = 4;  // of 16 elements
layout(constant_id = 3) const uint VALUE_GROUPS = 4;
layout(constant_id = 4) const uint BIAS = 0;    // plait::PositionBias
layout(constant_id = 5) const uint SPLITS = 1;  // of the keys
layout(constant_id = 6) const uint WORKGROUP = 128;
layout(constant_id = 7) const uint QUERIES = 1;  // 1 where there are splits
layout(local_size_x_id = 6) in;
#include "lib/frame.glsl"
#include "lib/unpack.glsl"
#include "lib/reduce.glsl"
#include "lib/attend.glsl"

layout(buffer_reference, scalar) readonly buffer Args {
    Ref q, y;                            // [rows, heads, key_dim], [rows, heads, value_dim]
    Ref parts;                           // of splits, see lib/attend.glsl
    Ref keys, values;                    // rows of a cache, or of values of the graph
    Ref token_begin;                     // [sequences + 1] i32
    Ref runs, run_begin;                 // [., 4]: row, count, first key, ordinal; [sequences + 1] i32
    Ref first, last;                     // [rows] i32: the keys a token sees
    Ref sinks;                           // [heads]
    Ref positions;                       // [rows, position_stride] i32, of which the first counts
    Ref key_positions, key_begin;        // by key of each sequence, [sequences + 1] i32
    Ref bias;                            // [buckets, heads]
    Ref bucket_of;                       // [max_distance + 1] i32: of distances
    Rows rows;
    uint heads, kv_heads;
    uint key_dim, value_dim;
    uint key_head_bytes, key_row_bytes;
    uint value_head_bytes, value_row_bytes;
    uint has_sinks;
    uint position_stride;
    uint max_distance;
    uint later_buckets;                  // where buckets of later keys begin; 0: all are as the key itself
    float max_bias;
    float scale, softcap;
};
#include "lib/push.glsl"

const uint VALUE_LANES = WORKGROUP / VALUE_GROUPS;  // keys whose values are taken at once

shared float query[QUERIES][16 * KEY_GROUPS];
shared float weights[QUERIES][WORKGROUP];     // of a block's keys
shared float block_most[QUERIES][WORKGROUP];  // by subgroup
shared float sums[VALUE_LANES * 16 * VALUE_GROUPS];

// The sequence that a token belongs to.
uint sequence_of(uint token) {
    Ints begin = ints(args.token_begin);
    uint low = 0, high = frame.rows[SEQUENCES];
    while (high - low > 1) {
        const uint middle = (low + high) / 2;
        if (uint(begin.v[middle]) <= token)
            low = middle;
        else
            high = middle;
    }
    return low;
}

// arXiv:2108.12409. Where heads are no power of two, those past it take every second slope of the next.
float alibi_slope(uint head) {
    const uint whole = 1u << findMSB(args.heads);
    const float turns = head < whole ? float(head) + 1.0 : float(head - whole) + 0.5;
    return exp2(-args.max_bias * turns / float(whole));
}

float position_bias(uint head, int distance) {  // key position - position
    if (BIAS == 1)
        return -alibi_slope(head) * float(abs(distance));
    const int bucket = ints(args.bucket_of).v[min(abs(distance), int(args.max_distance))];
    const uint at = distance <= 0 ? uint(bucket) : args.later_buckets > 0 ? args.later_buckets + bucket : 0u;
    return floats(args.bias).v[at * args.heads + head];
}

float shaped(float score) {
    const float scaled = score * args.scale;
    if (args.softcap == 0.0)
        return scaled;
    const float e = exp(-2.0 * abs(scaled / args.softcap));
    return args.softcap * sign(scaled) * (1.0 - e) / (1.0 + e);
}

// Of one key, for each query.
void score(uint64_t key, out float scores[QUERIES]) {
    [[unroll]] for (uint q = 0; q < QUERIES; ++q)
        scores[q] = 0.0;
    for (uint g = 0; g < KEY_GROUPS; ++g) {
        float k[16];
        unpack(KEY_TYPE, key, g, k);
        [[unroll]] for (uint q = 0; q < QUERIES; ++q)
            [[unroll]] for (uint i = 0; i < 16; ++i)
                if (16 * g + i < args.key_dim)
                    scores[q] = fma(query[q][16 * g + i], k[i], scores[q]);
    }
    [[unroll]] for (uint q = 0; q < QUERIES; ++q)
        scores[q] = shaped(scores[q]);
}

// What `count` tokens from `token` on, all of one sequence, make of their keys.
void attend(uint token, uint count, uint sequence) {
    const uint me = gl_LocalInvocationIndex;
    const uint head = gl_WorkGroupID.x;
    const uint kv_head = head / (args.heads / args.kv_heads);
    const uint64_t keys = address(args.keys) + kv_head * args.key_head_bytes;
    const uint64_t values = address(args.values) + kv_head * args.value_head_bytes;
    const uint lane = me / VALUE_GROUPS, group = me % VALUE_GROUPS;
    const uint width = 16 * KEY_GROUPS;
    for (uint i = me; i < count * width; i += WORKGROUP) {
        const uint q = i / width, d = i % width;
        query[q][d] = d < args.key_dim
                          ? floats(args.q).v[((token + q) * args.heads + head) * args.key_dim + d]
                          : 0.0;
    }
    barrier();

    int first[QUERIES], last[QUERIES];  // the keys that each query sees; none where there is no query
    int lowest = 0x7fffffff, highest = 0;
    [[unroll]] for (uint q = 0; q < QUERIES; ++q) {
        first[q] = last[q] = 0;
        if (q < count) {
            first[q] = ints(args.first).v[token + q];
            last[q] = ints(args.last).v[token + q];
            if (SPLITS > 1) {  // whole blocks, so that no workgroup has a few keys of many
                const int each = (max(last[q] - first[q], 1) + int(SPLITS * WORKGROUP) - 1) /
                                 int(SPLITS * WORKGROUP) * int(WORKGROUP);
                first[q] += int(gl_WorkGroupID.z) * each;
                last[q] = min(last[q], first[q] + each);
            }
            lowest = min(lowest, first[q]);
            highest = max(highest, last[q]);
        }
    }
    float most[QUERIES], sum[QUERIES], mine[QUERIES * 16];  // sum: of the keys that this invocation scored
    [[unroll]] for (uint q = 0; q < QUERIES; ++q) {
        most[q] = MINUS_INFINITY;
        sum[q] = 0.0;
        [[unroll]] for (uint i = 0; i < 16; ++i)
            mine[16 * q + i] = 0.0;
    }
    const uint end_run = uint(ints(args.run_begin).v[sequence + 1]);
    for (uint run = uint(ints(args.run_begin).v[sequence]); run < end_run; ++run) {
        Ints r = Ints(address(args.runs) + 16ul * run);
        const int first_row = r.v[0] - r.v[2];  // row of key 0, were the run that long
        const int begin = max(lowest, r.v[2]), end = min(highest, r.v[2] + r.v[1]);
        for (int block = begin; block < end; block += int(WORKGROUP)) {
            const int key = block + int(me);
            float s[QUERIES];
            [[unroll]] for (uint q = 0; q < QUERIES; ++q)
                s[q] = MINUS_INFINITY;
            if (key < end)
                score(keys + uint64_t(first_row + key) * args.key_row_bytes, s);
            [[unroll]] for (uint q = 0; q < QUERIES; ++q) {
                if (key < first[q] || key >= min(last[q], end))
                    s[q] = MINUS_INFINITY;
                else if (BIAS != 0) {
                    const int at = ints(args.key_begin).v[sequence] + key;
                    s[q] += position_bias(head, ints(args.key_positions).v[at] -
                                                    ints(args.positions).v[(token + q) * args.position_stride]);
                }
                const float subgroup_most = subgroupMax(s[q]);
                if (subgroupElect())
                    block_most[q][gl_SubgroupID] = subgroup_most;
            }
            barrier();
            [[unroll]] for (uint q = 0; q < QUERIES; ++q) {
                const float before = most[q];
                for (uint i = 0; i < gl_NumSubgroups; ++i)
                    most[q] = max(most[q], block_most[q][i]);
                const float shift = finite_or_zero(most[q]);
                const float kept = before == most[q] ? 1.0 : exp(before - shift);
                const float p = key < first[q] || key >= min(last[q], end) ? 0.0 : exp(s[q] - shift);
                sum[q] = sum[q] * kept + p;
                weights[q][me] = p;
                [[unroll]] for (uint i = 0; i < 16; ++i)
                    mine[16 * q + i] *= kept;
            }
            barrier();
            const uint n_keys = min(WORKGROUP, uint(end - block));
            if (lane < VALUE_LANES)
                for (uint j = lane; j < n_keys; j += VALUE_LANES) {
                    float v[16];
                    unpack(VALUE_TYPE, values + uint64_t(first_row + block + int(j)) * args.value_row_bytes,
                           group, v);
                    [[unroll]] for (uint q = 0; q < QUERIES; ++q)
                        [[unroll]] for (uint i = 0; i < 16; ++i)
                            mine[16 * q + i] = fma(weights[q][j], v[i], mine[16 * q + i]);
                }
            barrier();
        }
    }
    const bool has_sink = args.has_sinks != 0;
    [[unroll]] for (uint q = 0; q < QUERIES; ++q) {
        if (q < count) {
            const float whole = workgroup_sum(sum[q]);
            if (lane < VALUE_LANES)
                [[unroll]] for (uint i = 0; i < 16; ++i)
                    sums[(lane * VALUE_GROUPS + group) * 16 + i] = mine[16 * q + i];
            barrier();
            const uint row = (token + q) * args.heads + head;
            Floats part =
                Floats(address(args.parts) + 4ul * (row * SPLITS + gl_WorkGroupID.z) * (args.value_dim + 2));
            const float share = share_of(most[q], whole, has_sink, has_sink ? floats(args.sinks).v[head] : 0.0);
            for (uint i = me; i < args.value_dim; i += WORKGROUP) {
                float value = 0.0;
                for (uint l = 0; l < VALUE_LANES; ++l)
                    value += sums[l * 16 * VALUE_GROUPS + i];
                if (SPLITS > 1)
                    part.v[2 + i] = value;
                else
                    floats(args.y).v[row * args.value_dim + i] = value * share;
            }
            if (SPLITS > 1 && me == 0) {
                part.v[0] = most[q];
                part.v[1] = whole;
            }
            barrier();
        }
    }
}

void main() {
    const uint n = rows_of(args.rows);
    for (uint first = gl_WorkGroupID.y * QUERIES; first < n; first += gl_NumWorkGroups.y * QUERIES) {
        const uint end = min(n, first + QUERIES);
        for (uint token = first; token < end;) {
            const uint sequence = sequence_of(token);
            const uint end_here = min(end, uint(ints(args.token_begin).v[sequence + 1]));
            attend(token, end_here - token, sequence);
            token = end_here;
        }
    }
}
