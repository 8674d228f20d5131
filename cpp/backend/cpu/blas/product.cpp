// Products of many rows by OpenBLAS: weights and activations are dequantised to f32, strip after
// strip of columns, and multiplied by cblas_sgemm(). Products of fewer rows and all other kernels
// are the scalar ones. docs/decisions/0048 has the reasons.
//
// cblas_sgemm() may choose another order of additions for another number of rows, so the bits of a
// row depend on how many rows are multiplied with it.
#include "backend/cpu/blas/library.h"
#include "backend/cpu/kernels/common/quantized_rows.h"
#include "backend/cpu/kernels/common/table.h"
#include "backend/cpu/kernels/products/product_job.h"
#include "backend/cpu/kernels/products/read_columns.h"

namespace plait::cpu::blas {
namespace {

constexpr int64_t kMinRows = kRedoRows + 1;  // a task of few rows may be done twice
// Max outputs and rows of a call of cblas_sgemm(), and its max columns: a multiple of every block.
constexpr int64_t kCallOutputs = 128, kCallRows = 256, kCallColumns = 512;
constexpr int64_t kMinOutputs = 32;  // of a task

// The scratch of a thread.
struct BlasScratch {
    float x[kCallRows * kCallColumns];     // [rows][columns]
    float w[kCallOutputs * kCallColumns];  // [outputs][columns]
    float y[kCallRows * kCallOutputs];     // [rows][outputs]
};

// Writes columns [begin, end) of a row of the product's activations.
void read_input(const Product& product, int64_t i, int64_t begin, int64_t end, float* to) {
    const int64_t columns = product.weight->columns, row = product.row(i) / product.x_share;
    if (is_float(product.weight->format)) {
        const auto* x = reinterpret_cast<const float*>(product.x) + row * columns;
        memcpy(to, x + begin, static_cast<size_t>(end - begin) * sizeof *to);
        return;
    }
    // Rows of quantize_rows are only read.
    auto* x = const_cast<unsigned char*>(product.x);
    const QuantizedRow from = quantized_row(x, product.x_rows, columns, row);
    for (int64_t b = begin / 32; b < end / 32; ++b) {
        const int8_t* codes = from.block_codes(b);
        const float scale = *from.block_scale(b);
        for (int k = 0; k < 32; ++k) *to++ = scale * static_cast<float>(codes[k]);
    }
}

// Multiplies rows [row, row + rows) by panels [begin, end), which have one output each.
void multiply_part(const Product& product, int64_t row, int64_t rows, int64_t begin, int64_t end,
                   BlasScratch& scratch) {
    const PackedWeight& w = *product.weight;
    const int64_t outputs = end - begin;
    memset(scratch.y, 0, static_cast<size_t>(rows * outputs) * sizeof *scratch.y);
    for (int64_t k = 0; k < w.columns; k += kCallColumns) {
        const int64_t stop = k + kCallColumns < w.columns ? k + kCallColumns : w.columns;
        const int64_t columns = stop - k;
        for (int64_t p = 0; p < outputs; ++p)
            read_columns(w, product.matrix + (begin + p) * w.panel_bytes, 0, k, stop,
                         scratch.w + p * columns);
        for (int64_t r = 0; r < rows; ++r)
            read_input(product, row + r, k, stop, scratch.x + r * columns);
        multiply_by_openblas(static_cast<int>(rows), static_cast<int>(outputs),
                             static_cast<int>(columns), scratch.x, scratch.w, scratch.y);
    }
    for (int64_t r = 0; r < rows; ++r) {
        float* y = product.y + product.row(row + r) * product.y_columns;
        for (int64_t p = 0; p < outputs; ++p)
            store(product, y, begin + p, F32::load(scratch.y + r * outputs + p));
    }
}

void multiply(const Product& product, int64_t begin, int64_t end, unsigned char* scratch) {
    auto& parts = *reinterpret_cast<BlasScratch*>(scratch);
    for (int64_t row = 0; row < product.n; row += kCallRows) {
        const int64_t rows = product.n - row < kCallRows ? product.n - row : kCallRows;
        for (int64_t p = begin; p < end; p += kCallOutputs)
            multiply_part(product, row, rows, p, p + kCallOutputs < end ? p + kCallOutputs : end,
                          parts);
    }
}

ProductCut cut(int64_t panels, int64_t rows, int64_t matrices, int64_t) {
    ProductCut cut;
    cut.rows = kCallRows;
    cut.row_tasks = (rows + cut.rows - 1) / cut.rows;
    cut.panels = kCallOutputs;
    const auto tasks = [&] { return (panels + cut.panels - 1) / cut.panels; };
    while (tasks() * cut.row_tasks * matrices < kMinTasks && cut.panels > kMinOutputs)
        cut.panels /= 2;
    cut.panel_tasks = tasks();
    return cut;
}

constexpr TileProduct kBlasProduct{kMinRows, sizeof(BlasScratch), cut, multiply};

}  // namespace
}  // namespace plait::cpu::blas

namespace plait::cpu {

namespace scalar {
const Kernels& kernels();
}

namespace blas {

// The scalar kernels, with OpenBLAS for products of many rows.
const Kernels& kernels() {
    static const Kernels table = [] {
        Kernels kernels = scalar::kernels();
        kernels.tiles = [](DType) { return &kBlasProduct; };
        return kernels;
    }();
    return table;
}

}  // namespace blas
}  // namespace plait::cpu
