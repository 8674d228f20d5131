// A program that computes one product with weights of one type, for instructions.py, which counts
// the instructions. Arguments: rows, outputs, columns. Values are zeros: the kernels have no
// branches on values.
//
// PLAIT_BLOCK (BlockQ4_0) selects plait's kernel, LLAMA_GEMM (ggml_gemm_q4_0_4x8_q8_0) and LLAMA_GEMV
// those of llama.cpp.
#include <cstdlib>
#include <vector>

#ifdef PLAIT_BLOCK
#include "backend/cpu/kernels/products/block_product.h"

int main(int, char** argv) {
    using namespace plait::cpu;
    const int64_t rows = atoi(argv[1]), outputs = atoi(argv[2]), columns = atoi(argv[3]);
    using Layout = BlockLayout<plait::PLAIT_BLOCK>;
    PackedWeight w{};
    w.isa = &PLAIT_ISA::kRow;
    w.format = plait::DType::q4_0;  // any block type: the kernel is chosen below
    w.lanes = w.isa->panel_lanes;
    w.rows = outputs;
    w.columns = columns;
    w.matrices = 1;
    w.panel_bytes = columns / plait::PLAIT_BLOCK::kElements * Layout::kBlock * w.lanes;
    std::vector<unsigned char> weights(static_cast<size_t>(w.panel_bytes * w.panels()));
    std::vector<float> x(static_cast<size_t>(rows * columns / 32 * 10));
    std::vector<float> y(static_cast<size_t>(rows * outputs));
    std::vector<float> scratch(static_cast<size_t>(product_scratch_bytes(w) / 4 + 1));
    Product p{};
    p.weight = &w;
    p.matrix = weights.data();
    p.x = reinterpret_cast<const unsigned char*>(x.data());
    p.x_rows = rows;
    p.y = y.data();
    p.y_columns = outputs;
    p.row_step = p.x_share = 1;
    p.n = rows;
    PLAIT_ISA::multiply_blocks<plait::PLAIT_BLOCK>(
        p, 0, w.panels(), reinterpret_cast<unsigned char*>(scratch.data()));
}
#else
extern "C" {
void LLAMA_GEMM(int n, float* s, size_t bs, const void* vx, const void* vy, int nr, int nc);
void LLAMA_GEMV(int n, float* s, size_t bs, const void* vx, const void* vy, int nr, int nc);
}

int main(int, char** argv) {
    const int rows = atoi(argv[1]), outputs = atoi(argv[2]), columns = atoi(argv[3]);
    const auto bytes = [&](int n) { return static_cast<size_t>(n) * columns * 2; };  // enough
    std::vector<float> x(bytes(rows) / 4), weights(bytes(outputs) / 4);
    std::vector<float> y(static_cast<size_t>(rows * outputs));
    (rows == 1 ? LLAMA_GEMV : LLAMA_GEMM)(columns, y.data(), static_cast<size_t>(outputs),
                                          weights.data(), x.data(), rows, outputs);
}
#endif
