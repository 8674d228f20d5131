#include "model/step.h"

#include "base/error.h"

namespace plait {

TensorType storage_type(const StorageInfo& info) {
    return {info.dtype,
            {static_cast<int64_t>(info.n_rows), int64_t{info.n_heads} * info.head_elements}};
}

Step::Step(Graph& graph, const PlanKey& key, const MemoryLayout& layout, const BuildOptions& options)
    : graph_(graph), key_(key), layout_(layout), options_(options), axes_(options.n_pos_per_token) {}

Value Step::token_input(InputField field, uint8_t group) {
    return graph_.input({field, group}, {DType::i32, {key_.n_tokens}}, Extent::tokens);
}

Value Step::embed(const Weight& table) {
    if (key_.input == InputKind::tokens)
        return name(plait::embed(weight(table), token_input(InputField::tokens)), Role::inp_embd);
    return graph_.input({InputField::embeddings}, {DType::f32, {key_.n_tokens, table.type.shape[1]}},
                        Extent::tokens);
}

Value Step::positions() {
    if (axes_ == 1) return token_input(InputField::positions);
    return graph_.input({InputField::positions}, {DType::i32, {key_.n_tokens, axes_}}, Extent::tokens);
}

Value Step::rope_table(const Rope& rope, const Weight& factors) {
    return plait::rope_table(positions(), rope, weight(factors));
}

Value Step::attend(int layer, Value q, Value k, Value v, const Attention& how) {
    const auto id = [&](uint8_t part) {
        return StorageId{static_cast<uint16_t>(layer), static_cast<uint8_t>(how.slot), part};
    };
    const StorageInfo& keys = layout_.at(id(0));
    const StorageInfo& values = layout_.at(id(1));
    const uint8_t group = keys.group;
    const auto storage = [&](const StorageInfo& info) {
        return graph_.storage(static_cast<uint32_t>(layout_.index(info.id)), storage_type(info));
    };
    const auto by_sequence = [&](InputField field, uint8_t of) {
        return graph_.input({field, of}, {DType::i32, {key_.n_sequences + 1}}, Extent::fixed);
    };
    const Value rows = token_input(InputField::write_rows, group);
    const AttendInputs in{
        .q = q,
        .keys = store_rows(storage(keys), k, rows),
        .values = store_rows(storage(values), v, rows),
        .token_begin = by_sequence(InputField::token_begin, 0),
        .runs = graph_.input({InputField::runs, group},
                             {DType::i32, {layout_.groups[group].max_runs, 4}}, Extent::fixed),
        .run_begin = by_sequence(InputField::run_begin, group),
        .first = token_input(InputField::first, group),
        .last = token_input(InputField::last, group),
        .sinks = weight(how.sinks),
    };
    const AttendOp op{
        .n_heads = static_cast<int>(q.shape()[1]),
        .n_kv_heads = keys.n_heads,
        .key_dim = keys.head_dim,
        .value_dim = values.head_dim,
        .scale = how.scale,
        .softcap = how.softcap,
        .flash = key_.flash,
    };
    return name(plait::attend(in, op), Role::attn, layer);
}

Value Step::keep_outputs(Value x) {
    if (!wants_outputs()) return x;
    return select_rows(x, graph_.input({InputField::output_tokens}, {DType::i32, {key_.n_outputs}},
                                       Extent::outputs));
}

void Step::emit_hidden(Value x) {
    name(x, Role::result_norm);
    if (wants_outputs() && key_.output != OutputKind::logits && key_.output != OutputKind::none)
        graph_.output(OutputId::embeddings, x);
}

void Step::emit_logits(Value logits) {
    if (wants_logits()) graph_.output(OutputId::logits, name(logits, Role::result_output));
}

}  // namespace plait
