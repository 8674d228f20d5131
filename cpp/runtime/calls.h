// Descriptions of decode() and encode(): the graphs that they run and the outputs that they return.
// Chosen once for a model and its context.
#pragma once

#include <cstdint>
#include <string_view>

#include "graph/plan_key.h"
#include "memory/step_memory.h"
#include "model/model.h"

namespace plait {

// The outputs of a call: logits and hidden states per output token, or one row per sequence.
struct OutputChoice {
    bool logits = true;   // requires a model that computes them
    bool hidden = false;  // hidden states
    int n_parts = 1;      // of a hidden state, each as wide as the model
    // Unless none: the only outputs are pooled hidden states or scores.
    Pooling pooling = Pooling::none;
};

struct CallForm {
    std::string_view name = "decode";  // in error messages
    GraphKind graph = GraphKind::decode;
    StepKind step = StepKind::decode;  // encode: the encoder of an encoder-decoder
    bool causal = true;
    // Above 0: the entries of a batch are rows of the residual stream that enters this layer.
    int first_layer = 0;
    InputKind input() const { return first_layer > 0 ? InputKind::embeddings : InputKind::tokens; }
    OutputChoice outputs;
};

// The memory that encode() computes in.
enum class EncodeMemory : uint8_t {
    own,     // its own, cleared after each call: encode() of a decoder stores nothing
    shared,  // the memory of decode(), which attends to the encoder's output there
    same,    // the model has no decoder: encode() and decode() are the same call
};

struct Calls {
    CallForm decode;
    CallForm encode;
    EncodeMemory encode_memory = EncodeMemory::own;
};

}  // namespace plait
