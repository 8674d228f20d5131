// Rows of a packed table, dequantised exactly.
// Reference: tests/reference/embed.py.
#include "backend/cpu/kernels/products/linear.h"

#include "backend/cpu/kernels/products/read_columns.h"

namespace plait::cpu::PLAIT_ISA {
namespace {

void read_row(const PackedWeight& table, int64_t row, float* y) {
    const unsigned char* panel = table.data + row / table.lanes * table.panel_bytes;
    read_columns(table, panel, row % table.lanes, 0, table.columns, y);
}

}  // namespace

int64_t embed_tasks(const EmbedArgs& args, const Frame& frame) {
    return frame.rows(args.extent, args.fixed_rows);
}

void embed(const EmbedArgs& args, const Frame& frame, const Worker&, int64_t begin, int64_t end) {
    const auto* tokens = frame.at<const int32_t>(args.tokens);
    float* y = frame.at<float>(args.y);
    for (int64_t i = begin; i < end; ++i)
        read_row(args.table, tokens[i], y + i * args.table.columns);
}

}  // namespace plait::cpu::PLAIT_ISA
