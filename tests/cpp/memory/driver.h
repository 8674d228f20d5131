// Uses a memory like a context does: prepares and splits batches, places them, and carries out row
// moves and shifts. The contents of a row are represented by a number, so that tests can check
// them.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "batch/batch.h"
#include "batch/prepare.h"
#include "batch/split.h"
#include "memory/memory.h"

namespace plait {

inline MemorySpecs attention_specs(std::vector<AttentionSpec> layers) {
    MemorySpecs specs;
    for (const AttentionSpec& layer : layers) specs.push_back({layer});
    return specs;
}

inline AttentionSpec full_layer() { return {.n_kv_heads = 2, .key_dim = 4, .value_dim = 4}; }

inline AttentionSpec window_layer(Window window) {
    AttentionSpec layer = full_layer();
    layer.window = window;
    return layer;
}

// Updates the number that represents a recurrent state.
inline int fold(int state, int token) { return (state * 31 + token + 1) % 16'777'213; }

struct Driver {
    explicit Driver(const MemoryOptions& given,
                    const MemorySpecs& specs = attention_specs({full_layer()}))
        : options(given), memory(make_memory(specs, options)) {
        limits.n_vocab = 1 << 30;
        limits.n_batch = options.n_batch;
        limits.n_seq_max = options.n_seq_max;
        limits.axes = options.axes;
        limits.coupled = memory->n_streams() == 1;
        for (const GroupInfo& group : groups()) {
            keys.emplace_back(group.n_rows, -1);
            rotations.emplace_back(group.n_rows, 0);
            if (group.kind->holds_states) keys.back()[0] = 0;
        }
    }

    const std::vector<GroupInfo>& groups() const { return memory->layout().groups; }

    // Prepares, splits and places a batch.
    std::span<const Microbatch> place(const Batch& batch, StepKind kind = StepKind::decode) {
        step = kind;
        prepare(batch.view(), limits, memory->sequences(kind), prepared);
        const bool whole = !options.causal || kind == StepKind::encode;
        const auto microbatches =
            split.cut(prepared, {.max_tokens = static_cast<uint32_t>(options.n_ubatch),
                                 .whole_sequences = whole,
                                 .constant_coupling = memory->needs_constant_coupling()});
        memory->place(kind, prepared, microbatches);
        return microbatches;
    }
    std::span<const Microbatch> place(Batch&& batch, StepKind kind = StepKind::decode) {
        kept = std::move(batch);  // the memory reads it until the step ends
        return place(std::as_const(kept), kind);
    }
    // Writes the rows of a microbatch: token ids for keys, folded token ids for states.
    void write(const Microbatch& microbatch, size_t index) {
        for (size_t g = 0; g < keys.size(); ++g) {
            const auto group = static_cast<uint8_t>(g);
            const PartKind& kind = *groups()[g].kind;
            const bool is_cross = &kind == &CrossSpec::kind();
            if (kind.holds_states)
                write_states(microbatch, index, group);
            else if (!kind.keys_are_tokens && is_cross == (step == StepKind::encode))
                write_keys(microbatch, index, group);
        }
    }
    void write_keys(const Microbatch& microbatch, size_t index, uint8_t group) {
        const auto view = memory->view(group, index);
        for (size_t i = 0; i < microbatch.entries.size(); ++i) {
            const auto row = static_cast<size_t>(view.write_rows[i]);
            keys[group][row] = prepared.source.tokens[microbatch.entries[i]];
            rotations[group][row] = prepared.position(microbatch.entries[i]);
        }
    }
    void write_states(const Microbatch& microbatch, size_t index, uint8_t group) {
        const auto view = memory->view(group, index);
        auto& states = keys[group];
        const std::vector<int> before = states;  // rows are read before any is written
        for (size_t s = 0; s < microbatch.sequences.size(); ++s) {
            int state = before[static_cast<size_t>(view.read_rows[s])];
            for (int32_t i = microbatch.begin[s]; i < microbatch.begin[s + 1]; ++i)
                state =
                    fold(state, prepared.source.tokens[microbatch.entries[static_cast<size_t>(i)]]);
            states[static_cast<size_t>(view.write_rows[s])] = state;
        }
    }
    void run(const Batch& batch, StepKind kind) {
        const auto microbatches = place(batch, kind);
        try {
            for (size_t p = 0; p < microbatches.size(); ++p) write(microbatches[p], p);
        } catch (...) {
            memory->rollback();
            throw;
        }
        memory->commit();
    }
    void decode(const Batch& batch) { run(batch, StepKind::decode); }
    // Decodes tokens `token`, `token` + 1, ... at the end of one sequence.
    void feed(SequenceId sequence, int n, int token = 0) { decode(batch_of(sequence, n, token)); }
    void encode(SequenceId sequence, int n, int token = 0) {
        run(batch_of(sequence, n, token), StepKind::encode);
    }
    static Batch batch_of(SequenceId sequence, int n, int token) {
        Batch batch;
        for (int i = 0; i < n; ++i) batch.add(token + i, {}, std::span(&sequence, 1), false);
        return batch;
    }
    void carry_out_moves() {
        for (const RowMove& move : moves) {
            for (int32_t i = 0; i < move.n; ++i) {
                const auto from = static_cast<size_t>(move.from + i);
                const auto to = static_cast<size_t>(move.to + i);
                keys[move.group][to] = keys[move.group][from];
                rotations[move.group][to] = rotations[move.group][from];
            }
        }
        moves.clear();
    }
    void apply_shifts() {
        std::vector<KeyShift> shifts;
        memory->take_shifts(shifts);
        for (const KeyShift& shift : shifts)
            rotations[shift.group][static_cast<size_t>(shift.row)] += shift.delta;
    }
    // Returns the tokens of a sequence that a group stores, oldest first.
    std::vector<int> tokens(SequenceId sequence, uint8_t group = 0) const {
        std::vector<int> tokens;
        for (const int32_t row : memory->rows_of(group, sequence))
            tokens.push_back(keys[group][static_cast<size_t>(row)]);
        return tokens;
    }
    std::vector<Position> positions(SequenceId sequence) const {
        std::vector<Position> positions(static_cast<size_t>(memory->n_cells()), -1);
        for (const Cell& cell : memory->cells())
            positions[static_cast<size_t>(cell.row)] = cell.position[0];
        std::vector<Position> of_sequence;
        for (const int32_t row : memory->rows_of(0, sequence))
            of_sequence.push_back(positions[static_cast<size_t>(row)]);
        return of_sequence;
    }

    MemoryOptions options;
    std::unique_ptr<Memory> memory;
    BatchLimits limits;
    Batch kept;
    PreparedBatch prepared;
    Split split;
    StepKind step = StepKind::decode;
    std::vector<RowMove> moves;
    std::vector<std::vector<int>> keys;            // [n_groups][n_rows] token stored, or state
    std::vector<std::vector<Position>> rotations;  // [n_groups][n_rows] that the key is rotated for
};

inline MemoryOptions sized(int64_t n_ctx, int32_t n_seq_max, bool streams = false) {
    MemoryOptions options;
    options.n_ctx = n_ctx;
    options.n_seq_max = n_seq_max;
    options.streams = streams;
    options.n_ubatch = 4;
    return options;
}

template <typename Error>
std::string message_of(auto&& call) {
    try {
        call();
    } catch (const Error& e) {
        return e.what();
    }
    return "nothing thrown";
}

inline std::string kind_of(const Driver& driver) { return std::string(driver.memory->kind()); }

inline bool operator==(const Cell& a, const Cell& b) {
    return a.row == b.row && a.stream == b.stream && std::ranges::equal(a.position, b.position) &&
           a.shift == b.shift && a.ordinal == b.ordinal && a.sequences == b.sequences;
}

}  // namespace plait
