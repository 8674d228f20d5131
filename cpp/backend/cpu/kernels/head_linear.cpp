// Each head of y = the same head of x times a matrix of its own.
// Reference: tests/reference/head_linear.py.
#include "backend/cpu/kernels/head_linear.h"

#include "backend/cpu/kernels/product.h"

namespace plait::cpu::PLAIT_ISA {

int64_t head_linear_tasks(const void* raw, const Frame& frame) {
    const auto& args = *static_cast<const HeadLinearArgs*>(raw);
    const int64_t n = frame.rows(args.extent, args.fixed_rows);
    if (n == 0) return 0;
    const ProductCut cut = cut_product(args.weight, n, args.weight.matrices);
    return args.weight.matrices * cut.panel_tasks * cut.row_tasks;
}

// Tasks of the same panels follow each other, then those of the same head.
void head_linear(const void* raw, const Frame& frame, const Worker& worker, int64_t begin,
                 int64_t end) {
    const auto& args = *static_cast<const HeadLinearArgs*>(raw);
    const PackedWeight& w = args.weight;
    const int64_t n = frame.rows(args.extent, args.fixed_rows);
    const ProductCut cut = cut_product(w, n, w.matrices);
    for (int64_t task = begin; task < end; ++task) {
        const int64_t head = task / (cut.panel_tasks * cut.row_tasks);
        const int64_t panel = task / cut.row_tasks % cut.panel_tasks * cut.panels;
        const int64_t row = task % cut.row_tasks * cut.rows;
        Product product{};
        product.weight = &w;
        product.matrix = w.data + head * w.matrix_bytes;
        product.x = frame.at<const unsigned char>(args.x);
        product.x_rows = n * w.matrices;
        product.y = frame.at<float>(args.y);
        product.y_columns = w.rows;
        product.first = row * w.matrices + head;
        product.row_step = w.matrices;
        product.x_share = 1;
        product.n = n - row < cut.rows ? n - row : cut.rows;
        const int64_t stop = panel + cut.panels;
        multiply(product, panel, stop < w.panels() ? stop : w.panels(), worker.scratch);
    }
}

}  // namespace plait::cpu::PLAIT_ISA
