"""The methods of plait.Sampler on a row of logits, float64, -inf for removed tokens, in the simplest form."""

import math

import numpy as np


def softmax(x):
    weights = np.exp(x - x.max())
    return weights / weights.sum()


def order(x):
    """Remaining tokens, highest first; of equal ones, lower ids first."""
    return [i for i in np.argsort(-x, kind="stable") if x[i] > -math.inf]


def keep(x, tokens):
    result = np.full_like(x, -math.inf)
    result[list(tokens)] = x[list(tokens)]
    return result


def bias(x, added=None, banned=(), allowed=None):
    x = x.copy()
    for token, value in (added or {}).items():
        x[token] += value
    x[list(banned)] = -math.inf
    return x if allowed is None else keep(x, allowed)


def penalties(x, tokens, repetition=1.0, presence=0.0, frequency=0.0):
    x = x.copy()
    for token in set(tokens):
        x[token] = x[token] / repetition if x[token] > 0 else x[token] * repetition
        x[token] -= tokens.count(token) * frequency + presence
    return x


def dry(x, tokens, multiplier, base=1.75, allowed_length=2, breakers=()):
    """For each token but the breakers, the longest n such that the last n tokens followed by it occurred before."""
    x = x.copy()
    for token in set(range(len(x))) - set(breakers):
        longest = 0
        for n in range(1, len(tokens)):
            end = tokens[-n:]
            if set(end) & set(breakers):
                break
            for at in range(len(tokens) - n):
                if tokens[at : at + n] == end and tokens[at + n] == token:
                    longest = n
        if longest >= allowed_length:
            x[token] -= multiplier * base ** (longest - allowed_length)
    return x


def top_k(x, k):
    return keep(x, order(x)[:k])


def top_p(x, p):
    probabilities, kept, total = softmax(x), [], 0.0
    for token in order(x):
        kept.append(token)
        total += probabilities[token]
        if total >= p:
            break
    return keep(x, kept)


def min_p(x, p):
    probabilities = softmax(x)
    return keep(x, np.flatnonzero(probabilities >= p * probabilities.max()))


def entropy(x):
    probabilities = softmax(x)
    left = probabilities[probabilities > 0]
    return -(left * np.log(left)).sum()


def typical(x, p):
    probabilities, h = softmax(x), entropy(x)
    by_distance = sorted(order(x), key=lambda i: abs(-math.log(probabilities[i]) - h))
    kept, total = [], 0.0
    for token in by_distance:
        kept.append(token)
        total += probabilities[token]
        if total >= p:
            break
    return keep(x, kept)


def top_n_sigma(x, n):
    left = x[x > -math.inf]
    return keep(x, np.flatnonzero(x >= left.max() - n * left.std()))


def xtc(x, threshold):
    """The logits without the excluded tokens."""
    probabilities = softmax(x)
    top = [i for i in order(x) if probabilities[i] >= threshold]
    return keep(x, [i for i in order(x) if i not in top[:-1]])


def temperature(x, t, dynamic_range=0.0, exponent=1.0):
    if dynamic_range:
        low, high = max(0.0, t - dynamic_range), t + dynamic_range
        t = low + (high - low) * (entropy(x) / math.log((x > -math.inf).sum())) ** exponent
    return x / t if t else keep(x, order(x)[:1])


def mirostat(x, mu):
    surprise = -np.log2(np.maximum(softmax(x), 1e-300))
    return keep(x, {order(x)[0], *np.flatnonzero(surprise <= mu)})
