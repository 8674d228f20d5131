// Ops that compute each element from one element of each operand, and ops that cut or join rows.
#pragma once

#include "graph/op_enums.h"
#include "graph/op_info.h"

namespace plait {

namespace ops {

// The operands of binary ops: b has the shape of a; or it is a vector, [m] or as long as a row,
// that repeats for every row; or it has one element for each vector of a's last axis, [..., 1], for
// the vectors of all rows or of one, [h, 1]; or one element for each row, [n, 1]; or one element in
// all.
struct Add {
    Operand a, b;
    static constexpr OpInfo kInfo{.name = "add", .row_wise = true};
    static constexpr auto kOperands = operands(&Add::a, &Add::b);
    bool operator==(const Add&) const = default;
};

struct Sub {
    Operand a, b;
    static constexpr OpInfo kInfo{.name = "sub", .row_wise = true};
    static constexpr auto kOperands = operands(&Sub::a, &Sub::b);
    bool operator==(const Sub&) const = default;
};

struct Mul {
    Operand a, b;
    static constexpr OpInfo kInfo{.name = "mul", .row_wise = true};
    static constexpr auto kOperands = operands(&Mul::a, &Mul::b);
    bool operator==(const Mul&) const = default;
};

// factor * x + offset
struct Scale {
    Operand x;
    float factor;
    float offset = 0.0f;
    static constexpr OpInfo kInfo{.name = "scale", .row_wise = true};
    static constexpr auto kOperands = operands(&Scale::x);
    bool operator==(const Scale&) const = default;
};

// cap * tanh(x / cap)
struct Softcap {
    Operand x;
    float cap;
    static constexpr OpInfo kInfo{.name = "softcap", .row_wise = true};
    static constexpr auto kOperands = operands(&Softcap::x);
    bool operator==(const Softcap&) const = default;
};

// min(max(x, -limit), limit)
struct Clamp {
    Operand x;
    float limit;
    static constexpr OpInfo kInfo{.name = "clamp", .row_wise = true};
    static constexpr auto kOperands = operands(&Clamp::x);
    bool operator==(const Clamp&) const = default;
};

struct Activate {
    Operand x;
    Activation activation;
    static constexpr OpInfo kInfo{.name = "activate", .row_wise = true};
    static constexpr auto kOperands = operands(&Activate::x);
    bool operator==(const Activate&) const = default;
};

// activation(g) * up
struct Gate {
    Operand g, up;
    Activation activation;
    static constexpr OpInfo kInfo{.name = "gate", .row_wise = true};
    static constexpr auto kOperands = operands(&Gate::g, &Gate::up);
    bool operator==(const Gate&) const = default;
};

// g' sigmoid(alpha g') (up' + 1) with g' = min(g, limit), up' = clamp(up, -limit, limit); gpt-oss.
struct ClampedSwiglu {
    Operand g, up;
    float alpha;
    float limit;
    static constexpr OpInfo kInfo{.name = "clamped_swiglu", .row_wise = true};
    static constexpr auto kOperands = operands(&ClampedSwiglu::g, &ClampedSwiglu::up);
    bool operator==(const ClampedSwiglu&) const = default;
};

// Elements from `begin` on of the last axis.
struct Slice {
    Operand x;
    int64_t begin;
    static constexpr OpInfo kInfo{.name = "slice", .row_wise = true};
    static constexpr auto kOperands = operands(&Slice::x);
    bool operator==(const Slice&) const = default;
};

// Joins along the last axis. One head of b may be shared by all heads of a.
struct Concat {
    Operand a, b;
    static constexpr OpInfo kInfo{.name = "concat", .row_wise = true};
    static constexpr auto kOperands = operands(&Concat::a, &Concat::b);
    bool operator==(const Concat&) const = default;
};

}  // namespace ops

// Each result has the same shape as a or x, slices and joins apart.
Value operator+(Value a, Value b);
Value operator-(Value a, Value b);
Value operator*(Value a, Value b);
Value scale(Value x, float factor, float offset = 0.0f);            // same shape
Value softcap(Value x, float cap);                                  // same shape
Value clamp(Value x, float limit);                                  // same shape
Value activate(Value x, Activation activation);                     // same shape
Value gate(Value g, Value up, Activation activation);               // same shape
Value clamped_swiglu(Value g, Value up, float alpha, float limit);  // same shape
Value slice(Value x, int64_t begin, int64_t count);                 // [..., m] -> [..., count]
Value concat(Value a, Value b);  // [n, h, d], [n, h | 1, e] -> [n, h, d + e]

}  // namespace plait
