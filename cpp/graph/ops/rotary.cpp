#include "graph/ops/rotary.h"

#include "graph/ops/shapes.h"

namespace plait {

Value rope_table(Value positions, const Rope& rope, Value factors) {
    PLAIT_CHECK(rope.n_rot > 0 && rope.n_rot % 2 == 0);
    PLAIT_CHECK(!factors || factors.shape().elements() == rope.n_rot / 2);
    return positions.graph->add(ops::RopeTable{positions, factors, rope},
                                floats({positions.shape()[0], rope.n_rot / 2, 2}),
                                positions.extent());
}

Value rope(Value x, Value table, const Rope& rope) {
    PLAIT_CHECK(x.shape().rank == 3 && rope.n_rot <= x.shape()[2]);
    PLAIT_CHECK(table.shape()[1] == rope.n_rot / 2);
    return add_like(x, ops::Rope{x, table, rope.n_rot, rope.interleaved});
}

Value rotate_rows(Value storage, Value rows, Value deltas, const StoredHeads& heads,
                  Value factors) {
    PLAIT_CHECK(heads.begin >= 0 && heads.begin + heads.rope.n_rot <= heads.head_dim);
    return storage.graph->add(ops::RotateRows{storage, rows, deltas, factors, heads},
                              storage.type(), Extent::fixed);
}

}  // namespace plait
