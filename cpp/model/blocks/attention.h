// Self-attention whose queries, keys and values are projections of one input.
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
    int n_kv_heads = 0;  // 0: the layer has no attention
    int head_dim = 0;    // of keys and values
    int64_t queries() const { return int64_t{n_heads} * head_dim; }
    int64_t keys() const { return int64_t{n_kv_heads} * head_dim; }
};
// The sizes of one layer: each key holds one number, or an array with one per layer.
Heads read_heads(const Hparams& hparams, int width, int layer);

// The weights that normalise queries and keys: one shared by all heads, one per head, or one over
// the concatenated heads.
enum class QkNorm : uint8_t { none, shared, per_head, whole };

// How one layer attends.
struct AttentionForm {
    Heads heads;
    Window window;
    // Attends over the tokens of the microbatch, in both directions, and stores nothing.
    bool within = false;
    bool always_causal = false;  // also for a batch that attends in both directions
    int owner = -1;  // layer whose keys and values this one reads; -1: it stores its own
    Rotation rotation;
    bool rotates = true;  // false: queries and keys are used as they are
    // Stored keys are rotated when positions shift, although the model itself rotates nothing; see
    // docs/decisions/0005.
    bool only_shifts_rotate = false;
    float clamp = 0.0f;  // max magnitude of the elements of q, k and v; 0: no limit
    QkNorm qk_norm = QkNorm::none;
    bool norm_after_rotation = false;  // of queries and keys
    bool normalizes_values = false;    // by an RMSNorm without weights
    bool keys_may_be_values = false;   // without Wv, values are the projected keys
    Temperature temperature;           // multiplies the queries
    bool gated = false;      // Wq also yields gates: the output is multiplied by their sigmoid
    bool has_sinks = false;  // one logit per head that joins the softmax, arXiv:2309.17453
    Step::Attention how;
};
// The states that the layer stores. Empty if it reads the keys and values of another layer.
std::vector<StateSpec> attention_memory(const AttentionForm& form);

// Either wq, wk and wv are set, or wqkv. Biases are optional. A layer that reads another's keys and
// values has only wq, q_norm and wo.
struct AttentionWeights {
    Weight wq, bq;      // [h d, width], [h d]; if gated [h 2 d, width]: query and gate of each head
    Weight wk, bk;      // [hk d, width], [hk d]
    Weight wv, bv;      // [hk d, width], [hk d]
    Weight wqkv, bqkv;  // [(h + 2 hk) d, width], [(h + 2 hk) d]
    Weight wo, bo;      // [width, h d], [width]
    Weight q_norm, k_norm;  // [d], [h, d] or [h d], depending on QkNorm; k_norm has hk heads
    Weight sinks;           // [h]
};
AttentionWeights read_attention(const LayerWeights& w, int width, const AttentionForm& form);

// Wo attend(rope(n(Wq x)), rope(n(Wk x)), Wv x). [n, width] -> [n, width]
Value attention(Step& step, int layer, Value x, const AttentionWeights& w,
                const AttentionForm& form, const Norm& norm);

// Reads attention.temperature_scale and attention.temperature_length. If the length is missing, it
// is the original context length of the rope keys.
Temperature read_temperature(const Hparams& hparams);
// Multiplies queries, [n, width], by the temperature of their positions.
Value scale_queries(Step& step, Value q, const Temperature& temperature);

// Reads attention.clamp_kqv; returns 0 if there is no limit.
float read_clamp(const Hparams& hparams);

// Reads attention.scale; returns 1 / sqrt(head_dim) if the file has none.
float read_attention_scale(const Hparams& hparams, int head_dim);
// For architectures that do not scale scores. Throws ModelError if attention.scale is not 1.
void expect_unscaled_attention(const Hparams& hparams);

// Which one of `pattern` consecutive layers has no window.
enum class FullLayer : uint8_t { last, first };
// Returns the window of each layer. Every `pattern`-th layer has no window; if `pattern` is 0, all
// layers have one. The keys attention.sliding_window and attention.sliding_window_pattern (a number
// or a list of flags) override `tokens` and `pattern`. With a window of 0 tokens, no layer has a
// window.
std::vector<Window> read_windows(const Hparams& hparams, int n_layers, int pattern, int tokens = 0,
                                 FullLayer full = FullLayer::last);

inline bool is_windowed(const AttentionForm& form) { return form.window.kind != WindowKind::full; }

}  // namespace plait
