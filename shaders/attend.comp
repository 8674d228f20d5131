#version 450
#extension GL_GOOGLE_include_directive : require
// softmax(scale * q k^T + bias) v over the keys that a token sees, read from the rows that its sequence's
// runs list, with a running softmax (arXiv:2205.14135). A workgroup has one head of one token; it takes
// keys in blocks: an invocation a key for the scores, then an invocation 16 elements of some of the values.
// Where rows are few, workgroups share a token's keys out and attend_merge.comp adds up.
// Twin: cpp/backend/cpu/kernels/attend.cpp. Dispatch: heads, rows, splits.

const uint WORKGROUP = 128;
layout(local_size_x = WORKGROUP) in;
layout(constant_id = 0) const uint KEY_TYPE = 0;  // plait::DType
layout(constant_id = 1) const uint VALUE_TYPE = 0;
layout(constant_id = 2) const uint KEY_GROUPS = 4;  // of 16 elements
layout(constant_id = 3) const uint VALUE_GROUPS = 4;
layout(constant_id = 4) const uint BIAS = 0;    // plait::PositionBias
layout(constant_id = 5) const uint SPLITS = 1;  // of the keys
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

shared float query[16 * KEY_GROUPS];
shared float weights[WORKGROUP];                              // of a block's keys
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

float score(uint64_t key) {
    float sum = 0.0;
    for (uint g = 0; g < KEY_GROUPS; ++g) {
        float k[16];
        unpack(KEY_TYPE, key, g, k);
        for (uint i = 0; i < 16; ++i)
            if (16 * g + i < args.key_dim)
                sum = fma(query[16 * g + i], k[i], sum);
    }
    sum *= args.scale;
    if (args.softcap != 0.0) {
        const float e = exp(-2.0 * abs(sum / args.softcap));
        sum = args.softcap * sign(sum) * (1.0 - e) / (1.0 + e);
    }
    return sum;
}

void main() {
    const uint me = gl_LocalInvocationIndex;
    const uint n = rows_of(args.rows);
    const uint head = gl_WorkGroupID.x;
    const uint kv_head = head / (args.heads / args.kv_heads);
    const uint64_t keys = address(args.keys) + kv_head * args.key_head_bytes;
    const uint64_t values = address(args.values) + kv_head * args.value_head_bytes;
    const uint lane = me / VALUE_GROUPS, group = me % VALUE_GROUPS;
    for (uint token = gl_WorkGroupID.y; token < n; token += gl_NumWorkGroups.y) {
        const uint row = token * args.heads + head;
        for (uint i = me; i < 16 * KEY_GROUPS; i += WORKGROUP)
            query[i] = i < args.key_dim ? floats(args.q).v[row * args.key_dim + i] : 0.0;
        barrier();

        const uint sequence = sequence_of(token);
        int first = ints(args.first).v[token], last = ints(args.last).v[token];
        if (SPLITS > 1) {  // whole blocks, so that no workgroup has a few keys of many
            const int each = (max(last - first, 1) + int(SPLITS * WORKGROUP) - 1) /
                             int(SPLITS * WORKGROUP) * int(WORKGROUP);
            first += int(gl_WorkGroupID.z) * each;
            last = min(last, first + each);
        }
        const uint end_run = uint(ints(args.run_begin).v[sequence + 1]);
        float most = MINUS_INFINITY, sum = 0.0;  // sum: of the keys that this invocation scored
        float mine[16];
        for (uint i = 0; i < 16; ++i)
            mine[i] = 0.0;
        for (uint run = uint(ints(args.run_begin).v[sequence]); run < end_run; ++run) {
            Ints r = Ints(address(args.runs) + 16ul * run);
            const int first_row = r.v[0] - r.v[2];  // row of key 0, were the run that long
            const int begin = max(first, r.v[2]), end = min(last, r.v[2] + r.v[1]);
            for (int block = begin; block < end; block += int(WORKGROUP)) {
                const int key = block + int(me);
                float s = MINUS_INFINITY;
                if (key < end) {
                    s = score(keys + uint64_t(first_row + key) * args.key_row_bytes);
                    if (BIAS != 0) {
                        const int at = ints(args.key_begin).v[sequence] + key;
                        s += position_bias(head, ints(args.key_positions).v[at] -
                                                     ints(args.positions).v[token * args.position_stride]);
                    }
                }
                const float before = most;
                most = max(most, workgroup_max(s));
                const float shift = finite_or_zero(most);
                const float kept = before == most ? 1.0 : exp(before - shift);
                const float p = key < end ? exp(s - shift) : 0.0;
                sum = sum * kept + p;
                weights[me] = p;
                barrier();
                for (uint i = 0; i < 16; ++i)
                    mine[i] *= kept;
                const uint count = min(WORKGROUP, uint(end - block));
                if (lane < VALUE_LANES)
                    for (uint j = lane; j < count; j += VALUE_LANES) {
                        float v[16];
                        unpack(VALUE_TYPE, values + uint64_t(first_row + block + int(j)) * args.value_row_bytes,
                               group, v);
                        for (uint i = 0; i < 16; ++i)
                            mine[i] = fma(weights[j], v[i], mine[i]);
                    }
                barrier();
            }
        }
        sum = workgroup_sum(sum);
        if (lane < VALUE_LANES)
            for (uint i = 0; i < 16; ++i)
                sums[(lane * VALUE_GROUPS + group) * 16 + i] = mine[i];
        barrier();
        Floats part = Floats(address(args.parts) + 4ul * (row * SPLITS + gl_WorkGroupID.z) * (args.value_dim + 2));
        const bool has_sink = args.has_sinks != 0;
        const float share = share_of(most, sum, has_sink, has_sink ? floats(args.sinks).v[head] : 0.0);
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
            part.v[0] = most;
            part.v[1] = sum;
        }
        barrier();
    }
}
