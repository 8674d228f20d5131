#include "batch/prepare.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

namespace plait {
namespace {

constexpr Position kMaxPosition = INT32_MAX - 1;  // so that PositionRange::end can be one more
constexpr int kSpatialAxes = 3;                   // t, y, x; the fourth axis is not ordered

std::string list(std::span<const SequenceId> ids) {
    std::string out;
    for (size_t i = 0; i < ids.size(); ++i) out += text(i == 0 ? "" : ", ", ids[i]);
    return out;
}

class Preparation {
public:
    Preparation(const BatchView& batch, const BatchLimits& limits, const SequenceIndex& stored,
                PreparedBatch& out)
        : batch_(batch), limits_(limits), stored_(stored), out_(out) {}

    void run() {
        check_arrays();
        start();
        for (size_t i = 0; i < batch_.size; ++i) {
            check_token(i);
            const auto ids = add_sequences(i);
            check_coupling(i, ids);
            add_position(i, ids);
            out_.n_outputs += batch_.wants[i] != 0 ? 1u : 0u;
        }
    }

private:
    template <typename... Parts>
    [[noreturn]] void fail(const Parts&... parts) const {
        throw BatchError(text(limits_.call, ": ", parts...));
    }

    void check_arrays() const {
        const size_t n = batch_.size;
        if (n == 0) fail("the batch is empty");
        if (n > static_cast<size_t>(limits_.n_batch))
            fail("the batch has ", n, " entries, more than n_batch = ", limits_.n_batch);
        if (limits_.first_layer > 0 && !batch_.tokens.empty())
            throw InvalidArgument(
                text(limits_.call, ": the batch has tokens, but this context starts at layer ",
                     limits_.first_layer, "; add the residual stream that layer ",
                     limits_.first_layer - 1, " returned with batch.add_embeddings()"));
        if (batch_.embeddings.empty()) {
            if (batch_.tokens.size() != n)
                fail("the batch has ", batch_.tokens.size(), " tokens for ", n, " entries");
        } else {
            if (!batch_.tokens.empty())
                fail("the batch holds both tokens and embeddings; expected one of them");
            if (limits_.width == 0)
                throw UnsupportedError(
                    text(limits_.call,
                         ": this model divides the embeddings of an image into parts, and layers "
                         "that this context does not run read some of them; create the context "
                         "with more layers"));
            if (batch_.width != limits_.width)
                fail("embeddings have ", batch_.width, " elements each, the model expects ",
                     limits_.width);
            if (batch_.embeddings.size() != n * static_cast<size_t>(batch_.width))
                fail("the batch has ", batch_.embeddings.size(), " embedding elements, expected ",
                     n, " x ", batch_.width);
        }
        if (batch_.axes != 1 && batch_.axes != limits_.axes)
            fail("entries have ", batch_.axes, " positions each, the model expects ", limits_.axes);
        const size_t n_positions = n * static_cast<size_t>(batch_.axes);
        if (!batch_.positions.empty() && batch_.positions.size() != n_positions)
            fail("the batch has ", batch_.positions.size(), " positions, expected ", n, " x ",
                 batch_.axes);
        if (batch_.wants.size() != n)
            fail("the batch has ", batch_.wants.size(), " output flags, expected ", n);
        if (batch_.sequence_begin.empty() ? batch_.sequences.size() != n
                                          : batch_.sequence_begin.size() != n + 1)
            fail("the batch has sequence ids for ",
                 batch_.sequence_begin.empty() ? batch_.sequences.size()
                                               : batch_.sequence_begin.size() - 1,
                 " entries, expected ", n);
    }

    void start() {
        out_.source = batch_;
        out_.axes = limits_.axes;
        out_.positions.resize(batch_.size * static_cast<size_t>(limits_.axes));
        out_.sequence_begin.clear();
        out_.sequence_begin.push_back(0);
        out_.sequences.clear();
        out_.n_outputs = 0;
        // Resets only the sequences of the previous batch, since n_seq_max may be large.
        for (const SequenceId s : out_.touched) out_.last_entry[static_cast<size_t>(s)] = -1;
        out_.touched.clear();
        out_.next.resize(static_cast<size_t>(limits_.n_seq_max));
        out_.last_entry.resize(static_cast<size_t>(limits_.n_seq_max), -1);
    }

    void check_token(size_t entry) const {
        if (batch_.tokens.empty()) return;
        const TokenId token = batch_.tokens[entry];
        if (token < 0 || token >= limits_.n_vocab)
            fail("token ", token, " is outside 0..", limits_.n_vocab - 1, " (entry ", entry, ")");
    }

    std::span<const SequenceId> given_sequences(size_t entry) const {
        if (!batch_.sequence_begin.empty()) {
            const int32_t begin = batch_.sequence_begin[entry];
            const int32_t end = batch_.sequence_begin[entry + 1];
            if (begin < 0 || end < begin || static_cast<size_t>(end) > batch_.sequences.size())
                fail("sequence ids ", begin, "..", end, " of entry ", entry, " are outside 0..",
                     batch_.sequences.size());
            if (begin == end) fail("entry ", entry, " belongs to no sequence");
        }
        return batch_.sequences_of(entry);
    }

    std::span<const SequenceId> add_sequences(size_t entry) {
        const auto given = given_sequences(entry);
        for (const SequenceId s : given)
            if (s < 0 || s >= limits_.n_seq_max)
                fail("sequence id ", s, " is outside 0..", limits_.n_seq_max - 1, " (entry ", entry,
                     "; n_seq_max = ", limits_.n_seq_max, ")");
        out_.sequences.insert(out_.sequences.end(), given.begin(), given.end());
        const auto ids = std::span(out_.sequences).last(given.size());
        if (ids.size() > 1) {
            std::sort(ids.begin(), ids.end());
            const auto twice = std::adjacent_find(ids.begin(), ids.end());
            if (twice != ids.end()) fail("entry ", entry, " has sequence id ", *twice, " twice");
        }
        out_.sequence_begin.push_back(static_cast<int32_t>(out_.sequences.size()));
        return ids;
    }

    // Sequences of an entry must have the same content. Those with the same last entry in this
    // batch do; those without entries are compared in the memory.
    void check_coupling(size_t entry, std::span<const SequenceId> ids) const {
        if (ids.size() == 1) return;
        if (!limits_.coupled)
            fail("entry ", entry, " belongs to sequences ", list(ids),
                 "; with kv=\"streams\" a token can only belong to one sequence");
        const int32_t last = out_.last_entry[static_cast<size_t>(ids[0])];
        const bool same_last_entry = std::all_of(ids.begin(), ids.end(), [&](SequenceId s) {
            return out_.last_entry[static_cast<size_t>(s)] == last;
        });
        if (!same_last_entry || (last < 0 && !stored_.same_content(ids)))
            fail("entry ", entry, " belongs to sequences ", list(ids),
                 ", which do not hold the same cells; copy one to the others first");
    }

    void add_position(size_t entry, std::span<const SequenceId> ids) {
        const auto first = static_cast<size_t>(ids[0]);
        const int32_t last = out_.last_entry[first];
        // The next position, which is the same for all of `ids`; -1 if the sequence is empty.
        Position expected = -1;
        if (last >= 0) {
            expected = out_.next[first];
        } else if (const auto held = stored_.positions(ids[0])) {
            expected = held->max + 1;
        }
        const auto axes = static_cast<size_t>(limits_.axes);
        Position* to = out_.positions.data() + entry * axes;
        fill_position(entry, ids[0], expected, to);
        if (expected >= 0) check_order(entry, ids[0], expected, last, to);

        const Position top = *std::max_element(to, to + std::min<size_t>(axes, kSpatialAxes));
        const Position next = std::max(last >= 0 ? expected : 0, top + 1);
        for (const SequenceId s : ids) {
            const auto at = static_cast<size_t>(s);
            if (out_.last_entry[at] < 0) out_.touched.push_back(s);
            out_.last_entry[at] = static_cast<int32_t>(entry);
            out_.next[at] = next;
        }
    }

    // Writes the entry's position on every axis of the model to `to`.
    void fill_position(size_t entry, SequenceId s, Position expected, Position* to) const {
        const auto axes = static_cast<size_t>(batch_.axes);
        const Position* given =
            batch_.positions.empty() ? nullptr : batch_.positions.data() + entry * axes;
        const bool continues = given == nullptr || given[0] == kNextPosition;
        if (continues || batch_.axes == 1) {
            const Position p = continues ? std::max(expected, 0) : given[0];
            std::fill_n(to, limits_.axes, p);
            for (int a = kSpatialAxes; a < limits_.axes; ++a) to[a] = 0;
        } else {
            std::copy_n(given, limits_.axes, to);
        }
        const Position last =
            limits_.n_positions > 0 ? static_cast<Position>(limits_.n_positions - 1) : kMaxPosition;
        for (int a = 0; a < limits_.axes; ++a)
            if (to[a] < 0 || to[a] > last)
                fail("position ", to[a], " of sequence ", s, " is outside 0..", last, " (entry ",
                     entry, ")");
    }

    void check_order(size_t entry, SequenceId s, Position expected, int32_t last,
                     const Position* p) const {
        if (limits_.axes == 1) {
            if (p[0] != expected)
                fail("sequence ", s, " expects position ", expected, ", got ", p[0], " (entry ",
                     entry, ")");
            return;
        }
        if (p[0] >= expected) return;
        // The patches of an image have the same t, and y and x restart with each frame of a video.
        if (last >= 0 && batch_.axes > 1) {
            const Position* before = out_.positions.data() +
                                     static_cast<size_t>(last) * static_cast<size_t>(limits_.axes);
            if (!std::lexicographical_compare(p, p + kSpatialAxes, before, before + kSpatialAxes))
                return;
            fail("sequence ", s, " has position (", p[0], ", ", p[1], ", ", p[2],
                 ") after position (", before[0], ", ", before[1], ", ", before[2],
                 "); positions must not decrease (entry ", entry, ")");
        }
        fail("sequence ", s, " expects position ", expected, " or later, got ", p[0], " (entry ",
             entry, ")");
    }

    const BatchView& batch_;
    const BatchLimits& limits_;
    const SequenceIndex& stored_;
    PreparedBatch& out_;
};

}  // namespace

void prepare(const BatchView& batch, const BatchLimits& limits, const SequenceIndex& stored,
             PreparedBatch& prepared) {
    Preparation(batch, limits, stored, prepared).run();
}

}  // namespace plait
