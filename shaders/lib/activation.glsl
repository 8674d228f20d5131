// Activation functions, numbered as plait::Activation.

float tanh_of(float x) {
    const float e = exp(-2.0 * abs(x));
    return sign(x) * (1.0 - e) / (1.0 + e);
}
float sigmoid(float x) { return 1.0 / (1.0 + exp(-x)); }

// erfc(x) for x >= 0. Numerical Recipes, 2nd edition, section 6.2: relative error below 1.2e-7.
float erfc_positive(float x) {
    const float t = 1.0 / (1.0 + 0.5 * x);
    const float sum = -1.26551223 + t * (1.00002368 + t * (0.37409196 + t * (0.09678418 +
        t * (-0.18628806 + t * (0.27886807 + t * (-1.13520398 + t * (1.48851587 +
        t * (-0.82215223 + t * 0.17087277))))))));
    return t * exp(-x * x + sum);
}

// x * Phi(x), where 1 - Phi(|x|) = erfc(|x| / sqrt 2) / 2.
float gelu(float x) {
    const float beyond = 0.5 * erfc_positive(abs(x) * 0.70710678118654752);
    return x * (x < 0.0 ? beyond : 1.0 - beyond);
}

float log1p_unit(float y) {  // log(1 + y) for 0 <= y <= 1, accurate for small y
    const float z = 1.0 + y;
    return z == 1.0 ? y : log(z) * (y / (z - 1.0));
}

float activation(uint how, float x) {
    switch (how) {
    case 0: return x * sigmoid(x);
    case 1: return gelu(x);
    case 2: return x * sigmoid(1.59576912160573071 * x * (1.0 + 0.044715 * x * x));
    case 3: return max(x, 0.0);
    case 4: return max(x, 0.0) * max(x, 0.0);
    case 5: return sigmoid(x);
    case 6: return tanh_of(x);
    case 7: return max(x, 0.0) + log1p_unit(exp(-abs(x)));
    default: return exp(x);
    }
}
