// Rotary parameters as GGUF files state them.
#pragma once

#include "graph/graph.h"
#include "model/hparams.h"
#include "model/weights.h"

namespace plait {

// Reads rope.* keys: base, rotated dimensions, linear scaling and YaRN (arXiv:2309.00071).
// UnsupportedError for a scaling type that we do not know.
Rope read_rope(const Hparams& hparams, int head_dim, bool interleaved);

// M-RoPE, arXiv:2409.12191: several positions a token, of which each turns some of the pairs, as
// rope.dimension_sections says (three or four counts of pairs). Pairs are half a head apart.
bool has_rope_sections(const Hparams& hparams);
Rope read_mrope(const Hparams& hparams, int head_dim);

// The same rotation with positions as they are: no scaling of any kind.
Rope without_scaling(Rope rope);

// Per-pair frequency divisors of llama-3 style scaling; nothing where the file has none.
Weight read_rope_factors(const Weights& weights, const Rope& rope);

}  // namespace plait
