// The activation functions, for one register.
#pragma once

#include "backend/cpu/simd/simd.h"

namespace plait::cpu {

// Has the values of plait::Activation.
enum ActivationKind : uint8_t {
    kSilu,
    kGelu,
    kGeluTanh,
    kRelu,
    kReluSquared,
    kSigmoid,
    kTanh,
    kSoftplus,
    kExp
};

}  // namespace plait::cpu

namespace plait::cpu::PLAIT_ISA {

template <ActivationKind kind>
PLAIT_INLINE F32 activated(F32 x) {
    if constexpr (kind == kSilu) {
        return x * sigmoid(x);
    } else if constexpr (kind == kGelu) {  // x Phi(x), with 1 - Phi(|x|) = erfc(|x| / sqrt 2) / 2
        const F32 beyond = F32::set(0.5f) * erfc_positive(abs(x) * F32::set(0.70710678118654752f));
        return x * select_less(x, F32::zero(), beyond, F32::set(1.0f) - beyond);
    } else if constexpr (kind == kGeluTanh) {  // (1 + tanh(u)) / 2 = sigmoid(2 u)
        const F32 cubic = fma(x * x, F32::set(0.044715f), F32::set(1.0f)) * x;
        return x * sigmoid(cubic * F32::set(1.59576912160573071f));
    } else if constexpr (kind == kRelu) {
        return max(F32::zero(), x);
    } else if constexpr (kind == kReluSquared) {
        const F32 positive = max(F32::zero(), x);
        return positive * positive;
    } else if constexpr (kind == kSigmoid) {
        return sigmoid(x);
    } else if constexpr (kind == kTanh) {
        return tanh(x);
    } else if constexpr (kind == kExp) {
        return exp(x);
    } else {  // log(1 + exp(x))
        return max(F32::zero(), x) + log1p_unit(exp(negate(abs(x))));
    }
}

// Calls body(f), where f is the activation function `kind`.
template <typename Body>
PLAIT_INLINE void with_activation(uint8_t kind, Body body) {
    switch (kind) {
    case kSilu: return body([](F32 x) { return activated<kSilu>(x); });
    case kGelu: return body([](F32 x) { return activated<kGelu>(x); });
    case kGeluTanh: return body([](F32 x) { return activated<kGeluTanh>(x); });
    case kRelu: return body([](F32 x) { return activated<kRelu>(x); });
    case kReluSquared: return body([](F32 x) { return activated<kReluSquared>(x); });
    case kSigmoid: return body([](F32 x) { return activated<kSigmoid>(x); });
    case kTanh: return body([](F32 x) { return activated<kTanh>(x); });
    case kSoftplus: return body([](F32 x) { return activated<kSoftplus>(x); });
    case kExp: return body([](F32 x) { return activated<kExp>(x); });
    default: return;
    }
}

}  // namespace plait::cpu::PLAIT_ISA
