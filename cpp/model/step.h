// The inputs, caches and outputs of one graph, declared once and shared by all layers. This is all
// that an architecture sees of a step.
#pragma once

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

    Value weight(const Weight& weight) { return weight ? graph_.weight(weight) : Value{}; }

    // The piece's input: rows of the table for tokens, or embeddings as they were given. [n, width]
    Value embed(const Weight& table);
    Value positions();     // [n], or [n, 4] with several axes
    Value rope_table(const Rope& rope, const Weight& factors = {});

    // Stores k and v in the layer's rows, then attends over what each token may see.
    struct Attention {
        float scale = 1.0f;
        float softcap = 0.0f;
        Weight sinks = {};
        int slot = 0;
    };
    Value attend(int layer, Value q, Value k, Value v, const Attention& how);  // -> [n, h, d]

    // Keeps only rows that were asked for; the rest of the model is computed for them alone.
    Value keep_outputs(Value x);  // [n, m] -> [n_outputs, m]
    bool wants_outputs() const { return key_.n_outputs > 0; }
    bool wants_logits() const {
        return wants_outputs() && (key_.output == OutputKind::logits || key_.output == OutputKind::both);
    }
    // Hands over the normalised last hidden state, as embeddings if these were asked for.
    void emit_hidden(Value x);
    void emit_logits(Value logits);

    Value name(Value value, Role role, int layer = -1) {
        graph_.name(value, role, layer);
        return value;
    }

private:
    Value token_input(InputField field, uint8_t group = 0);

    Graph& graph_;
    const PlanKey& key_;
    const MemoryLayout& layout_;
    const BuildOptions& options_;
    int axes_;
};

}  // namespace plait
