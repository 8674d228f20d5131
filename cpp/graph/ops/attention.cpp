#include "graph/ops/attention.h"

#include "graph/ops/shapes.h"

namespace plait {

Value attend(const AttendInputs& in, const AttendParams& params) {
    PLAIT_CHECK(in.q.shape() == Shape({in.q.shape()[0], params.n_heads, params.key_dim}));
    PLAIT_CHECK(params.n_kv_heads > 0 && params.n_heads % params.n_kv_heads == 0);
    const bool by_position = params.bias != PositionBias::none;
    PLAIT_CHECK(by_position == static_cast<bool>(in.positions));
    PLAIT_CHECK(by_position == static_cast<bool>(in.key_positions));
    PLAIT_CHECK(by_position == static_cast<bool>(in.key_begin));
    PLAIT_CHECK((params.bias == PositionBias::buckets) == static_cast<bool>(in.bias));
    const ops::Attend op{.q = in.q,
                         .keys = in.keys,
                         .values = in.values,
                         .token_begin = in.token_begin,
                         .runs = in.runs,
                         .run_begin = in.run_begin,
                         .first = in.first,
                         .last = in.last,
                         .sinks = in.sinks,
                         .positions = in.positions,
                         .key_positions = in.key_positions,
                         .key_begin = in.key_begin,
                         .bias = in.bias,
                         .params = params};
    return in.q.graph->add(op, floats({in.q.shape()[0], params.n_heads, params.value_dim}),
                           in.q.extent());
}

Value temperature(Value positions, const Temperature& how) {
    PLAIT_CHECK(positions.shape().rank == 1 && how.length > 0 && how.length <= INT32_MAX);
    PLAIT_CHECK(how.offset >= 0);
    return positions.graph->add(ops::Temperature{positions, how}, floats({positions.shape()[0], 1}),
                                positions.extent());
}

}  // namespace plait
