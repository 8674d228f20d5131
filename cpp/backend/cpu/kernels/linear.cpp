// y = x W^T (+ bias) (+ residual).  Reference: tests/reference/linear.py.
#include "backend/cpu/kernels/linear.h"

#include "backend/cpu/kernels/product.h"

namespace plait::cpu::PLAIT_ISA {

int64_t linear_tasks(const void* raw, const Frame& frame) {
    const auto& args = *static_cast<const LinearArgs*>(raw);
    const int64_t n = frame.rows(args.extent, args.fixed_rows);
    if (n == 0) return 0;
    const ProductCut cut = cut_product(args.weight, n);
    return cut.panel_tasks * cut.row_tasks;
}

// Tasks of the same panels follow each other.
void linear(const void* raw, const Frame& frame, const Worker& worker, int64_t begin, int64_t end) {
    const auto& args = *static_cast<const LinearArgs*>(raw);
    const PackedWeight& w = args.weight;
    const int64_t n = frame.rows(args.extent, args.fixed_rows);
    const ProductCut cut = cut_product(w, n);
    for (int64_t task = begin, last; task < end; task = last) {
        last = cut.row_tasks == 1 ? end : task + 1;
        const int64_t panel = task / cut.row_tasks * cut.panels;
        const int64_t row = task % cut.row_tasks * cut.rows;
        Product product{};
        product.weight = &w;
        product.matrix = w.data;
        product.x = frame.at<const unsigned char>(args.x);
        product.x_rows = n;
        product.y = frame.at<float>(args.y);
        product.bias = args.has_bias ? frame.at<const float>(args.bias) : nullptr;
        product.first = row;
        product.row_step = 1;
        product.residual = args.has_residual ? frame.at<const float>(args.residual) : nullptr;
        product.x_share = 1;
        product.n = n - row < cut.rows ? n - row : cut.rows;
        if (n == 1)  // written by other threads just now
            for (int64_t i = 0; i < w.input_bytes(); i += 64) __builtin_prefetch(product.x + i);
        const int64_t stop = panel + (last - task) * cut.panels;
        multiply(product, panel, stop < w.panels() ? stop : w.panels(), worker.scratch);
    }
}

}  // namespace plait::cpu::PLAIT_ISA
