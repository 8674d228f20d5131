#include "model/step.h"

#include <algorithm>

#include "base/error.h"

namespace plait {

TensorType storage_type(const StorageInfo& info) {
    return {info.dtype,
            {static_cast<int64_t>(info.n_rows), int64_t{info.n_heads} * info.head_elements}};
}

Step::Step(Graph& graph, const PlanKey& key, const MemoryLayout& layout,
           const BuildOptions& options)
    : graph_(graph),
      key_(key),
      layout_(layout),
      options_(options),
      axes_(options.n_pos_per_token) {}

Value Step::token_input(InputField field, uint8_t group) {
    return graph_.input({field, group}, {DType::i32, {key_.n_tokens}}, Extent::tokens);
}

Value Step::embed(const Weight& table, float scale) {
    if (key_.input == InputKind::tokens) {
        const Value x = plait::embed(weight(table), token_input(InputField::tokens));
        return name(scale == 1.0f ? x : plait::scale(x, scale), Role::inp_embd);
    }
    // A copy, because an input cannot be edited.
    const int64_t width = table.type.shape[1];
    return name(slice(given(width), 0, width), Role::inp_embd);
}

Value Step::embed_again(const Weight& table) {
    return plait::embed(weight(table), token_input(InputField::tokens));
}

Value Step::given_part(int64_t width, int parts, int part) {
    if (key_.input == InputKind::tokens || !layers().has_first()) return {};
    return slice(given(width * parts), width * part, width);
}

Value Step::passed(const ModelInfo& model, int part) {
    PLAIT_CHECK(!layers().has_first() && key_.input == InputKind::embeddings);
    const int width = model.input_width(layers());
    const Value all = given(width);
    return width == model.width ? all : slice(all, int64_t{part} * model.width, model.width);
}

Value Step::positions() {
    if (axes_ == 1) return token_input(InputField::positions);
    return graph_.input({InputField::positions}, {DType::i32, {key_.n_tokens, axes_}},
                        Extent::tokens);
}

Value Step::rotate(Value x, const Rope& rope, const Weight& factors) {
    const auto known = std::ranges::find_if(tables_, [&](const Table& table) {
        return table.rope == rope && table.factors == factors.id;
    });
    if (known != tables_.end()) return plait::rope(x, known->value, rope);
    const Value table = plait::rope_table(positions(), rope, weight(factors));
    tables_.push_back({rope, factors.id, table});
    return plait::rope(x, table, rope);
}

Value Step::by_sequence(InputField field, uint8_t group, int extra) {
    return graph_.input({field, group}, {DType::i32, {int64_t{key_.n_sequences} + extra}},
                        Extent::fixed);
}

Value Step::storage(const StorageInfo& info) {
    return graph_.storage(static_cast<uint32_t>(layout_.index(info.id)), storage_type(info));
}

namespace {

// Transforms heads to the form in which a storage holds them, or back.
Value spread(Value heads, const StorageInfo& info) {
    return info.hadamard ? hadamard(heads, info.hadamard) : heads;
}

}  // namespace

Value Step::store(const StorageInfo& info, Value heads) {
    const Value rows = token_input(InputField::write_rows, info.group);
    return store_rows(storage(info), spread(heads, info), rows);
}

// Queries are transformed as the keys are, which leaves the scores as they were.
Value Step::attend_stored(int layer, AttendInputs in, const StorageInfo& keys,
                          const StorageInfo& values, int value_dim, const Attention& how) {
    in.q = spread(in.q, keys);
    const AttendParams params{.n_kv_heads = keys.n_heads, .value_dim = value_dim};
    return name(spread(attend_over(in, params, keys.group, how), values), Role::attn_heads, layer);
}

// Adds the inputs that all kinds of attention share: the intervals and runs of the group.
Value Step::attend_over(const AttendInputs& given, AttendParams op, uint8_t group,
                        const Attention& how) {
    const GroupInfo& info = layout_.groups[group];
    AttendInputs in = given;
    in.token_begin = by_sequence(InputField::token_begin);
    in.runs =
        graph_.input({InputField::runs, group}, {DType::i32, {info.max_runs, 4}}, Extent::fixed);
    in.run_begin = by_sequence(InputField::run_begin, group);
    in.first = token_input(InputField::first, group);
    in.last = token_input(InputField::last, group);
    in.sinks = weight(how.sinks);
    op.n_heads = static_cast<int>(in.q.shape()[1]);
    op.key_dim = static_cast<int>(in.q.shape()[2]);
    op.scale = how.scale;
    op.softcap = how.softcap;
    op.flash = key_.flash;
    if (how.alibi_max_bias > 0.0f) {
        op.bias = PositionBias::alibi;
        op.max_bias = how.alibi_max_bias;
    } else if (how.bias) {
        op.bias = PositionBias::buckets;
        op.max_distance = how.max_distance;
        op.both_directions = how.both_directions;
        in.bias = weight(how.bias);
    }
    if (op.bias != PositionBias::none) {
        PLAIT_CHECK(info.needs_key_positions);
        in.positions = positions();
        const int64_t n_keys = info.kind->keys_are_tokens ? key_.n_tokens : info.max_runs;
        in.key_positions =
            graph_.input({InputField::key_positions, group}, {DType::i32, {n_keys}}, Extent::fixed);
        in.key_begin = by_sequence(InputField::key_begin, group);
    }
    return plait::attend(in, op);
}

Value Step::attend(int layer, Value q, Value k, Value v, const Attention& how) {
    const auto at = static_cast<uint16_t>(layer);
    const auto slot = static_cast<uint8_t>(how.slot);
    const StorageInfo& keys = layout_.at({at, slot, 0});
    const StorageInfo& values = layout_.at({at, slot, 1});
    AttendInputs in{.keys = store(keys, k), .values = store(values, v)};
    stored_.push_back({keys.id, in});
    in.q = q;
    return attend_stored(layer, in, keys, values, values.head_dim, how);
}

Value Step::attend_shared(int layer, int owner, Value q, const Attention& how) {
    const StorageId id{static_cast<uint16_t>(owner), static_cast<uint8_t>(how.slot), 0};
    const auto found = std::ranges::find(stored_, id, &Stored::keys);
    PLAIT_CHECK(found != stored_.end());
    AttendInputs in = found->in;
    in.q = q;
    const StorageInfo& values = layout_.at({id.layer, id.slot, 1});
    return attend_stored(layer, in, layout_.at(id), values, values.head_dim, how);
}

Value Step::temperature(const Temperature& how) {
    if (!temperature_ || how != temperature_how_) {
        temperature_ = plait::temperature(positions(), how);
        temperature_how_ = how;
    }
    return temperature_;
}

Value Step::attend_latent(int layer, Value q, Value k, int value_dim, const Attention& how) {
    const StorageInfo& keys =
        layout_.at({static_cast<uint16_t>(layer), static_cast<uint8_t>(how.slot), 0});
    const AttendInputs in{.q = q, .keys = store(keys, k)};
    return name(attend_stored(layer, in, keys, keys, value_dim, how), Role::none);
}

Value Step::attend_within(int layer, Value q, Value k, Value v, const Attention& how) {
    const auto heads = static_cast<int>(k.shape()[1]);
    const AttendParams params{.n_kv_heads = heads, .value_dim = static_cast<int>(v.shape()[2])};
    const AttendInputs in{.q = q, .keys = merge_heads(k), .values = merge_heads(v)};
    return name(attend_over(in, params, layout_.group_of(layer, how.slot), how), Role::attn_heads,
                layer);
}

void Step::store_cross(int layer, int slot, Value k, Value v) {
    const auto at = static_cast<uint16_t>(layer);
    store(layout_.at({at, static_cast<uint8_t>(slot), 0}), k);
    store(layout_.at({at, static_cast<uint8_t>(slot), 1}), v);
}

Value Step::attend_cross(int layer, Value q, const Attention& how) {
    const auto at = static_cast<uint16_t>(layer);
    const auto slot = static_cast<uint8_t>(how.slot);
    const StorageInfo& keys = layout_.at({at, slot, 0});
    const StorageInfo& values = layout_.at({at, slot, 1});
    return attend_stored(layer, {.q = q, .keys = storage(keys), .values = storage(values)}, keys,
                         values, values.head_dim, how);
}

States Step::states(int layer, int slot, int kind) {
    const StorageInfo& info = layout_.at(
        {static_cast<uint16_t>(layer), static_cast<uint8_t>(slot), static_cast<uint8_t>(kind)});
    return {.storage = storage(info),
            .read_rows = by_sequence(InputField::read_states, info.group, 0),
            .write_rows = by_sequence(InputField::write_states, info.group, 0),
            .token_begin = by_sequence(InputField::token_begin)};
}

Value Step::keep_outputs(Value x) {
    if (!wants_outputs()) return x;
    const Value rows =
        graph_.input({InputField::output_tokens}, {DType::i32, {key_.n_outputs}}, Extent::outputs);
    return select_rows(x, rows, key_.ordered ? by_sequence(InputField::output_begin) : Value{});
}

Value Step::given(int64_t width) {
    return graph_.input({InputField::embeddings}, {DType::f32, {key_.n_tokens, width}},
                        Extent::tokens);
}

// Without outputs, `x` may be the output of the last layer, which keeps its own name.
void Step::emit_hidden(Value x) {
    if (wants_outputs()) output_embeddings(name(x, Role::result_norm));
}

void Step::emit_passed(Value x) { output_embeddings(x); }

void Step::output_embeddings(Value x) {
    if (wants_outputs() && key_.output != OutputKind::logits && key_.output != OutputKind::none)
        graph_.output(OutputId::embeddings, x);
}

void Step::emit_logits(Value logits) {
    if (wants_logits()) graph_.output(OutputId::logits, name(logits, Role::result_output));
}

}  // namespace plait
