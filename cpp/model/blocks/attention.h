// Attention blocks whose queries, keys and values are projections of one input.
#pragma once

#include "graph/ops.h"
#include "model/blocks/norm.h"
#include "model/rope.h"
#include "model/step.h"
#include "model/weights.h"

namespace plait {

// Sizes of an attention block.
struct Heads {
    int n_heads = 0;
    int n_kv_heads = 0;  // 0: the layer has no attention, in models that mix
    int head_dim = 0;    // of keys and values alike
};
// Counts are one number for all layers, or one each.
Heads read_heads(const Hparams& hparams, int width, int layer);
Heads read_heads(const Hparams& hparams,
                 int width);  // of layers that all have attention, and alike
// What such a block needs remembered. `rotated`: its keys are, by position.
AttentionSpec attention_spec(const Heads& heads, const Rope& rope, Window window = {});
AttentionSpec attention_spec(const Heads& heads, Window window = {});  // keys are not rotated

// Weights of an attention block: three projections or one of all, and what goes with them where the
// file has it.
struct AttentionWeights {
    Weight wq, bq;          // [h*d, width], [h*d]
    Weight wk, bk;          // [hk*d, width], [hk*d]
    Weight wv, bv;          // [hk*d, width], [hk*d]
    Weight wqkv, bqkv;      // [(h + 2 hk)*d, width], in place of the three
    Weight wo, bo;          // [width, h*d], [width]
    Weight q_norm, k_norm;  // [d] for every head, or [h*d], [hk*d] over all of them at once,
                            // or [h, d], [hk, d]: each head its own
};
// Whether queries and keys are normalised: each head by the same weight, or by one of its own, or
// all heads at once.
enum class QkNorm : uint8_t { none, by_head, each_head, whole };
AttentionWeights read_attention(const LayerWeights& w, int width, const Heads& heads,
                                QkNorm norm = QkNorm::none);

struct Qkv {
    Value q;  // [n, h, d]
    Value k;  // [n, hk, d]
    Value v;  // [n, hk, d]
};
// The projections of x, q and k normalised where there are weights for it.
Qkv project_qkv(Step& step, int layer, Value x, const AttentionWeights& w, const Heads& heads,
                const Norm& norm);
// q and k rotated by their tokens' positions.
Qkv rotate(Step& step, int layer, const Qkv& qkv, const Rope& rope, const Weight& factors = {});
// attend(q, k, v) over the layer's cache, before Wo. [n, h*d]
Value attention(Step& step, int layer, const Qkv& qkv, const Step::Attention& how);
// The same over the piece's own tokens, nothing stored.
Value attention_within(Step& step, int layer, const Qkv& qkv, const Step::Attention& how);
// attend(rope(q), rope(k), v) over the layer's cache, before Wo. [n, h*d]
Value rotary_attention(Step& step, int layer, const Qkv& qkv, const Rope& rope,
                       const Weight& factors, const Step::Attention& how);
// Wo y + bo. [n, h*d] -> [n, width]
Value project_out(Step& step, int layer, Value y, const AttentionWeights& w);

// 1 / sqrt(head_dim), unless the file says otherwise in attention.scale.
float attention_scale(const Hparams& hparams, int head_dim);

// Where among `pattern` layers the one comes that sees everything.
enum class FullLayer : uint8_t { last, first };
// Every `pattern`-th layer sees everything, the others a window; 0: all have one. From
// attention.sliding_window and its pattern (a number, or a list of flags), or `tokens` and `pattern`
// where the file says nothing; no tokens: no windows.
std::vector<Window> read_windows(const Hparams& hparams, int n_layers, int pattern, int tokens = 0,
                                 FullLayer full = FullLayer::last);

}  // namespace plait
