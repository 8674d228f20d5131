// What decode() and encode() run and return, decided once for a model and its context.
#pragma once

#include <cstdint>
#include <string_view>

#include "graph/plan_key.h"
#include "memory/step_memory.h"
#include "model/model.h"

namespace plait {

// What a call returns: for each output token its logits and its hidden state, or one row per
// sequence.
struct OutputChoice {
    bool logits = true;   // requires a model that computes them
    bool hidden = false;  // hidden states
    Pooling pooling =
        Pooling::none;  // except none: pooled hidden states or scores, and nothing else
};

struct CallForm {
    std::string_view name = "decode";  // what messages call it
    GraphKind graph = GraphKind::decode;
    StepKind step = StepKind::decode;  // encode: the encoder of an encoder-decoder
    bool causal = true;
    OutputChoice outputs;
};

// The memory that encode() computes in.
enum class EncodeMemory : uint8_t {
    own,     // its own, cleared after each call: encode() of a decoder stores nothing
    shared,  // that of decode(), which attends to what encode() stores there
    same,    // a model without a decoder: encode() and decode() are the same call
};

struct Calls {
    CallForm decode;
    CallForm encode;
    EncodeMemory encode_memory = EncodeMemory::own;

    // False if a microbatch must hold whole sequences in either call: their attention is
    // bidirectional.
    bool causal() const { return decode.causal && encode.causal; }
};

}  // namespace plait
