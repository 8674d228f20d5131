// A memory made of parts: any mix of attention, windows, recurrent states and an encoder's output,
// or one of them alone. Places in all parts or in none, and edits all or none.
#pragma once

#include <memory>
#include <vector>

#include "memory/lineage.h"
#include "memory/part.h"

namespace plait {

// Parts in the order in which they speak for the memory: the first says which positions and cells
// there are.
struct Parts {
    std::vector<std::unique_ptr<Part>> list;
    std::vector<Part*> of_group;  // by group of the layout
};

class HybridMemory final : public Memory {
public:
    HybridMemory(std::string_view kind, MemoryLayout layout, const MemoryOptions& options,
                 Parts parts);

    std::optional<PositionBounds> positions(SequenceId sequence) const override;
    bool same_content(std::span<const SequenceId> sequences) const override;

    std::string_view kind() const override { return kind_; }
    const MemoryLayout& layout() const override { return layout_; }
    int32_t n_streams() const override { return first().n_streams(); }
    int32_t n_sequences() const override { return n_sequences_; }
    int64_t n_cells() const override { return first().n_cells(); }
    int64_t n_used() const override { return first().n_used(); }

    const SequenceIndex& past(StepKind kind) const override;
    bool steady_company() const override { return steady_company_; }
    void place(StepKind kind, const PreparedBatch& batch, std::span<const Piece> pieces) override;
    AttentionView attention(uint8_t group, size_t piece) override;
    RecurrentView recurrent(uint8_t group, size_t piece) override;
    void commit() noexcept override;
    void rollback() noexcept override;

    [[nodiscard]] bool remove(SequenceId sequence, PositionRange range) override;
    void copy(SequenceId from, SequenceId to, PositionRange range,
              std::vector<RowMove>& moves) override;
    void keep(SequenceId sequence) override;
    void add(SequenceId sequence, PositionRange range, int32_t delta,
             std::vector<RowMove>& moves) override;
    void divide(SequenceId sequence, PositionRange range, int32_t divisor,
                std::vector<RowMove>& moves) override;
    void clear() override;
    bool can_shift() const override;
    bool can_partial_remove() const override;

    bool has_shifts() const override;
    void take_shifts(std::vector<KeyShift>& shifts) override;

    RewindPoint rewind_point(SequenceId sequence, Position next) const override;
    void refork(const RewindPoint& point, SequenceId to, std::vector<RowMove>& moves) override;
    int64_t defragment(int64_t max_moves, std::vector<RowMove>& moves) override;
    RunCount count_runs() const override;

    MemoryState describe(std::optional<SequenceId> sequence,
                         std::vector<StateRows>& rows) const override;
    void adopt(const MemoryState& state, std::optional<SequenceId> to,
               std::vector<StateRows>& rows) override;
    uint32_t state_part(uint8_t group) const override;

    std::vector<Cell> cells() const override { return first().cells(); }
    std::vector<int32_t> rows_of(uint8_t group, SequenceId sequence) const override {
        return part_of(group).rows_of(sequence);
    }

private:
    // To an encoder every sequence is new.
    struct NoPast final : SequenceIndex {
        std::optional<PositionBounds> positions(SequenceId) const override { return {}; }
        bool same_content(std::span<const SequenceId>) const override { return true; }
    };

    const Part& first() const { return *parts_.list[0]; }
    Part& part_of(uint8_t group) const;
    bool can_end_at(SequenceId sequence, Position next) const;
    Position next(SequenceId sequence) const;
    void release(SequenceId sequence) noexcept;
    void changed(SequenceId sequence, Position begin) noexcept;  // from there on, by an edit
    void reposition(SequenceId sequence, const Reposition& how, std::vector<RowMove>& moves);
    void check_state(const MemoryState& state) const;
    std::vector<SequenceId> targets(const MemoryState& state, std::optional<SequenceId> to) const;

    std::string_view kind_;
    MemoryLayout layout_;
    int32_t n_sequences_;
    bool steady_company_;
    Parts parts_;
    Lineage lineage_;
    NoPast no_past_;
    bool under_way_ = false;  // a step
};

}  // namespace plait
