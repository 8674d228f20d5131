// The activation functions, on a register at a time.
#pragma once

#include "backend/cpu/simd/simd.h"

namespace plait::cpu {

// plait::Activation, number for number.
enum Act : uint8_t {
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

template <Act how>
PLAIT_INLINE F32 act(F32 x) {
    if constexpr (how == kSilu) {
        return x * sigmoid(x);
    } else if constexpr (how == kGelu) {  // x Phi(x), with 1 - Phi(|x|) = erfc(|x| / sqrt 2) / 2
        const F32 beyond = F32::set(0.5f) * erfc_positive(abs(x) * F32::set(0.70710678118654752f));
        return x * select_less(x, F32::zero(), beyond, F32::set(1.0f) - beyond);
    } else if constexpr (how == kGeluTanh) {  // (1 + tanh(u)) / 2 = sigmoid(2 u)
        const F32 cubic = fma(x * x, F32::set(0.044715f), F32::set(1.0f)) * x;
        return x * sigmoid(cubic * F32::set(1.59576912160573071f));
    } else if constexpr (how == kRelu) {
        return max(F32::zero(), x);
    } else if constexpr (how == kReluSquared) {
        const F32 positive = max(F32::zero(), x);
        return positive * positive;
    } else if constexpr (how == kSigmoid) {
        return sigmoid(x);
    } else if constexpr (how == kTanh) {
        return tanh(x);
    } else if constexpr (how == kExp) {
        return exp(x);
    } else {  // log(1 + exp(x))
        return max(F32::zero(), x) + log1p_unit(exp(negate(abs(x))));
    }
}

// Calls body(f) with f the activation function `how`.
template <typename Body>
PLAIT_INLINE void with_activation(uint8_t how, Body body) {
    switch (how) {
    case kSilu: return body([](F32 x) { return act<kSilu>(x); });
    case kGelu: return body([](F32 x) { return act<kGelu>(x); });
    case kGeluTanh: return body([](F32 x) { return act<kGeluTanh>(x); });
    case kRelu: return body([](F32 x) { return act<kRelu>(x); });
    case kReluSquared: return body([](F32 x) { return act<kReluSquared>(x); });
    case kSigmoid: return body([](F32 x) { return act<kSigmoid>(x); });
    case kTanh: return body([](F32 x) { return act<kTanh>(x); });
    case kSoftplus: return body([](F32 x) { return act<kSoftplus>(x); });
    case kExp: return body([](F32 x) { return act<kExp>(x); });
    default: return;
    }
}

}  // namespace plait::cpu::PLAIT_ISA
