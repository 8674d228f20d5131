#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Attention: y = softmax(scale * q k^T + bias) v over the keys that each token may see, with a
// running softmax (arXiv:2205.14135). Keys and values are read from the cache rows listed by the
// runs of the token's sequence.
//
// A workgroup computes one head for QUERIES neighbouring tokens, one sequence at a time. It
// processes keys in blocks of WORKGROUP. First, each invocation computes the scores of one key.
// Then each invocation accumulates 16 elements of some of the values, and each value is unpacked
// once for all queries. If there are few tokens, the keys of each token are divided among SPLITS
// workgroups, and attend_merge.comp combines their partial results.
// Dispatch: heads, rows / QUERIES, splits.

layout(constant_id = 0) const uint KEY_TYPE = 0;  // plait::DType
layout(constant_id = 1) const uint VALUE_TYPE = 0;
layout(constant_id = 2) const uint KEY_GROUPS = 4;  // groups of 16 elements in a key
layout(constant_id = 3) const uint VALUE_GROUPS = 4;
layout(constant_id = 4) const uint BIAS = 0;    // plait::PositionBias
layout(constant_id = 5) const uint SPLITS = 1;  // workgroups that share the keys of a token
layout(constant_id = 6) const uint WORKGROUP = 128;
layout(constant_id = 7) const uint QUERIES = 1;  // of one workgroup; must be 1 if SPLITS > 1
layout(local_size_x_id = 6) in;
#include "lib/frame.glsl"
#include "lib/unpack.glsl"
#include "lib/reduce.glsl"
#include "lib/attend.glsl"

layout(buffer_reference, scalar) readonly buffer Args {
    Ref q, y;                            // [rows, heads, key_dim], [rows, heads, value_dim]
    Ref parts;                           // partial results if SPLITS > 1, see lib/attend.glsl
    Ref keys, values;                    // rows of a cache, or of graph values
    Ref token_begin;                     // [sequences + 1] i32
    Ref runs, run_begin;                 // [n_runs, 4]: row, count, first key, ordinal; [sequences + 1] i32
    Ref first, last;                     // [rows] i32: a token sees the keys in [first, last)
    Ref sinks;                           // [heads]
    Ref positions;                       // [rows, position_stride] i32; only column 0 is used
    Ref key_positions, key_begin;        // [n_keys] i32, ordered by sequence; [sequences + 1] i32
    Ref bias;                            // [buckets, heads]: T5 relative position bias
    Ref bucket_of;                       // [max_distance + 1] i32: bucket of each distance
    Rows rows;
    uint heads, kv_heads;
    uint key_dim, value_dim;
    uint key_head_bytes, key_row_bytes;
    uint value_head_bytes, value_row_bytes;
    uint has_sinks;
    uint position_stride;
    uint max_distance;
    uint later_buckets;                  // first bucket of later keys; 0: they use bucket 0
    float max_bias;
    float scale, softcap;
};
#include "lib/push.glsl"

const uint VALUE_LANES = WORKGROUP / VALUE_GROUPS;  // values accumulated at the same time

shared float query[QUERIES][16 * KEY_GROUPS];
shared float weights[QUERIES][WORKGROUP];       // softmax weights of the keys of a block
shared float subgroup_max[QUERIES][WORKGROUP];  // [query, subgroup]
shared float sums[VALUE_LANES * 16 * VALUE_GROUPS];

// Returns the sequence that a token belongs to, by binary search.
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

// ALiBi, arXiv:2108.12409. If the number of heads is not a power of two, the heads beyond the
// largest power of two below it use every second slope of the next power of two.
float alibi_slope(uint head) {
    const uint power = 1u << findMSB(args.heads);
    const float step = head < power ? float(head) + 1.0 : float(head - power) + 0.5;
    return exp2(-args.max_bias * step / float(power));
}

float position_bias(uint head, int distance) {  // position of the key minus that of the query
    if (BIAS == 1)
        return -alibi_slope(head) * float(abs(distance));
    const int bucket = ints(args.bucket_of).v[min(abs(distance), int(args.max_distance))];
    const uint at = distance <= 0 ? uint(bucket) : args.later_buckets > 0 ? args.later_buckets + bucket : 0u;
    return floats(args.bias).v[at * args.heads + head];
}

// Applies the scale, and the softcap: softcap * tanh(score / softcap).
float scale_and_cap(float score) {
    const float scaled = score * args.scale;
    if (args.softcap == 0.0)
        return scaled;
    const float e = exp(-2.0 * abs(scaled / args.softcap));
    return args.softcap * sign(scaled) * (1.0 - e) / (1.0 + e);
}

// Computes the score of one key for each query.
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
        scores[q] = scale_and_cap(scores[q]);
}

// State of one call of attend(). Queries beyond its `count` see no keys.
int first[QUERIES], last[QUERIES];          // query q sees keys [first[q], last[q])
float running_max[QUERIES];                 // of the scores
float sum[QUERIES];                         // of the softmax weights of the keys scored by this invocation
float mine[QUERIES * 16];                   // this invocation's share of the weighted sum of values

void load_queries(uint token, uint count) {
    const uint width = 16 * KEY_GROUPS;
    for (uint i = gl_LocalInvocationIndex; i < count * width; i += WORKGROUP) {
        const uint q = i / width, d = i % width;
        query[q][d] = d < args.key_dim
                          ? floats(args.q).v[((token + q) * args.heads + gl_WorkGroupID.x) * args.key_dim + d]
                          : 0.0;
    }
    barrier();
}

// Sets `first`, `last` and the range of keys seen by any query.
void find_key_ranges(uint token, uint count, out int lowest, out int highest) {
    lowest = 0x7fffffff;
    highest = 0;
    [[unroll]] for (uint q = 0; q < QUERIES; ++q) {
        first[q] = last[q] = 0;
        if (q < count) {
            first[q] = ints(args.first).v[token + q];
            last[q] = ints(args.last).v[token + q];
            if (SPLITS > 1) {  // every split gets whole blocks of keys
                const int each = (max(last[q] - first[q], 1) + int(SPLITS * WORKGROUP) - 1) /
                                 int(SPLITS * WORKGROUP) * int(WORKGROUP);
                first[q] += int(gl_WorkGroupID.z) * each;
                last[q] = min(last[q], first[q] + each);
            }
            lowest = min(lowest, first[q]);
            highest = max(highest, last[q]);
        }
    }
}

// Scores the keys of one block; this invocation scores `key`, unless it is past `end`. Updates the
// running maxima and sums, and writes the softmax weights to shared memory.
void score_block(uint token, uint sequence, int key, int end, uint64_t key_address) {
    const uint head = gl_WorkGroupID.x, me = gl_LocalInvocationIndex;
    float s[QUERIES];
    [[unroll]] for (uint q = 0; q < QUERIES; ++q)
        s[q] = MINUS_INFINITY;
    if (key < end)
        score(key_address, s);
    [[unroll]] for (uint q = 0; q < QUERIES; ++q) {
        if (key < first[q] || key >= min(last[q], end))
            s[q] = MINUS_INFINITY;
        else if (BIAS != 0) {
            const int at = ints(args.key_begin).v[sequence] + key;
            s[q] += position_bias(head, ints(args.key_positions).v[at] -
                                            ints(args.positions).v[(token + q) * args.position_stride]);
        }
        const float max_score = subgroupMax(s[q]);
        if (subgroupElect())
            subgroup_max[q][gl_SubgroupID] = max_score;
    }
    barrier();
    [[unroll]] for (uint q = 0; q < QUERIES; ++q) {
        const float before = running_max[q];
        for (uint i = 0; i < gl_NumSubgroups; ++i)
            running_max[q] = max(running_max[q], subgroup_max[q][i]);
        const float shift = finite_or_zero(running_max[q]);
        const float rescale = before == running_max[q] ? 1.0 : exp(before - shift);
        const float p = key < first[q] || key >= min(last[q], end) ? 0.0 : exp(s[q] - shift);
        sum[q] = sum[q] * rescale + p;
        weights[q][me] = p;
        [[unroll]] for (uint i = 0; i < 16; ++i)
            mine[16 * q + i] *= rescale;
    }
    barrier();
}

// Adds the values of one block, multiplied by their weights. `value_address` is that of the first
// value.
void add_values(uint n_keys, uint64_t value_address) {
    const uint lane = gl_LocalInvocationIndex / VALUE_GROUPS, group = gl_LocalInvocationIndex % VALUE_GROUPS;
    if (lane < VALUE_LANES)
        for (uint j = lane; j < n_keys; j += VALUE_LANES) {
            float v[16];
            unpack(VALUE_TYPE, value_address + uint64_t(j) * args.value_row_bytes, group, v);
            [[unroll]] for (uint q = 0; q < QUERIES; ++q)
                [[unroll]] for (uint i = 0; i < 16; ++i)
                    mine[16 * q + i] = fma(weights[q][j], v[i], mine[16 * q + i]);
        }
    barrier();
}

// Writes the result of query `q`, or its partial result if the keys are split.
void write_result(uint q, uint token) {
    const uint head = gl_WorkGroupID.x, me = gl_LocalInvocationIndex;
    const uint lane = me / VALUE_GROUPS, group = me % VALUE_GROUPS;
    const bool has_sink = args.has_sinks != 0;
    const float total = workgroup_sum(sum[q]);
    if (lane < VALUE_LANES)
        [[unroll]] for (uint i = 0; i < 16; ++i)
            sums[(lane * VALUE_GROUPS + group) * 16 + i] = mine[16 * q + i];
    barrier();
    const uint row = (token + q) * args.heads + head;
    Floats part =
        Floats(address(args.parts) + 4ul * (row * SPLITS + gl_WorkGroupID.z) * (args.value_dim + 2));
    const float share =
        share_of(running_max[q], total, has_sink, has_sink ? floats(args.sinks).v[head] : 0.0);
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
        part.v[0] = running_max[q];
        part.v[1] = total;
    }
    barrier();
}

// Computes attention for tokens [token, token + count), which all belong to `sequence`.
void attend(uint token, uint count, uint sequence) {
    const uint kv_head = gl_WorkGroupID.x / (args.heads / args.kv_heads);
    const uint64_t keys = address(args.keys) + kv_head * args.key_head_bytes;
    const uint64_t values = address(args.values) + kv_head * args.value_head_bytes;
    load_queries(token, count);
    int lowest, highest;
    find_key_ranges(token, count, lowest, highest);
    [[unroll]] for (uint q = 0; q < QUERIES; ++q) {
        running_max[q] = MINUS_INFINITY;
        sum[q] = 0.0;
        [[unroll]] for (uint i = 0; i < 16; ++i)
            mine[16 * q + i] = 0.0;
    }
    const uint end_run = uint(ints(args.run_begin).v[sequence + 1]);
    for (uint run = uint(ints(args.run_begin).v[sequence]); run < end_run; ++run) {
        Ints r = Ints(address(args.runs) + 16ul * run);
        const int first_row = r.v[0] - r.v[2];  // key i is in row first_row + i
        const int begin = max(lowest, r.v[2]), end = min(highest, r.v[2] + r.v[1]);
        for (int block = begin; block < end; block += int(WORKGROUP)) {
            const int key = block + int(gl_LocalInvocationIndex);
            score_block(token, sequence, key, end, keys + uint64_t(first_row + key) * args.key_row_bytes);
            add_values(min(WORKGROUP, uint(end - block)),
                       values + uint64_t(first_row + block) * args.value_row_bytes);
        }
    }
    [[unroll]] for (uint q = 0; q < QUERIES; ++q)
        if (q < count)
            write_result(q, token);
}

void main() {
    const uint n = rows_of(args.rows);
    for (uint begin = gl_WorkGroupID.y * QUERIES; begin < n; begin += gl_NumWorkGroups.y * QUERIES) {
        const uint end = min(n, begin + QUERIES);
        for (uint token = begin; token < end;) {
            const uint sequence = sequence_of(token);
            const uint end_here = min(end, uint(ints(args.token_begin).v[sequence + 1]));
            attend(token, end_here - token, sequence);
            token = end_here;
        }
    }
}
