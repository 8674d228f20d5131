#include "graph/ops/linear.h"

#include "graph/ops/shapes.h"

namespace plait {

Value linear(Value x, Value weight, Value bias) {
    PLAIT_CHECK(weight.shape().rank == 2 && x.shape().rank == 2);
    PLAIT_CHECK(x.shape()[1] == weight.shape()[1]);
    PLAIT_CHECK(!bias || bias.shape().elements() == weight.shape()[0]);
    return x.graph->add(ops::Linear{x, weight, bias}, floats({x.shape()[0], weight.shape()[0]}),
                        x.extent());
}

Value head_linear(Value x, Value weight) {
    const Shape& w = weight.shape();
    PLAIT_CHECK(w.rank == 3 && x.shape().rank == 3 && x.shape()[1] == w[0] && x.shape()[2] == w[2]);
    return x.graph->add(ops::HeadLinear{x, weight}, floats({x.shape()[0], w[0], w[1]}), x.extent());
}

Value mix(Value x, Value weights) {
    const Shape& w = weights.shape();
    PLAIT_CHECK(w.rank == 3 && x.shape().rank == 3 && x.shape()[0] == w[0] && x.shape()[1] == w[2]);
    return x.graph->add(ops::Mix{x, weights}, floats({w[0], w[1], x.shape()[2]}), x.extent());
}

}  // namespace plait
