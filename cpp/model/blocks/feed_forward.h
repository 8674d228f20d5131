// Feed-forward blocks.
#pragma once

#include <string_view>

#include "graph/ops.h"
#include "model/step.h"
#include "model/weights.h"

namespace plait {

enum class FeedForward : uint8_t {
    none,        // the layer has no feed-forward block
    gated,       // Wdown (act(Wgate x) * Wup x), GLU variants, arXiv:2002.05202
    gate_in_up,  // as gated, with Wgate and Wup stacked in one matrix, Wgate first
    plain,       // Wdown act(Wup x)
    custom       // the architecture defines the block
};

struct FeedForwardWeights {
    Weight gate, gate_bias;  // [ffn, width], [ffn]; absent unless gated
    Weight up, up_bias;      // [ffn | 2 ffn, width], [ffn | 2 ffn]
    Weight down, down_bias;  // [width, ffn], [width]
    int64_t n_ffn = 0;
};
// Reads "ffn_gate{suffix}.weight" and so on; biases are optional.
FeedForwardWeights read_feed_forward(const LayerWeights& w, int width, int n_ffn,
                                     FeedForward kind = FeedForward::gated,
                                     std::string_view suffix = {});
Value feed_forward(Step& step, int layer, Value x, const FeedForwardWeights& w, Activation act);

}  // namespace plait
