#include "backend/vulkan/ops/operands.h"

namespace plait::vulkan {
namespace {

struct Args {
    Ref tokens, y;
    uint64_t table, row_bytes;
    Rows rows;
    uint32_t columns;
};

}  // namespace

void bind(const EmbedOp&, const Node& node, Binder& binder) {
    const Matrix& table = binder.matrix(node.inputs[0]);
    const Args args{binder.ref(node.inputs[1]),
                    binder.ref(binder.id_of(node)),
                    table.address,
                    table.row_bytes,
                    rows_of(node),
                    table.columns};
    binder.step(node, "embed", {static_cast<uint32_t>(table.dtype)},
                {fixed_axis(table.columns, 16 * 64), axis(args.rows)}, args);
}

}  // namespace plait::vulkan
