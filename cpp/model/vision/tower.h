// The transformer of an image encoder. Its tokens are the patches of one image, which attend in
// both directions; nothing is stored. A patch has four positions: its window, its row, its column,
// and 0.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/blocks/norm.h"
#include "model/model.h"
#include "model/rope.h"

namespace plait {

// How a head is divided between the row and the column of a patch, by which its parts are rotated:
// by pairs of neighbours (2i, 2i + 1), of which the first half turns by the row; by pairs
// (i, i + head_dim / 2), likewise; or by halves, of which the first turns by the column, in pairs
// (i, i + head_dim / 4).
enum class TowerRotation : uint8_t { none, neighbours, pairs, halves };

// The activation of the feed-forward blocks; quick_gelu is x sigmoid(1.702 x).
enum class TowerActivation : uint8_t { gelu, gelu_tanh, quick_gelu, silu };

struct TowerForm {
    int width = 0;
    int n_layers = 0;
    int n_heads = 0;
    int patch_size = 0;  // of a side, in pixels
    Norm norm;
    TowerActivation activation = TowerActivation::gelu_tanh;
    // Rows of v.position_embd, of which the caller passes one (or a mean of several) with each
    // patch; 0: the tower has none.
    int64_t n_positions = 0;
    int n_position_tables =
        1;               // 2: v.position_embd has a vector for each row, and one for each column
    bool gated = false;  // feed-forward blocks have gates
    bool has_class_token = false;  // v.class_embd, the input of an additional first token
    bool two_frames = false;       // a second matrix for the next frame, which equals the first one
    bool clamped = false;          // the linear layers of blocks have limits
    bool head_norms = false;  // RMSNorm of the heads of queries, keys, and values without weights
    bool post_norms = false;  // norms of the outputs of attention and of feed-forward blocks
    float attention_scale = 0.0f;  // 0: 1 / sqrt(head_dim)
    TowerRotation rotation = TowerRotation::none;
    double rope_base = 10000.0;
    double column_scale = 1.0;          // multiplies columns in rotations
    int full_every = 1;                 // only each such layer attends beyond windows
    std::vector<int> taps;              // layers whose output is part of the result
    std::string_view output_norm = "";  // of the last layer's output; empty: none
};

// The limits of the elements of a value.
struct Limits {
    float low = 0.0f, high = 0.0f;  // both 0: no limits
    bool apply() const { return low != high; }
};

// Reads the sizes, the norm's epsilon, and what a tower has depending on its tensors.
TowerForm read_tower_form(const Hparams& hparams, const Weights& weights, NormKind norm);

//   x  = Wpatch p + bpatch + P            p: the 3 x size x size pixels of a patch
//   x += Wo attend(rope(Wq n(x) + bq), rope(Wk n(x) + bk), Wv n(x) + bv) + bo
//   x += Wdown act(Wup n(x) + bup) + bdown, or the gated form Wdown (act(Wgate n(x)) * Wup n(x))
//
// Gemma 4 also normalises the heads of q, k and v and the outputs before they are added, and limits
// the inputs and outputs of the matrices of blocks.
//
// A row of the input is a patch, and in towers with position vectors the sum of P (and of the class
// vector) after it. A row of the result is n(x), followed by the outputs of the layers in `taps`.
class Tower final : public Model {
public:
    Tower(const Weights& weights, TowerForm form);

    MemorySpecs memory_specs() const override;

protected:
    void build_decoder(Step& step) const override;

private:
    // Wx + b with the elements of x and of the result between limits.
    struct Linear {
        Weight matrix, bias;  // the bias is optional
        Limits given, result;
    };
    struct Layer {
        NormWeights attn_norm, attn_post_norm, ffn_norm, ffn_post_norm;
        NormWeights q_norm, k_norm;  // [head_dim]
        Linear qkv;                  // either qkv or q, k and v
        Linear q, k, v, out;         // [width, width]
        Linear gate, up, down;
    };
    static Value apply(Step& step, const Linear& w, Value x);
    Linear read_linear(const Weights& weights, const std::string& name, const Shape& shape) const;
    Layer read_layer(const Weights& weights, int i) const;
    int64_t n_pixels() const { return int64_t{3} * form_.patch_size * form_.patch_size; }

    Value embed(Step& step) const;
    Value rotate(Step& step, Value heads) const;
    Value attend(Step& step, int i, Value x) const;
    Value feed_forward(Step& step, const Layer& w, Value x) const;

    TowerForm form_;
    Weight patch_, second_frame_, patch_bias_;  // [width, n_pixels], [width, n_pixels], [width]
    NormWeights input_norm_, output_norm_;      // [width]; optional
    std::vector<Layer> layers_;
};

}  // namespace plait
