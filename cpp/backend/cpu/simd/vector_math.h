// exp, tanh and others for registers of several lanes, computed by polynomials; simd.h states their
// errors. The registers.h of each vector instruction set includes this header.
#pragma once

namespace plait::cpu::PLAIT_ISA {

PLAIT_INLINE F32 negate(F32 a) { return F32::set(-0.0f) ^ a; }

constexpr float kLog2E = 1.44269504088896341f;

// exp(x - n ln 2) for |x - n ln 2| <= ln(2) / 2, with the polynomial of Cephes expf.
PLAIT_INLINE F32 exp_of_rest(F32 x, F32 n) {
    F32 r = fma(n, F32::set(-0.693359375f), x);
    r = fma(n, F32::set(2.12194440e-4f), r);
    F32 p = F32::set(1.9875691500e-4f);
    p = fma(p, r, F32::set(1.3981999507e-3f));
    p = fma(p, r, F32::set(8.3334519073e-3f));
    p = fma(p, r, F32::set(4.1665795894e-2f));
    p = fma(p, r, F32::set(1.6666665459e-1f));
    p = fma(p, r, F32::set(5.0000001201e-1f));
    return fma(p, r * r, r) + F32::set(1.0f);
}

// exp(x) = 2^n exp(x - n ln 2), n = round(x / ln 2).
PLAIT_INLINE F32 exp(F32 x) {
    x = min(F32::set(89.0f), max(F32::set(-104.0f), x));  // these give 0 and +inf; NaN stays NaN
    const F32 n = round(x * F32::set(kLog2E));
    return times_power_of_two(exp_of_rest(x, n), n);
}

// The same for x <= 0 with fewer instructions. Adding 1.5 * 2^23 rounds to an integer, which is then
// in the low bits of the sum; with 127 added they are the exponent field of 2^n, and n = -127 gives 0.
PLAIT_INLINE F32 exp_nonpositive(F32 x) {
    x = max(F32::set(-88.0f), x);  // gives 0; NaN stays NaN
    const F32 rounder = F32::set(12582912.0f + 127.0f);
    const F32 rounded = fma(x, F32::set(kLog2E), rounder);
    return exp_of_rest(x, rounded - rounder) * exponent_of_low_bits(rounded);
}

// 2^x = 2^n 2^r, n = round(x), with (2^r - 1) / r interpolated at the Chebyshev nodes of |r| <=
// 1/2.
PLAIT_INLINE F32 exp2(F32 x) {
    x = min(F32::set(129.0f), max(F32::set(-151.0f), x));  // these give 0 and +inf; NaN stays NaN
    const F32 n = round(x);
    const F32 r = x - n;
    F32 p = F32::set(1.5453163e-4f);
    p = fma(p, r, F32::set(1.3390863e-3f));
    p = fma(p, r, F32::set(9.6180830e-3f));
    p = fma(p, r, F32::set(5.5503570e-2f));
    p = fma(p, r, F32::set(2.4022651e-1f));
    p = fma(p, r, F32::set(6.9314718e-1f));
    p = fma(p, r, F32::set(1.0f));
    return times_power_of_two(p, n);
}

// 2^n for integers n in [-151, 129].
PLAIT_INLINE F32 power_of_two(F32 n) { return times_power_of_two(F32::set(1.0f), n); }

// Cephes tanhf below 0.625, 1 - 2 / (exp(2x) + 1) above.
PLAIT_INLINE F32 tanh(F32 x) {
    const F32 a = abs(x);
    const F32 s = x * x;
    F32 p = F32::set(-5.70498872745e-3f);
    p = fma(p, s, F32::set(2.06390887954e-2f));
    p = fma(p, s, F32::set(-5.37397155531e-2f));
    p = fma(p, s, F32::set(1.33314422036e-1f));
    p = fma(p, s, F32::set(-3.33332819422e-1f));
    p = fma(p * s, x, x);
    const F32 one = F32::set(1.0f);
    const F32 large = one - F32::set(2.0f) / (exp(a + a) + one);
    return select_less(a, F32::set(0.625f), p, large | (x & F32::set(-0.0f)));
}

// The complementary error function for x >= 0: Abramowitz and Stegun 7.1.26.
PLAIT_INLINE F32 erfc_positive(F32 x) {
    const F32 one = F32::set(1.0f);
    const F32 t = one / fma(x, F32::set(0.3275911f), one);
    F32 p = F32::set(1.061405429f);
    p = fma(p, t, F32::set(-1.453152027f));
    p = fma(p, t, F32::set(1.421413741f));
    p = fma(p, t, F32::set(-0.284496736f));
    p = fma(p, t, F32::set(0.254829592f));
    return p * t * exp(negate(x * x));
}

// log(1 + x) for 0 <= x <= 1, as 2 atanh(x / (2 + x)).
PLAIT_INLINE F32 log1p_unit(F32 x) {
    const F32 s = x / (x + F32::set(2.0f));
    const F32 q = s * s;
    F32 p = F32::set(2.0f / 17);
    p = fma(p, q, F32::set(2.0f / 15));
    p = fma(p, q, F32::set(2.0f / 13));
    p = fma(p, q, F32::set(2.0f / 11));
    p = fma(p, q, F32::set(2.0f / 9));
    p = fma(p, q, F32::set(2.0f / 7));
    p = fma(p, q, F32::set(2.0f / 5));
    p = fma(p, q, F32::set(2.0f / 3));
    return fma(p * q, s, s + s);
}

}  // namespace plait::cpu::PLAIT_ISA
