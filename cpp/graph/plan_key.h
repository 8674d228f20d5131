// The key of a plan: everything that a graph's topology may depend on.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>

namespace plait {

enum class GraphKind : uint8_t { decode, encode, score, copy_rows, shift_keys };
enum class InputKind : uint8_t { tokens, embeddings };
enum class OutputKind : uint8_t { none, logits, embeddings, both };

struct PlanKey {
    GraphKind kind = GraphKind::decode;
    InputKind input = InputKind::tokens;
    OutputKind output = OutputKind::logits;
    bool causal = true;
    bool flash = true;
    bool single = false;  // one token per sequence
    // The outputs are in the order of the tokens, and there may be fewer of them.
    bool ordered = false;
    uint16_t adapters = 0;  // id of the adapter set
    uint16_t captures = 0;  // id of the capture set
    uint16_t edits = 0;     // id of the edit set
    bool control = false;   // a control vector is added
    uint32_t n_tokens = 0;  // capacities: counts rounded up to a bucket
    uint32_t n_sequences = 0;
    uint32_t n_outputs = 0;
    uint32_t n_moves = 0;  // for copy_rows and shift_keys
    uint8_t group = 0;     // for copy_rows and shift_keys

    friend auto operator<=>(const PlanKey&, const PlanKey&) = default;
};

struct PlanKeyHash {
    size_t operator()(const PlanKey& key) const noexcept;
};

// The next power of two, at most `max`; 0 for 0.
uint32_t bucket(uint32_t count, uint32_t max);

}  // namespace plait
