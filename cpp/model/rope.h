// Rotary parameters as GGUF files state them.
#pragma once

#include "graph/graph.h"
#include "model/hparams.h"
#include "model/weights.h"

namespace plait {

// Reads rope.* keys: base, rotated dimensions, linear scaling and YaRN (arXiv:2309.00071).
// UnsupportedError for a scaling type that we do not know.
Rope read_rope(const Hparams& hparams, int head_dim, bool interleaved);

// The same rotation with positions as they are: no scaling of any kind.
Rope without_scaling(Rope rope);

// Per-pair frequency divisors of llama-3 style scaling; nothing where the file has none.
Weight read_rope_factors(const Weights& weights, const Rope& rope);

}  // namespace plait
