// Feed-forward blocks.
#pragma once

#include <string_view>

#include "graph/ops.h"
#include "model/step.h"
#include "model/weights.h"

namespace plait {

// With a gate, Wdown (how(Wgate x) * Wup x), GLU variants, arXiv:2002.05202; or plain,
// Wdown how(Wup x). Where one matrix holds gate and up, `up` is it and `n_ffn` half of its rows.
struct FeedForwardWeights {
    Weight gate, gate_bias;  // [ffn, width], [ffn]; nothing where plain or in `up`
    Weight up, up_bias;      // [ffn | 2 ffn, width], [ffn | 2 ffn]
    Weight down, down_bias;  // [width, ffn], [width]
    int64_t n_ffn = 0;
};
enum class FeedForward : uint8_t { gated, plain, gate_in_up };
// "ffn_gate{suffix}.weight" and so on.
FeedForwardWeights read_feed_forward(const LayerWeights& w, int width, int n_ffn,
                                     FeedForward kind = FeedForward::gated,
                                     std::string_view suffix = {});
Value feed_forward(Step& step, int layer, Value x, const FeedForwardWeights& w, Activation how);

}  // namespace plait
