// The builder that architectures use: the inputs, caches and outputs of one graph, each declared
// once and shared by all layers.
#pragma once

#include <algorithm>
#include <ranges>

#include "graph/ops.h"
#include "graph/plan_key.h"
#include "memory/layout.h"
#include "model/model.h"

namespace plait {

TensorType storage_type(const StorageInfo& info);  // [rows, heads * stored head elements]

class Step {
public:
    Step(Graph& graph, const PlanKey& key, const MemoryLayout& layout, const BuildOptions& options);

    const PlanKey& key() const { return key_; }
    int64_t n_ctx() const { return options_.n_ctx; }
    const LayerRange& layers() const { return options_.layers; }
    // The numbers of the layers to build, of a stack with `n_layers`.
    auto layer_numbers(int n_layers) const {
        return std::views::iota(options_.layers.begin, std::min(options_.layers.end, n_layers));
    }

    Value weight(const Weight& weight) { return weight ? graph_.weight(weight) : Value{}; }

    // The input of the microbatch: for tokens, their rows of the table times `scale`; for
    // embeddings, the given rows. [n, width]
    Value embed(const Weight& table, float scale = 1.0f);
    // Returns the rows of another table for the same tokens. If the input is embeddings, returns
    // the row of token 0 (padding) for each.
    Value embed_again(const Weight& table);
    // Returns part number `part` of the input of a range that does not start at layer 0: what the
    // layer before it passes on, or what a layer for multi-token prediction reads. [n, width]
    Value passed(const ModelInfo& model, int part = 0);
    // Returns part number `part` of embedding inputs of layer 0 whose rows have `parts` times `width`
    // elements. Returns an empty Value if the input is something else.
    Value given_part(int64_t width, int parts, int part);
    // The embedding inputs. [n, width]
    Value given(int64_t width);
    Value positions();  // [n], or [n, 4] for M-RoPE
    // Rotates heads by their tokens' positions. Equal rotations share one table.
    Value rotate(Value x, const Rope& rope, const Weight& factors = {});  // [n, h, d] -> [n, h, d]

    struct Attention {
        float scale = 1.0f;
        float softcap = 0.0f;
        Weight sinks = {};             // [h]
        float alibi_max_bias = 0.0f;   // 0: none
        Weight bias = {};              // [buckets, h], bias by distance
        int max_distance = 0;          // max distance of the buckets
        bool both_directions = false;  // the buckets also cover later positions
        int slot = 0;
    };
    // Stores k and v in the layer's rows, then attends over the rows that each token may see.
    // q [n, h, d], k [n, hk, d], v [n, hk, dv] -> [n, h, dv]
    Value attend(int layer, Value q, Value k, Value v, const Attention& how);
    // Attends over the keys and values that layer `owner` stored in this graph. Stores nothing.
    Value attend_shared(int layer, int owner, Value q, const Attention& how);
    // Attends over one key of all heads, whose first `value_dim` elements are its value (MLA).
    // k [n, 1, d]
    Value attend_latent(int layer, Value q, Value k, int value_dim, const Attention& how);
    // Attends over the tokens of the microbatch; stores nothing (WithinSpec).
    Value attend_within(int layer, Value q, Value k, Value v, const Attention& how);
    // Stores keys and values of an encoder's output for a layer of the decoder (CrossSpec).
    void store_cross(int layer, int slot, Value k, Value v);
    Value attend_cross(int layer, Value q, const Attention& how);

    // The factors that queries are multiplied by; all layers share them. [n, 1]
    Value temperature(const Temperature& how);

    // State number `kind` of a recurrent slot (RecurrentSpec).
    States states(int layer, int slot, int kind);

    // Keeps only the requested rows. Compilation moves this before row-wise operations.
    Value keep_outputs(Value x);  // [n, m] -> [n_outputs, m]
    bool wants_outputs() const { return key_.n_outputs > 0; }
    bool wants_logits() const {
        return wants_outputs() &&
               (key_.output == OutputKind::logits || key_.output == OutputKind::both);
    }
    // Outputs, as embeddings, what the last layer of the range passes to the next.
    void emit_passed(Value x);
    // Outputs the normalised last hidden state as embeddings, if these were requested.
    void emit_hidden(Value x);
    void emit_logits(Value logits);

    // For graphs that score sequences: the pooled rows and their scores.
    Value pooled(int64_t width) { return given(width); }  // [n, width]
    void emit_scores(Value x) { graph_.output(OutputId::embeddings, name(x, Role::result_scores)); }

    Value name(Value value, Role role, int layer = -1) {
        graph_.name(value, role, layer);
        return value;
    }

private:
    Value token_input(InputField field, uint8_t group = 0);
    void output_embeddings(Value x);
    Value by_sequence(InputField field, uint8_t group = 0, int extra = 1);
    Value storage(const StorageInfo& info);
    // Stores heads in the rows that the microbatch writes. Returns the storage after the write.
    Value store(const StorageInfo& info, Value heads);
    Value attend_over(const AttendInputs& in, AttendParams op, uint8_t group, const Attention& how);
    // Attends over stored keys and values. `values` is `keys` if values are part of the keys.
    Value attend_stored(int layer, AttendInputs in, const StorageInfo& keys,
                        const StorageInfo& values, int value_dim, const Attention& how);

    Graph& graph_;
    const PlanKey& key_;
    const MemoryLayout& layout_;
    struct Table {
        Rope rope;
        WeightId factors;
        Value value;
    };

    // The contents of a layer's slot after this microbatch has been stored.
    struct Stored {
        StorageId keys;
        AttendInputs in;
    };

    const BuildOptions& options_;
    int axes_;
    std::vector<Table> tables_;
    std::vector<Stored> stored_;
    Value temperature_;  // of the previous layer
    Temperature temperature_how_;
};

}  // namespace plait
