// What every recurrent kernel must do, tested on conversations: it matches the plain loop from the
// first token on, and its bits depend neither on the division into microbatches, nor on the other
// sequences of a microbatch, nor on whether a state is updated in place or written to another row.
#pragma once

#include <functional>

#include "backend/cpu/kernel_harness.h"
#include "backend/cpu/kernels/recurrence/states.h"

namespace plait::cpu {

// A kernel and the plain loop that it must match.
struct Recurrence {
    std::vector<int64_t> widths;  // of a token's row in each input
    int64_t y_width;
    int64_t state_elements;
    // Runs the kernel on inputs [n, widths[i]].
    std::function<void(const Frame&, const std::vector<Floats>& inputs, const StateArgs&, Floats& y,
                       Cut)>
        run;
    // One token in double precision. `state` starts as zeros; its layout is the loop's choice.
    std::function<std::vector<double>(const std::vector<const float*>& token,
                                      std::vector<double>& state)>
        step;
    // By input: turns random values into valid ones, or is empty if any value is valid.
    std::vector<std::function<float(float)>> domain = {};
    double tolerance = 2e-5;
};

class RecurrenceCheck {
public:
    RecurrenceCheck(const Recurrence& op, std::mt19937& random) : op_(op), random_(random) {
        for (const int64_t length : kLengths) {
            std::vector<Floats>& inputs = conversations_.emplace_back();
            for (size_t i = 0; i < op.widths.size(); ++i) {
                inputs.push_back(random_floats(static_cast<size_t>(length * op.widths[i]), random));
                if (i < op.domain.size() && op.domain[i])
                    for (float& x : inputs.back()) x = op.domain[i](x);
            }
        }
        forget();
    }

    void all() {
        matches_the_plain_loop();
        if (testing::Test::HasFatalFailure()) return;
        no_bit_depends_on_company_or_cuts();
        forks_go_on_apart();
        nan_stays_in_its_sequence();
    }

private:
    static constexpr int64_t kLengths[] = {1, 7, 20, 3};
    static constexpr int32_t kRows = 12;

    // Tokens [begin, end) of a conversation, as a sequence of a microbatch.
    struct Part {
        size_t conversation;
        int64_t begin, end;
        int32_t read, write;
    };

    void matches_the_plain_loop() {
        for (size_t s = 0; s < std::size(kLengths); ++s) {
            forget();
            const Floats y = run({{s, 0, kLengths[s], 0, 5}}, Cut::whole);
            std::vector<double> state(static_cast<size_t>(op_.state_elements));
            for (int64_t t = 0; t < kLengths[s]; ++t) {
                std::vector<const float*> token;
                for (size_t i = 0; i < op_.widths.size(); ++i)
                    token.push_back(conversations_[s][i].data() + t * op_.widths[i]);
                const std::vector<double> expected = op_.step(token, state);
                for (int64_t c = 0; c < op_.y_width; ++c) {
                    const double e = expected[static_cast<size_t>(c)];
                    ASSERT_TRUE(near(y[static_cast<size_t>(t * op_.y_width + c)], e,
                                     op_.tolerance * (1 + std::abs(e))))
                        << "token " << t << " of " << kLengths[s] << ", channel " << c;
                }
            }
            check_other_rows({5});
            whole_.push_back(y);
            whole_states_.push_back(row(5));
        }
    }

    void no_bit_depends_on_company_or_cuts() {
        for (const Cut cut : {Cut::whole, Cut::single, Cut::random}) {
            forget();
            const Floats y = run({{2, 0, 20, 0, 1}, {0, 0, 1, 0, 2}, {1, 0, 7, 0, 3}}, cut);
            expect_part_of(y, 0, 2, 0, 20);
            expect_part_of(y, 20, 0, 0, 1);
            expect_part_of(y, 21, 1, 0, 7);
            expect_state(1, 2);
            expect_state(2, 0);
            expect_state(3, 1);
            check_other_rows({1, 2, 3});
        }
        for (int trial = 0; trial < 4; ++trial) in_random_pieces();
    }

    // Every microbatch writes the row that it read, or another one.
    void in_random_pieces() {
        forget();
        struct Progress {
            int64_t done = 0;
            int32_t row = 0;
        } progress[std::size(kLengths)];
        const auto unfinished = [&](size_t s) { return progress[s].done < kLengths[s]; };
        while (unfinished(0) || unfinished(1) || unfinished(2) || unfinished(3)) {
            std::vector<Part> parts;
            for (size_t s = 0; s < std::size(kLengths); ++s) {
                if (!unfinished(s) || random_() % 4 == 0) continue;
                Progress& p = progress[s];
                const int64_t n = std::min<int64_t>(kLengths[s] - p.done,
                                                    1 + static_cast<int64_t>(random_() % 5));
                const int32_t mine = static_cast<int32_t>(2 * s) + 1;
                const bool stay = p.row != 0 && random_() % 2 == 0;
                const int32_t to = stay ? p.row : p.row == mine ? mine + 1 : mine;
                parts.push_back({s, p.done, p.done + n, p.row, to});
                p = {p.done + n, to};
            }
            if (parts.empty()) continue;
            const Floats y = run(parts, Cut::random);
            int64_t first = 0;
            for (const Part& part : parts) {
                expect_part_of(y, first, part.conversation, part.begin, part.end);
                first += part.end - part.begin;
            }
        }
        for (size_t s = 0; s < std::size(kLengths); ++s) expect_state(progress[s].row, s);
        check_other_rows({1, 2, 3, 4, 5, 6, 7, 8});
    }

    void forks_go_on_apart() {
        forget();
        run({{2, 0, 4, 0, 6}}, Cut::whole);
        const std::vector<float> shared = row(6);
        const Floats y = run({{2, 4, 20, 6, 7}, {2, 4, 5, 6, 8}, {1, 0, 7, 0, 9}}, Cut::random);
        expect_part_of(y, 0, 2, 4, 20);
        expect_part_of(y, 16, 2, 4, 5);
        expect_state(7, 2);
        EXPECT_TRUE(same_bits(row(6), shared)) << "a state that was only read has changed";
        check_other_rows({6, 7, 8, 9});
    }

    void nan_stays_in_its_sequence() {
        forget();
        const std::vector<Floats> before = conversations_[1];
        for (Floats& input : conversations_[1]) std::fill(input.begin(), input.end(), kNan);
        const Floats y = run({{2, 0, 20, 0, 1}, {1, 0, 7, 0, 2}, {3, 0, 3, 0, 3}}, Cut::whole);
        conversations_[1] = before;
        expect_part_of(y, 0, 2, 0, 20);
        expect_part_of(y, 27, 3, 0, 3);
        EXPECT_TRUE(std::isnan(y[static_cast<size_t>(26 * op_.y_width)]));
        check_other_rows({1, 2, 3});
    }

    // Row 0 is zeros. All others are NaN, since a run must not read them.
    void forget() {
        storage_ = Floats(static_cast<size_t>(kRows * op_.state_elements));
        std::fill(storage_.begin(), storage_.end(), kNan);
        std::fill_n(storage_.data(), op_.state_elements, 0.0f);
    }

    Floats run(const std::vector<Part>& parts, Cut cut) {
        std::vector<int32_t> begin = {0}, read, write;
        for (const Part& part : parts) {
            begin.push_back(begin.back() + static_cast<int32_t>(part.end - part.begin));
            read.push_back(part.read);
            write.push_back(part.write);
        }
        std::vector<Floats> inputs;
        for (size_t i = 0; i < op_.widths.size(); ++i) {
            const int64_t width = op_.widths[i];
            float* to = inputs.emplace_back(static_cast<size_t>(begin.back() * width)).data();
            for (const Part& part : parts) {
                const float* from = conversations_[part.conversation][i].data();
                to = std::copy(from + part.begin * width, from + part.end * width, to);
            }
        }
        Frame frame = tokens(begin.back());
        frame.n_sequences = static_cast<int32_t>(parts.size());
        Floats y(static_cast<size_t>(begin.back() * op_.y_width));
        const StateArgs states{ref_to(storage_), ref_to(read), ref_to(write), ref_to(begin),
                               op_.state_elements};
        op_.run(frame, inputs, states, y, cut);
        return y;
    }

    std::vector<float> row(int32_t i) const {
        const float* first = storage_.data() + i * op_.state_elements;
        return {first, first + op_.state_elements};
    }
    void expect_state(int32_t i, size_t conversation) {
        EXPECT_TRUE(same_bits(row(i), whole_states_[conversation]))
            << "state of conversation " << conversation;
    }
    // Tokens from `first` on of y are the same as those of the conversation run at once and alone.
    void expect_part_of(const Floats& y, int64_t first, size_t conversation, int64_t begin,
                        int64_t end) {
        EXPECT_EQ(0, std::memcmp(y.data() + first * op_.y_width,
                                 whole_[conversation].data() + begin * op_.y_width,
                                 static_cast<size_t>((end - begin) * op_.y_width) * sizeof(float)))
            << "tokens " << begin << " to " << end << " of conversation " << conversation;
    }
    void check_other_rows(const std::vector<int32_t>& written) {
        for (int32_t i = 0; i < kRows; ++i) {
            if (std::find(written.begin(), written.end(), i) != written.end()) continue;
            for (const float x : row(i))
                ASSERT_TRUE(i == 0 ? x == 0.0f : std::isnan(x)) << "row " << i << " was written";
        }
    }

    const Recurrence& op_;
    std::mt19937& random_;
    std::vector<std::vector<Floats>> conversations_;  // inputs, by conversation
    std::vector<Floats> whole_;                       // y of each, run at once and alone
    std::vector<std::vector<float>> whole_states_;
    Floats storage_{0};
};

}  // namespace plait::cpu
