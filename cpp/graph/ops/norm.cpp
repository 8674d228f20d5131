#include "graph/ops/norm.h"

#include "graph/ops/shapes.h"

namespace plait {

Value rms_norm(Value x, Value weight, float epsilon) {
    PLAIT_CHECK(!weight || repeats_in(weight, x));
    return add_like(x, ops::RmsNorm{x, weight, epsilon});
}

Value layer_norm(Value x, Value weight, Value bias, float epsilon) {
    PLAIT_CHECK(weight ? repeats_in(weight, x) : !bias);
    PLAIT_CHECK(!bias || bias.shape().elements() == weight.shape().elements());
    return add_like(x, ops::LayerNorm{x, weight, bias, epsilon});
}

Value l2_norm(Value x, float epsilon) { return add_like(x, ops::L2Norm{x, epsilon}); }

Value row_sum(Value x) {
    return x.graph->add(ops::RowSum{x}, floats(with_last(x.shape(), 1)), x.extent());
}

}  // namespace plait
