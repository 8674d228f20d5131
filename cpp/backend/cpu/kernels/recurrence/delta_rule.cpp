// The gated delta rule, arXiv:2412.06464:
//   S = exp(g) S;  S += k^T beta (v - k S);  y = q S
// with S [key_dim, value_dim] for each head.  Reference: tests/reference/delta_rule.py.
#include "backend/cpu/kernels/recurrence/state_rows.h"

namespace plait::cpu::PLAIT_ISA {

int64_t delta_rule_tasks(const DeltaRuleArgs& args, const Frame& frame) {
    return tile_tasks(args.states, frame);
}

void delta_rule(const DeltaRuleArgs& args, const Frame& frame, const Worker&, int64_t begin,
                int64_t end) {
    const int64_t heads = args.states.heads;
    const int64_t key_dim = args.states.rows;
    for (int64_t task = begin; task < end; ++task) {
        const TileTask tile = tile_task(args.states, frame, task);
        const int64_t key_head =
            args.tiled ? tile.head % args.key_heads : tile.head / (heads / args.key_heads);
        for_each_token(tile, [&](auto columns, int64_t t, const float* from, float* to) {
            const int64_t key = (t * args.key_heads + key_head) * key_dim;
            const int64_t head = t * heads + tile.head;
            const int64_t at = head * args.states.columns + tile.first;
            const float* q = frame.at<const float>(args.q) + key;
            const float* k = frame.at<const float>(args.k) + key;
            const F32 decay = exp(F32::set(frame.at<const float>(args.g)[head]));
            const F32 beta = F32::set(frame.at<const float>(args.beta)[head]);
            const StateRow v = columns.load(frame.at<const float>(args.v) + at);
            const StateRow k_s = sum_rows(key_dim, [&](int64_t i, const StateRow& sum) {
                return fma(F32::set(k[i]), columns.load(from + i * columns.n), sum);
            });
            const StateRow delta = beta * (v - decay * k_s);
            const StateRow y = step_rows(key_dim, [&](int64_t i, const StateRow& sum) {
                const StateRow s =
                    fma(decay, columns.load(from + i * columns.n), F32::set(k[i]) * delta);
                columns.store(s, to + i * columns.n);
                return fma(F32::set(q[i]), s, sum);
            });
            columns.store(y, frame.at<float>(args.y) + at);
        });
    }
}

}  // namespace plait::cpu::PLAIT_ISA
