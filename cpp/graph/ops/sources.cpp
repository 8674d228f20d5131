#include "graph/ops/sources.h"

#include "graph/ops/shapes.h"

namespace plait {

Value reshape(Value x, Shape shape) {
    PLAIT_CHECK(x.shape().elements() == shape.elements() && x.shape()[0] == shape[0]);
    return x.graph->add(ops::Reshape{x}, {x.type().dtype, shape}, x.extent());
}

Value split_heads(Value x, int n_heads) {
    PLAIT_CHECK(x.shape().rank == 2 && x.shape()[1] % n_heads == 0);
    return reshape(x, {x.shape()[0], n_heads, x.shape()[1] / n_heads});
}

Value merge_heads(Value x) {
    PLAIT_CHECK(x.shape().rank == 3);
    return reshape(x, {x.shape()[0], x.shape()[1] * x.shape()[2]});
}

Value weight_row(Value weight, int64_t row) {
    PLAIT_CHECK(weight.shape().rank == 2 && row >= 0 && row < weight.shape()[0]);
    return weight.graph->add(ops::WeightRow{weight, row}, floats({weight.shape()[1]}),
                             Extent::fixed);
}

Value edit(Value x, uint16_t index) { return add_like(x, ops::Edit{x, index}); }

}  // namespace plait
