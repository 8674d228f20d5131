// The recurrences of RWKV-6 and RWKV-7.
#include "backend/cpu/kernels/recurrence/state_rows.h"

namespace plait::cpu::PLAIT_ISA {

// RWKV-6, arXiv:2404.05892:
//   y = r (S + diag(u) k^T v),  S = diag(w) S + k^T v
// with S [keys, values] for each head. The second term of y is v times the scalar r . (u k).
// Reference: tests/reference/wkv6.py.

namespace {

float sum_of_products(const float* a, const float* b, const float* c, int64_t n) {
    F32 s = F32::zero();
    int64_t i = 0;
    for (; i + F32::kLanes <= n; i += F32::kLanes)
        s = fma(F32::load(a + i) * F32::load(b + i), F32::load(c + i), s);
    if (i < n)
        s = fma(F32::load(a + i, n - i) * F32::load(b + i, n - i), F32::load(c + i, n - i), s);
    return sum(s);
}

}  // namespace

int64_t wkv6_tasks(const Wkv6Args& args, const Frame& frame) {
    return tile_tasks(args.states, frame);
}

void wkv6(const Wkv6Args& args, const Frame& frame, const Worker&, int64_t begin, int64_t end) {
    const int64_t dim = args.states.rows;
    const int64_t token = args.states.heads * dim;  // floats from one token to the next
    for (int64_t task = begin; task < end; ++task) {
        const TileTask tile = tile_task(args.states, frame, task);
        const float* u = frame.at<const float>(args.u) + tile.head * dim;
        for_each_token(tile, [&](auto columns, int64_t t, const float* from, float* to) {
            const int64_t head = t * token + tile.head * dim;
            const float* r = frame.at<const float>(args.r) + head;
            const float* k = frame.at<const float>(args.k) + head;
            const float* w = frame.at<const float>(args.w) + head;
            const StateRow v = columns.load(frame.at<const float>(args.v) + head + tile.first);
            if (t + 1 < tile.tokens.end) {
                prefetch(r + token, dim);
                prefetch(k + token, dim);
                prefetch(w + token, dim);
            }
            const StateRow past = step_rows(dim, [&](int64_t i, const StateRow& sum) {
                const StateRow s = columns.load(from + i * columns.n);
                columns.store(fma(F32::set(w[i]), s, F32::set(k[i]) * v), to + i * columns.n);
                return fma(F32::set(r[i]), s, sum);
            });
            const F32 own = F32::set(sum_of_products(r, u, k, dim));
            columns.store(fma(own, v, past), frame.at<float>(args.y) + head + tile.first);
        });
    }
}

// RWKV-7, arXiv:2503.14456:
//   S = S diag(w) + (S a^T) b + v^T k,  y = S r^T
// with S [values, keys] for each head.  Reference: tests/reference/wkv7.py.
int64_t wkv7_tasks(const Wkv7Args& args, const Frame& frame) {
    return tile_tasks(args.states, frame);
}

void wkv7(const Wkv7Args& args, const Frame& frame, const Worker&, int64_t begin, int64_t end) {
    const int64_t dim = args.states.rows;
    const int64_t token = args.states.heads * dim;  // floats from one token to the next
    for (int64_t task = begin; task < end; ++task) {
        const TileTask tile = tile_task(args.states, frame, task);
        for_each_token(tile, [&](auto columns, int64_t t, const float* from, float* to) {
            const int64_t head = t * token + tile.head * dim;
            const float* r = frame.at<const float>(args.r) + head;
            const float* w = frame.at<const float>(args.w) + head;
            const float* k = frame.at<const float>(args.k) + head;
            const float* a = frame.at<const float>(args.a) + head;
            const float* b = frame.at<const float>(args.b) + head;
            const StateRow v = columns.load(frame.at<const float>(args.v) + head + tile.first);
            if (t + 1 < tile.tokens.end) {
                prefetch(r + token, dim);
                prefetch(w + token, dim);
                prefetch(k + token, dim);
                prefetch(a + token, dim);
                prefetch(b + token, dim);
            }
            const StateRow s_a = sum_rows(dim, [&](int64_t i, const StateRow& sum) {
                return fma(F32::set(a[i]), columns.load(from + i * columns.n), sum);
            });
            const StateRow y = step_rows(dim, [&](int64_t i, const StateRow& sum) {
                const StateRow added = fma(F32::set(b[i]), s_a, F32::set(k[i]) * v);
                const StateRow s = fma(F32::set(w[i]), columns.load(from + i * columns.n), added);
                columns.store(s, to + i * columns.n);
                return fma(F32::set(r[i]), s, sum);
            });
            columns.store(y, frame.at<float>(args.y) + head + tile.first);
        });
    }
}

}  // namespace plait::cpu::PLAIT_ISA
