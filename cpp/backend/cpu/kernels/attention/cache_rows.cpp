// The kernels that write and rotate rows of a cache.
#include "backend/cpu/kernels/attention/cache_rows.h"
#include "backend/cpu/kernels/attention/cache.h"
#include "backend/cpu/kernels/attention/rotate.h"

namespace plait::cpu::PLAIT_ISA {

// Rotates every head of row rows[i] by deltas[i] positions, in place. Blocks without any of the
// n_rot elements from `begin` on stay as they are, unless the storage holds a Hadamard transform.
// Reference: tests/reference/rotate_rows.py.

// A task is one head of every row, so that rotations of a row that is listed twice stay in order.
int64_t rotate_rows_tasks(const RotateRowsArgs& args, const Frame& frame) {
    return frame.rows(args.extent, args.fixed_rows) == 0 ? 0 : args.heads;
}

void rotate_rows(const RotateRowsArgs& args, const Frame& frame, const Worker& worker,
                 int64_t begin, int64_t end) {
    const int64_t moves = frame.rows(args.extent, args.fixed_rows);
    const int32_t* rows = frame.at<const int32_t>(args.rows);
    const int32_t* deltas = frame.at<const int32_t>(args.deltas);
    const float* factors = args.has_factors ? frame.at<const float>(args.factors) : nullptr;
    const int64_t n_rot = args.frequencies.n_rot;
    const int64_t half = n_rot / 2;
    const int64_t block = block_elements(args.dtype);
    const RotatedPart part = rotated_part(args, block);
    const int64_t offset = part.offset / block * block_bytes(args.dtype);

    double* frequencies = reinterpret_cast<double*>(worker.scratch);
    float* cosines = reinterpret_cast<float*>(frequencies + half);
    float* sines = cosines + half;
    float* head = sines + half;
    for (int64_t i = 0; i < half; ++i)
        frequencies[i] = frequency(args.frequencies, i, factors ? factors[i] : 1.0);

    for (int64_t m = 0; m < moves; ++m) {
        if (deltas[m] == 0 && args.magnitude == 1.0) continue;
        if (m == 0 || deltas[m] != deltas[m - 1]) {
            for (int64_t i = 0; i < half; ++i) {
                const double angle = deltas[m] * frequencies[i];
                cosines[i] = static_cast<float>(args.magnitude * __builtin_cos(angle));
                sines[i] = static_cast<float>(args.magnitude * __builtin_sin(angle));
            }
        }
        for (int64_t h = begin; h < end; ++h) {
            unsigned char* stored = frame.at<unsigned char>(args.storage) +
                                    rows[m] * args.row_bytes + h * args.head_bytes + offset;
            decode_cache(args.dtype, stored, head, part.elements);
            if (args.hadamard) transform_blocks(head, args.head_dim, args.hadamard);
            float* rotated = head + (args.begin - part.offset);
            if (args.interleaved)
                rotate_pairs(rotated, cosines, sines, rotated, half);
            else
                rotate_halves(rotated, cosines, sines, rotated, half);
            if (args.hadamard) transform_blocks(head, args.head_dim, args.hadamard);
            encode_cache(args.dtype, head, stored, part.elements);
        }
    }
}

// Row rows[i] of a cache = row i of x, in the cache's type, each head padded with zeros to whole
// blocks, after its Hadamard transform if the cache stores that. Reference:
// tests/reference/store_rows.py.

// A task is a token.
int64_t store_rows_tasks(const StoreRowsArgs& args, const Frame& frame) {
    return frame.rows(args.extent, args.fixed_rows);
}

// Scratch: head_elements floats.
void store_rows(const StoreRowsArgs& args, const Frame& frame, const Worker& worker, int64_t begin,
                int64_t end) {
    const int32_t* rows = frame.at<const int32_t>(args.rows);
    const int64_t head_bytes =
        args.head_elements / block_elements(args.dtype) * block_bytes(args.dtype);
    float* padded = reinterpret_cast<float*>(worker.scratch);
    if (args.width < args.head_elements)
        memset(padded, 0, static_cast<size_t>(args.head_elements) * sizeof(float));
    for (int64_t t = begin; t < end; ++t) {
        const float* x = frame.at<const float>(args.x) + t * args.heads * args.width;
        unsigned char* row = frame.at<unsigned char>(args.storage) + rows[t] * args.row_bytes;
        for (int64_t h = 0; h < args.heads; ++h) {
            const float* head = x + h * args.width;
            if (args.width < args.head_elements || args.hadamard) {
                memcpy(padded, head, static_cast<size_t>(args.width) * sizeof(float));
                if (args.hadamard) transform_blocks(padded, args.width, args.hadamard);
                head = padded;
            }
            encode_cache(args.dtype, head, row + h * head_bytes, args.head_elements);
        }
    }
}

}  // namespace plait::cpu::PLAIT_ISA
