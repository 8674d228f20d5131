// The activation functions, for one register.
#pragma once

#include "backend/cpu/simd/simd.h"
#include "graph/op_enums.h"

namespace plait::cpu::PLAIT_ISA {

template <Activation kind>
PLAIT_INLINE F32 activated(F32 x) {
    if constexpr (kind == Activation::silu) {
        return x * sigmoid(x);
    } else if constexpr (kind ==
                         Activation::
                             gelu) {  // x Phi(x), with 1 - Phi(|x|) = erfc(|x| / sqrt 2) / 2
        const F32 beyond = F32::set(0.5f) * erfc_positive(abs(x) * F32::set(0.70710678118654752f));
        return x * select_less(x, F32::zero(), beyond, F32::set(1.0f) - beyond);
    } else if constexpr (kind == Activation::gelu_tanh) {  // (1 + tanh(u)) / 2 = sigmoid(2 u)
        const F32 cubic = fma(x * x, F32::set(0.044715f), F32::set(1.0f)) * x;
        return x * sigmoid(cubic * F32::set(1.59576912160573071f));
    } else if constexpr (kind == Activation::relu) {
        return max(F32::zero(), x);
    } else if constexpr (kind == Activation::relu_squared) {
        const F32 positive = max(F32::zero(), x);
        return positive * positive;
    } else if constexpr (kind == Activation::sigmoid) {
        return sigmoid(x);
    } else if constexpr (kind == Activation::tanh) {
        return tanh(x);
    } else if constexpr (kind == Activation::exp) {
        return exp(x);
    } else {  // log(1 + exp(x))
        return max(F32::zero(), x) + log1p_unit(exp(negate(abs(x))));
    }
}

// Calls body(f), where f is the activation function `kind`.
template <typename Body>
PLAIT_INLINE void with_activation(Activation kind, Body body) {
    switch (kind) {
    case Activation::silu: return body([](F32 x) { return activated<Activation::silu>(x); });
    case Activation::gelu: return body([](F32 x) { return activated<Activation::gelu>(x); });
    case Activation::gelu_tanh:
        return body([](F32 x) { return activated<Activation::gelu_tanh>(x); });
    case Activation::relu: return body([](F32 x) { return activated<Activation::relu>(x); });
    case Activation::relu_squared:
        return body([](F32 x) { return activated<Activation::relu_squared>(x); });
    case Activation::sigmoid: return body([](F32 x) { return activated<Activation::sigmoid>(x); });
    case Activation::tanh: return body([](F32 x) { return activated<Activation::tanh>(x); });
    case Activation::softplus:
        return body([](F32 x) { return activated<Activation::softplus>(x); });
    case Activation::exp: return body([](F32 x) { return activated<Activation::exp>(x); });
    }
}

}  // namespace plait::cpu::PLAIT_ISA
