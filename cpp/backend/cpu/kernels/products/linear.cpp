// linear multiplies all rows by one matrix, head_linear each head by its own.
#include "backend/cpu/kernels/products/linear.h"
#include "backend/cpu/kernels/products/product.h"

namespace plait::cpu::PLAIT_ISA {

// y = x W^T (+ bias) (+ residual).  Reference: tests/reference/linear.py.
int64_t linear_tasks(const LinearArgs& args, const Frame& frame) {
    const int64_t n = frame.rows(args.extent, args.fixed_rows);
    if (n == 0) return 0;
    const ProductCut cut = cut_product(args.weight, n, 1, args.threads);
    return cut.panel_tasks * cut.row_tasks;
}

namespace {

Product product_of(const LinearArgs& args, const Frame& frame, int64_t n) {
    Product product{};
    product.weight = &args.weight;
    product.matrix = args.weight.data;
    product.x = frame.at<const unsigned char>(args.x);
    product.x_rows = n;
    product.y = frame.at<float>(args.y);
    product.y_columns = args.weight.rows;
    product.bias = args.has_bias ? frame.at<const float>(args.bias) : nullptr;
    product.residual = args.has_residual ? frame.at<const float>(args.residual) : nullptr;
    product.row_step = 1;
    product.x_share = 1;
    product.n = n;
    if (n == 1)  // other threads have just written x
        for (int64_t i = 0; i < args.weight.input_bytes(); i += 64)
            __builtin_prefetch(product.x + i);
    return product;
}

}  // namespace

// Tasks with the same panels follow each other.
void linear(const LinearArgs& args, const Frame& frame, const Worker& worker, int64_t begin,
            int64_t end) {
    const PackedWeight& w = args.weight;
    const int64_t n = frame.rows(args.extent, args.fixed_rows);
    const ProductCut cut = cut_product(w, n, 1, args.threads);
    Product product = product_of(args, frame, n);
    const auto stop = [&](int64_t panel) { return panel < w.panels() ? panel : w.panels(); };
    // With a single row group the weights are read once, so one call takes all panels.
    const bool once = n <= kMaxTileRows;
    if (worker.claim) {
        const int64_t first = begin * cut.panels, last = stop(end * cut.panels);
        const int64_t together = once ? last - first : cut.panels;
        multiply_claimed(product, n, first, last, together, *worker.claim, worker.scratch);
        return;
    }
    for (int64_t task = begin, last; task < end; task = last) {
        last = once ? end : task + 1;
        const int64_t panel = task / cut.row_tasks * cut.panels;
        product.first = task % cut.row_tasks * cut.rows;
        product.n = n - product.first < cut.rows ? n - product.first : cut.rows;
        multiply(product, panel, stop(panel + (last - task) * cut.panels), worker.scratch);
    }
}

// Each head of y = the same head of x times the head's matrix.
// Reference: tests/reference/head_linear.py.
int64_t head_linear_tasks(const HeadLinearArgs& args, const Frame& frame) {
    const int64_t n = frame.rows(args.extent, args.fixed_rows);
    if (n == 0) return 0;
    const ProductCut cut = cut_product(args.weight, n, args.weight.matrices, args.threads);
    return args.weight.matrices * cut.panel_tasks * cut.row_tasks;
}

// Tasks with the same panels follow each other, then those of the same head.
void head_linear(const HeadLinearArgs& args, const Frame& frame, const Worker& worker,
                 int64_t begin, int64_t end) {
    const PackedWeight& w = args.weight;
    const int64_t n = frame.rows(args.extent, args.fixed_rows);
    const ProductCut cut = cut_product(w, n, w.matrices, args.threads);
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
