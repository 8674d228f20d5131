// Matrix product y = x W^T (+ bias + residual) for many rows of x and one matrix W, with
// cooperative matrices: a subgroup multiplies M by K elements of x with K by N elements of W in one
// operation. Factors are rounded to f16, and sums are f32. The including file defines the matrix
// types and operations of its extension. A workgroup computes a tile of ROWS rows by OUTPUTS
// outputs, DEPTH columns at a time, and a subgroup keeps MY_ROWS by MY_OUTPUTS sums.
// Dispatch: outputs / OUTPUTS, rows / ROWS.
//
// Normal f16 values range from 2^-14 to 65504. If the largest magnitude in a row of x or W is not
// well within this range, the row is multiplied by a power of two and its sums are divided by it;
// both are exact. To avoid a separate pass that finds the largest magnitudes, a tile is first
// computed without scales while the largest magnitude of each row is recorded. It is computed a
// second time only if a row needs a scale.
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_control_flow_attributes : require

layout(constant_id = 0) const uint TYPE = 1;  // plait::DType
layout(constant_id = 1) const uint ROWS = 64;
layout(constant_id = 2) const uint OUTPUTS = 64;
layout(constant_id = 3) const uint MY_ROWS = 32;
layout(constant_id = 4) const uint MY_OUTPUTS = 32;
layout(constant_id = 5) const uint DEPTH = 32;       // a multiple of GROUP
layout(constant_id = 6) const uint WORKGROUP = 128;  // ROWS / MY_ROWS * OUTPUTS / MY_OUTPUTS subgroups
layout(constant_id = 7) const uint M = 16;
layout(constant_id = 8) const uint N = 16;
layout(constant_id = 9) const uint K = 16;
layout(local_size_x_id = 6) in;
#include "lib/frame.glsl"
#include "lib/unpack.glsl"
#include "lib/product.glsl"

const uint EIGHTS = DEPTH / 8;   // vectors of 8 halves in a row of a tile
const uint STRIDE = EIGHTS + 1;  // padded by one, so that consecutive rows are in different banks
const uint GROUPS = DEPTH / GROUP;
const uint ACROSS = OUTPUTS / MY_OUTPUTS;  // subgroups along the outputs of a tile
const uint SUBGROUPS = ROWS / MY_ROWS * ACROSS;
const uint MATRICES_DOWN = MY_ROWS / M, MATRICES_ACROSS = MY_OUTPUTS / N;
// How many vectors of x and groups of W an invocation loads per tile.
const uint MY_EIGHTS = (ROWS * EIGHTS + WORKGROUP - 1) / WORKGROUP;
const uint MY_GROUPS = (OUTPUTS * GROUPS + WORKGROUP - 1) / WORKGROUP;

shared uvec4 x_tile[ROWS * STRIDE];     // [row, column], halves
shared uvec4 w_tile[OUTPUTS * STRIDE];  // [output, column], halves
shared float sum_tile[SUBGROUPS * M * N];
// For the rows of x, followed by the rows of W: the largest magnitude as float bits, and the scale.
shared uint largest[ROWS + OUTPUTS];
shared float scales[ROWS + OUTPUTS];
shared uint needs_rescale;

uvec4 halves(float v[16], uint first, float scale) {
    uvec4 eight;
    [[unroll]] for (uint i = 0; i < 4; ++i)
        eight[i] = packHalf2x16(scale * vec2(v[first + 2 * i], v[first + 2 * i + 1]));
    return eight;
}

void load_x(uint first_row, uint n, uint first_column, inout float magnitude[MY_EIGHTS]) {
    [[unroll]] for (uint mine = 0; mine < MY_EIGHTS; ++mine) {
        const uint i = gl_LocalInvocationIndex + mine * WORKGROUP;
        if (i >= ROWS * EIGHTS) break;
        const uint row = first_row + i / EIGHTS, first = first_column + i % EIGHTS * 8;
        float v[16];
        const uint64_t from = address(args.x) + 4ul * uint64_t(row) * args.columns;
        [[unroll]] for (uint j = 0; j < 8; j += 4) {
            const vec4 four = row < n ? x_at(from, first + j) : vec4(0.0);
            [[unroll]] for (uint k = 0; k < 4; ++k) {
                v[j + k] = four[k];
                magnitude[mine] = max(magnitude[mine], abs(four[k]));
            }
        }
        x_tile[i / EIGHTS * STRIDE + i % EIGHTS] = halves(v, 0, scales[i / EIGHTS]);
    }
}

void load_w(uint first_output, uint first_column, inout float magnitude[MY_GROUPS]) {
    [[unroll]] for (uint mine = 0; mine < MY_GROUPS; ++mine) {
        const uint i = gl_LocalInvocationIndex + mine * WORKGROUP;
        if (i >= OUTPUTS * GROUPS) break;
        const uint index = i / GROUPS, part = i % GROUPS;
        const uint o = first_output + index;
        const uint group = first_column / GROUP + part;
        float v[16];
        if (o < args.outputs && group * GROUP < args.columns)
            unpack(TYPE, args.weight + o * args.row_bytes, group, v);
        else
            [[unroll]] for (uint j = 0; j < GROUP; ++j)
                v[j] = 0.0;
        [[unroll]] for (uint j = 0; j < GROUP; ++j)
            magnitude[mine] = max(magnitude[mine], abs(v[j]));
        [[unroll]] for (uint j = 0; j < 2; ++j)
            w_tile[index * STRIDE + 2 * part + j] = halves(v, 8 * j, scales[ROWS + index]);
    }
}

// Records the largest magnitude of a row.
void record_magnitude(uint row, float magnitude) {
    atomicMax(largest[row], floatBitsToUint(magnitude), gl_ScopeWorkgroup, gl_StorageSemanticsNone,
              gl_SemanticsRelaxed);
}

// Returns the scale for a row from its largest magnitude as float bits: 1 if the magnitude is zero,
// not finite or in [2^-10, 2^15); otherwise the power of two that scales it to [2^14, 2^15).
float scale_for(uint largest_bits) {
    const int exponent = int(largest_bits >> 23) - 127;
    if (largest_bits == 0 || exponent == 128 || (exponent >= -10 && exponent < 15)) return 1.0;
    return uintBitsToFloat(uint(clamp(14 - exponent, -126, 126) + 127) << 23);
}
float inverse(float power_of_two) { return uintBitsToFloat((254u << 23) - floatBitsToUint(power_of_two)); }

// Sets the scales from the recorded magnitudes, and `needs_rescale` if the sums used other scales.
void fit_scales() {
    for (uint row = gl_LocalInvocationIndex; row < ROWS + OUTPUTS; row += WORKGROUP) {
        const float scale = scale_for(largest[row]);
        if (scale == scales[row]) continue;
        scales[row] = scale;
        atomicMax(needs_rescale, 1u, gl_ScopeWorkgroup, gl_StorageSemanticsNone, gl_SemanticsRelaxed);
    }
}

void store(uint row, uint n, uint o, float sum, float x_inverse, float w_inverse) {
    if (row >= n || o >= args.outputs) return;
    // The smaller factor first, so that the intermediate result does not overflow.
    sum *= min(x_inverse, w_inverse);
    sum *= max(x_inverse, w_inverse);
    if (args.has_bias != 0) sum += floats(args.bias).v[o];
    const uint at = row * args.outputs + o;
    if (args.has_residual != 0) sum += floats(args.residual).v[at];
    floats(args.y).v[at] = sum;
}

void main() {
    const uint n = rows_of(args.rows) * args.rows_each;
    const uint first_output = gl_WorkGroupID.x * OUTPUTS;
    const uint me = gl_LocalInvocationIndex;
    const uint my_row = gl_SubgroupID / ACROSS * MY_ROWS, my_output = gl_SubgroupID % ACROSS * MY_OUTPUTS;
    const uint my_sums = gl_SubgroupID * M * N;
    for (uint first_row = gl_WorkGroupID.y * ROWS; first_row < n; first_row += gl_NumWorkGroups.y * ROWS) {
        for (uint i = me; i < ROWS + OUTPUTS; i += WORKGROUP) {
            largest[i] = 0;
            scales[i] = 1.0;
        }
        SUM_MATRIX sums[MATRICES_DOWN * MATRICES_ACROSS];
        for (uint attempt = 0; attempt < 2; ++attempt) {
            if (me == 0) needs_rescale = 0;
            float my_x_max[MY_EIGHTS], my_w_max[MY_GROUPS];
            [[unroll]] for (uint i = 0; i < MY_EIGHTS; ++i)
                my_x_max[i] = 0.0;
            [[unroll]] for (uint i = 0; i < MY_GROUPS; ++i)
                my_w_max[i] = 0.0;
            [[unroll]] for (uint i = 0; i < MATRICES_DOWN * MATRICES_ACROSS; ++i)
                sums[i] = SUM_MATRIX(0.0);
            barrier();
            for (uint column = 0; column < args.columns; column += DEPTH) {
                load_x(first_row, n, column, my_x_max);
                load_w(first_output, column, my_w_max);
                barrier();
                for (uint k = 0; k < DEPTH; k += K) {
                    X_MATRIX a[MATRICES_DOWN];
                    [[unroll]] for (uint i = 0; i < MATRICES_DOWN; ++i)
                        LOAD_ROWS(a[i], x_tile, (my_row + i * M) * STRIDE + k / 8, STRIDE);
                    [[unroll]] for (uint j = 0; j < MATRICES_ACROSS; ++j) {
                        W_MATRIX b;
                        LOAD_COLUMNS(b, w_tile, (my_output + j * N) * STRIDE + k / 8, STRIDE);
                        [[unroll]] for (uint i = 0; i < MATRICES_DOWN; ++i)
                            sums[i * MATRICES_ACROSS + j] =
                                MULTIPLY_ADD(a[i], b, sums[i * MATRICES_ACROSS + j]);
                    }
                }
                barrier();
            }
            [[unroll]] for (uint i = 0; i < MY_EIGHTS; ++i)
                if (me + i * WORKGROUP < ROWS * EIGHTS)
                    record_magnitude((me + i * WORKGROUP) / EIGHTS, my_x_max[i]);
            [[unroll]] for (uint i = 0; i < MY_GROUPS; ++i)
                if (me + i * WORKGROUP < OUTPUTS * GROUPS)
                    record_magnitude(ROWS + (me + i * WORKGROUP) / GROUPS, my_w_max[i]);
            barrier();
            fit_scales();
            barrier();
            if (needs_rescale == 0) break;
            barrier();  // needs_rescale is reset after this
        }
        [[unroll]] for (uint i = 0; i < MATRICES_DOWN; ++i)
            [[unroll]] for (uint j = 0; j < MATRICES_ACROSS; ++j) {
                STORE_ROWS(sums[i * MATRICES_ACROSS + j], sum_tile, my_sums, N);
                subgroupBarrier();
                for (uint e = gl_SubgroupInvocationID; e < M * N; e += gl_SubgroupSize) {
                    const uint row = my_row + i * M + e / N, o = my_output + j * N + e % N;
                    store(first_row + row, n, first_output + o, sum_tile[my_sums + e],
                          inverse(scales[row]), inverse(scales[ROWS + o]));
                }
                subgroupBarrier();
            }
        barrier();  // the scales are reset after this
    }
}
