// Rotary position parameters of GGUF files.
#pragma once

#include "graph/graph.h"
#include "model/hparams.h"
#include "model/weights.h"

namespace plait {

// Which elements of a head are rotated together: 2i and 2i + 1, or i and i + n_rot / 2.
enum class RopePairs : uint8_t { none, neighbours, halves };

// How one layer rotates its queries and keys.
struct Rotation {
    Rope rope;            // n_rot 0: no rotation
    Weight factors;       // [n_rot / 2], divisors of the frequencies; optional
    Weight long_factors;  // LongRoPE: replace `factors` in contexts longer than the original one

    const Weight& factors_for(int64_t n_ctx) const {
        return long_factors && n_ctx > rope.n_ctx_original ? long_factors : factors;
    }
};

// Reads the rope.* keys: base, rotated elements, linear scaling and YaRN (arXiv:2309.00071).
// Throws UnsupportedError for an unknown type of scaling. RopePairs::none gives no rotation.
Rope read_rope(const Hparams& hparams, int head_dim, RopePairs pairs);

// M-RoPE, arXiv:2409.12191: a token has several positions, and each of them rotates the number of
// pairs given in rope.dimension_sections (three or four counts). The elements of a pair are half a
// head apart. `in_turn`: see Rope.
bool has_rope_sections(const Hparams& hparams);
Rope read_mrope(const Hparams& hparams, int head_dim, bool in_turn = false);

// Returns the same rotation without scaling of positions or magnitude.
Rope without_scaling(Rope rope);
// Returns the rotation of Gemma's layers with a window, given that of the layers without: positions
// are not scaled, and the base is rope.freq_base_swa. Throws ModelError if the file has a
// rope.scaling.attn_factor: transformers multiplies only layers without a window by it, llama.cpp
// multiplies all layers.
Rope read_windowed_gemma_rope(const Hparams& hparams, const Rope& full);

// Reads the factors of LongRoPE, arXiv:2402.13753, if the file has them.
void read_long_rope_factors(const Weights& weights, Rotation& rotation);

// Divisors of the frequencies as Llama 3 scales them; absent if the file has none.
Weight read_rope_factors(const Weights& weights, const Rope& rope);

}  // namespace plait
