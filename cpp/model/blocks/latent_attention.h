// Multi-head latent attention (MLA), DeepSeek-V2, arXiv:2405.04434. Keys and values of all heads
// are projections of one latent vector c. Only c and a rotated part of the keys, which heads share,
// are stored.
//
//   l, k_r = Wa x;  c = n(l);  q_h, r_h = Wq_h x, or Wqb_h n(Wqa x)
//   score_h = q_h . Wk_h c + rope(r_h) . rope(k_r) = (Wk_h^T q_h) . c + rope(r_h) . rope(k_r)
//   y = Wo [Wv_h sum_t p_h,t c_t]                         queries attend to latent vectors directly
//
// Older files have Wk and Wv in one matrix; with them, full keys and values are stored.
#pragma once

#include "graph/ops.h"
#include "memory/layout.h"
#include "model/blocks/attention.h"
#include "model/blocks/norm.h"
#include "model/hparams.h"
#include "model/rope.h"
#include "model/step.h"
#include "model/weights.h"

namespace plait {

struct LatentSizes {
    int n_heads = 0;
    int rank = 0;        // of c
    int query_rank = 0;  // 0: queries are one projection
    int key_dim = 0;     // of a head, including the rotated part
    int value_dim = 0;
    bool stores_latent = false;  // false: stores keys and values
};

struct LatentAttention {
    LatentSizes sizes;
    Rotation rotation;
    bool rotates = true;      // false: the rotated part is used as it is
    Temperature temperature;  // multiplies the queries
    Step::Attention how;
    int plain_dim() const { return sizes.key_dim - rotation.rope.n_rot; }
    // The first rotated element of a stored key.
    int rotated_from() const { return sizes.stores_latent ? sizes.rank : plain_dim(); }
};
// `value_dim`: the default for attention.value_length; 0 makes the key required. `layer`: the first
// layer with latent attention, whose head_count_kv is checked.
LatentAttention read_latent_attention(const Hparams& hparams, RopePairs pairs, int value_dim = 0,
                                      int layer = 0);
// DeepSeek's use of YaRN: if rope.scaling.yarn_log_multiplier c is not 0, the magnitude of rotations
// is rope.scaling.attn_factor a, and scores are multiplied by (a (1 + c ln factor))^2.
void scale_scores_by_yarn(const Hparams& hparams, LatentAttention& attention);
AttentionSpec latent_attention_spec(const LatentAttention& a);

struct LatentWeights {
    Weight wq;           // [h key, width]
    Weight wq_a, wq_b;   // [q rank, width], [h key, q rank]; replace wq
    NormWeights q_norm;  // [q rank]
    Weight wkv_a;        // [rank + rotated, width]
    NormWeights c_norm;  // [rank]
    Weight wk_b, wv_b;   // [h, rank, plain], [h, value, rank]
    Weight wkv_b;        // [h (plain + value), rank]; replaces both
    Weight wo;           // [width, h value]
};
LatentWeights read_latent_weights(const LayerWeights& w, int width, const LatentAttention& a);

Value latent_attention(Step& step, int layer, Value x, const LatentWeights& w,
                       const LatentAttention& a, const Norm& norm);

}  // namespace plait
