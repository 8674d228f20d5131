#include "graph/ops/routing.h"

#include "graph/ops/shapes.h"

namespace plait {

Value route(Value logits, const RouteParams& params, Value bias, Value expert_scale) {
    const int64_t n_experts = logits.shape()[1];
    PLAIT_CHECK(logits.shape().rank == 2 && params.n_used >= 1 && params.n_used <= n_experts);
    PLAIT_CHECK(params.n_groups >= 1 && n_experts % params.n_groups == 0);
    PLAIT_CHECK(params.n_groups_used >= 1 && params.n_groups_used <= params.n_groups);
    PLAIT_CHECK(n_experts / params.n_groups * params.n_groups_used >= params.n_used);
    PLAIT_CHECK(!bias || bias.shape().elements() == n_experts);
    PLAIT_CHECK(!expert_scale || expert_scale.shape().elements() == n_experts);
    return logits.graph->add(ops::Route{logits, bias, expert_scale, params},
                             {DType::i32, {logits.shape()[0], params.n_used, 2}}, logits.extent());
}

Value expert_linear(Value x, Value weight, Value routes, Value bias) {
    PLAIT_CHECK(weight.shape().rank == 3 && x.shape()[-1] == weight.shape()[2]);
    PLAIT_CHECK(x.shape().rank == 2 || x.shape()[1] == routes.shape()[1]);
    return x.graph->add(ops::ExpertLinear{x, weight, routes, bias},
                        floats({x.shape()[0], routes.shape()[1], weight.shape()[1]}), x.extent());
}

Value combine(Value y, Value routes) {
    PLAIT_CHECK(y.shape().rank == 3 && y.shape()[1] == routes.shape()[1]);
    return y.graph->add(ops::Combine{y, routes}, floats({y.shape()[0], y.shape()[2]}), y.extent());
}

}  // namespace plait
