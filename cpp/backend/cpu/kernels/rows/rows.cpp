// The kernels that copy rows or parts of vectors.
#include <string.h>

#include "backend/cpu/kernels/common/quantized_rows.h"
#include "backend/cpu/kernels/rows/rows.h"
#include "backend/cpu/simd/dot.h"

namespace plait::cpu::PLAIT_ISA {

// Row to[i] = row from[i], for each i in order.  Reference: tests/reference/copy_rows.py.

constexpr int64_t kSliceBytes = 1024;

// A task is a slice of every row, so that moves of a row that is both source and target stay in
// order.
int64_t copy_rows_tasks(const CopyRowsArgs& args, const Frame& frame) {
    if (frame.rows(args.extent, args.fixed_rows) == 0) return 0;
    return (args.row_bytes + kSliceBytes - 1) / kSliceBytes;
}

void copy_rows(const CopyRowsArgs& args, const Frame& frame, const Worker&, int64_t begin,
               int64_t end) {
    const int64_t moves = frame.rows(args.extent, args.fixed_rows);
    const int32_t* from = frame.at<const int32_t>(args.from);
    const int32_t* to = frame.at<const int32_t>(args.to);
    const int64_t first = begin * kSliceBytes;
    const int64_t last = end * kSliceBytes < args.row_bytes ? end * kSliceBytes : args.row_bytes;
    unsigned char* storage = frame.at<unsigned char>(args.storage) + first;
    for (int64_t i = 0; i < moves; ++i) {
        if (from[i] == to[i]) continue;
        memcpy(storage + to[i] * args.row_bytes, storage + from[i] * args.row_bytes,
               static_cast<size_t>(last - first));
    }
}

// Row i of y = row rows[i] of x.  Reference: tests/reference/select_rows.py.

// A task is a row.
int64_t select_rows_tasks(const SelectRowsArgs& args, const Frame& frame) {
    return frame.rows(args.extent, args.fixed_rows);
}

void select_rows(const SelectRowsArgs& args, const Frame& frame, const Worker&, int64_t begin,
                 int64_t end) {
    const int32_t* rows = frame.at<const int32_t>(args.rows);
    for (int64_t i = begin; i < end; ++i)
        memcpy(frame.at<unsigned char>(args.y) + i * args.row_bytes,
               frame.at<const unsigned char>(args.x) + rows[i] * args.row_bytes,
               static_cast<size_t>(args.row_bytes));
}

namespace {

// y = f(x, row) for `n` elements.
template <typename F>
PLAIT_INLINE void change_row(const float* x, const float* row, float* y, int64_t n, F f) {
    int64_t i = 0;
    for (; i + F32::kLanes <= n; i += F32::kLanes)
        f(F32::load(x + i), F32::load(row + i)).store(y + i);
    f(F32::load(x + i, n - i), F32::load(row + i, n - i)).store(y + i, n - i);
}

}  // namespace

// y = x with some rows changed.  Reference: tests/reference/edit_rows.py.

// A task is a row.
int64_t edit_rows_tasks(const EditRowsArgs& args, const Frame& frame) {
    return frame.rows(args.extent, args.fixed_rows);
}

void edit_rows(const EditRowsArgs& args, const Frame& frame, const Worker&, int64_t begin,
               int64_t end) {
    const int64_t n = args.row_elements;
    for (int64_t i = begin; i < end; ++i) {
        const float* x = frame.at<const float>(args.x) + i * n;
        float* y = frame.at<float>(args.y) + i * n;
        const int32_t* pick = frame.at<const int32_t>(args.picks) + 2 * i;
        const float* row =
            frame.at<const float>(args.rows) + (args.rows_by_row != 0 ? i * n : pick[0]);
        if (pick[0] < 0)
            memcpy(y, x, static_cast<size_t>(n) * sizeof(float));
        else if (pick[1] == static_cast<int32_t>(RowChange::add))
            change_row(x, row, y, n, [](F32 a, F32 b) { return a + b; });
        else if (pick[1] == static_cast<int32_t>(RowChange::scale))
            change_row(x, row, y, n, [](F32 a, F32 b) { return a * b; });
        else
            memcpy(y, row, static_cast<size_t>(n) * sizeof(float));
    }
}

// y = elements [begin, begin + width) of each vector of x.  Reference: tests/reference/slice_.py.
int64_t slice_tasks(const SliceArgs& args, const Frame& frame) {
    return vector_tasks(args.vectors, frame);
}

void slice(const SliceArgs& args, const Frame& frame, const Worker&, int64_t begin, int64_t end) {
    const int64_t n = args.vectors.width;
    const VectorRange range = vectors_in(args.vectors, frame, begin, end);
    for (int64_t v = range.begin; v < range.end; ++v)
        memcpy(frame.at<float>(args.y) + v * n,
               frame.at<const float>(args.x) + v * args.x_width + args.begin,
               static_cast<size_t>(n) * sizeof(float));
}

// Each vector of y = a vector of a, followed by one of b.  Reference: tests/reference/concat.py.
int64_t concat_tasks(const ConcatArgs& args, const Frame& frame) {
    return vector_tasks(args.vectors, frame);
}

void concat(const ConcatArgs& args, const Frame& frame, const Worker&, int64_t begin, int64_t end) {
    const int64_t a_width = args.a_width;
    const int64_t b_width = args.vectors.width - a_width;
    const VectorRange range = vectors_in(args.vectors, frame, begin, end);
    for (int64_t v = range.begin; v < range.end; ++v) {
        float* y = frame.at<float>(args.y) + v * args.vectors.width;
        const int64_t of_b = args.b_is_shared ? v / args.vectors.per_row : v;
        memcpy(y, frame.at<const float>(args.a) + v * a_width,
               static_cast<size_t>(a_width) * sizeof(float));
        memcpy(y + a_width, frame.at<const float>(args.b) + of_b * b_width,
               static_cast<size_t>(b_width) * sizeof(float));
    }
}

namespace {

int64_t rows_per_task(const QuantizeRowsArgs& args) {
    return args.columns < 4096 ? 4096 / args.columns : 1;
}

int64_t rows(const QuantizeRowsArgs& args, const Frame& frame) {
    return frame.rows(args.extent, args.fixed_rows) * args.rows_per_item;
}

// The number that is closest to x and not infinite in BF16.
PLAIT_INLINE F32 limited(F32 x) {
    constexpr float kLargest = 0x1.fep127f;
    const F32 low = F32::set(-kLargest), high = F32::set(kLargest);
    return select_less(x, low, low, select_less(high, x, high, x));
}

// Rounds the 32 columns of a block of a row, of which it has n.
void round_columns(const float* x, int64_t n, const RoundedRow& to, int64_t block) {
    for (int64_t k = 0; k < 32; k += F32::kLanes) {
        F32 left = n - k >= F32::kLanes ? F32::load(x + k)
                   : n > k              ? F32::load(x + k, n - k)
                                        : F32::zero();
        for (int64_t part = 0; part < to.parts; ++part) {
            uint16_t* const rounded = to.at(part, block) + k;
            (part + 1 < to.parts ? limited(left) : left).store_bf16(rounded);
            left = left - F32::load_bf16(rounded);
        }
    }
}

}  // namespace

int64_t quantize_rows_tasks(const QuantizeRowsArgs& args, const Frame& frame) {
    const int64_t per_task = rows_per_task(args);
    return (rows(args, frame) + per_task - 1) / per_task;
}

// Reference: tests/reference/linear.py.
void quantize_rows(const QuantizeRowsArgs& args, const Frame& frame, const Worker&, int64_t begin,
                   int64_t end) {
    const int64_t n = args.columns;
    const int64_t all = rows(args, frame);
    const int64_t stop = end * rows_per_task(args) < all ? end * rows_per_task(args) : all;
    for (int64_t r = begin * rows_per_task(args); r < stop; ++r) {
        const float* x = frame.at<const float>(args.x) + r * n;
        quantize_row(x, quantized_row(frame.at<unsigned char>(args.y), all, n, r), n);
    }
}

int64_t round_rows_tasks(const RoundRowsArgs& args, const Frame& frame) {
    return quantize_rows_tasks(args, frame);
}

void round_rows(const RoundRowsArgs& args, const Frame& frame, const Worker&, int64_t begin,
                int64_t end) {
    const int64_t all = rows(args, frame), per_task = rows_per_task(args);
    for (int64_t r = begin * per_task; r < end * per_task && r < all; ++r) {
        const float* x = frame.at<const float>(args.x) + r * args.columns;
        const RoundedRow to =
            rounded_row(frame.at<unsigned char>(args.y), all, args.columns, args.parts, r);
        for (int64_t k = 0; k < args.columns; k += 32)
            round_columns(x + k, args.columns - k, to, k / 32);
    }
}

}  // namespace plait::cpu::PLAIT_ISA
