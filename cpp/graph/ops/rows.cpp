#include "graph/ops/rows.h"

#include "graph/ops/shapes.h"

namespace plait {

Value embed(Value table, Value tokens) {
    PLAIT_CHECK(table.shape().rank == 2 && tokens.type().dtype == DType::i32);
    return table.graph->add(ops::Embed{table, tokens},
                            floats({tokens.shape()[0], table.shape()[1]}), tokens.extent());
}

Value select_rows(Value x, Value rows) {
    PLAIT_CHECK(x.type().dtype == DType::f32 && rows.type().dtype == DType::i32);
    Shape shape = x.shape();
    shape.dims[0] = rows.shape()[0];
    return x.graph->add(ops::SelectRows{x, rows}, floats(shape), rows.extent());
}

Value store_rows(Value storage, Value x, Value rows) {
    PLAIT_CHECK(storage.shape().rank == 2 && rows.type().dtype == DType::i32);
    return x.graph->add(ops::StoreRows{storage, x, rows}, storage.type(), Extent::fixed);
}

Value copy_rows(Value storage, Value from, Value to) {
    return storage.graph->add(ops::CopyRows{storage, from, to}, storage.type(), Extent::fixed);
}

}  // namespace plait
