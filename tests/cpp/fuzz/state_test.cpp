// Saved states, damaged at random, with checksums as they were or made right again.
#include <filesystem>

#include "base/error.h"
#include "fuzz/fuzz.h"
#include "runtime/context.h"
#include "runtime/state/state_bytes.h"
#include "support/bytes_of.h"
#include "support/tiny_model.h"

namespace plait {
namespace {

using test::Bytes;
using test::bytes_of;
using test::Damage;

Bytes bytes_of(const std::string& text) {
    const auto bytes = std::as_bytes(std::span(text));
    return {bytes.begin(), bytes.end()};
}

// A conversation, another one to load into, and what the first one saved.
struct Case {
    std::unique_ptr<Context> target;
    Bytes good;

    explicit Case(std::shared_ptr<const LoadedModel> model) {
        ContextOptions options;
        options.n_ctx = 48;
        options.n_seq_max = 4;
        options.n_ubatch = 8;
        options.threads = 1;
        Context from(model, options);
        converse(from);
        good = bytes_of(from);
        target = std::make_unique<Context>(std::move(model), options);
        say(*target, 3, 4);
    }
    static void say(Context& context, SequenceId s, int n) {
        Batch batch;
        for (int i = 0; i < n; ++i) batch.add(3 + i, {}, std::span(&s, 1), i + 1 == n);
        if (context.model()->info().has_encoder) context.session()->encode(batch.view());
        context.session()->decode(batch.view());
    }
    static void converse(Context& context) {
        say(context, 0, 12);
        say(context, 1, 9);
        context.session()->seq_cp(0, 2, {});
        say(context, 2, 3);
    }
};

std::vector<Case> cases() {
    std::vector<Case> all;
    all.emplace_back(test::TinyModel{.n_layers = 1}.open());
    const char* data = std::getenv("PLAIT_TEST_DATA");
    for (const char* kind : {"gemma3", "jamba", "t5", "rwkv7", "deepseek2"}) {
        const auto path =
            std::filesystem::path(data ? data : "") / "conformance" / kind / "model.gguf";
        if (std::filesystem::exists(path)) all.emplace_back(LoadedModel::open(path.string(), {}));
    }
    return all;
}

// Refused, and nothing has changed.
bool refused(Context& context, const Bytes& bytes, std::optional<SequenceId> to) {
    try {
        context.session()->load_state(bytes, to);
        return false;
    } catch (const StateError&) {
    } catch (const CacheFull&) {
    }
    return true;
}

TEST(FuzzState, AnyDamageIsRefusedAndChangesNothing) {  // G6 S1 S2
    RecordProperty("goal", "G6");
    const std::vector<Case> all = cases();
    test::fuzz([&](Damage& damage) {
        const Case& one = all[damage.below(all.size())];
        std::string text(reinterpret_cast<const char*>(one.good.data()), one.good.size());
        damage.make(text, 1024);
        const Bytes bad = bytes_of(text);
        if (bad == one.good) return;
        const Bytes before = bytes_of(*one.target);
        EXPECT_TRUE(refused(*one.target, bad, {}));
        EXPECT_TRUE(bytes_of(*one.target) == before);
    });
}

// Whoever writes the file knows how checksums are made.
TEST(FuzzState, WhatPassesEveryChecksumIsRefusedOrTakenUpAsAWhole) {  // G4 S1
    RecordProperty("goal", "G4");
    const std::vector<Case> all = cases();
    test::fuzz([&](Damage& damage) {
        const Case& one = all[damage.below(all.size())];
        uint32_t n_sections = 0;
        std::memcpy(&n_sections, one.good.data() + 12, sizeof n_sections);
        const size_t begin =
            state_head_bytes(n_sections) + section_bytes(one.good, 0) + section_bytes(one.good, 1);
        const size_t n = section_bytes(one.good, 2);
        std::string text(reinterpret_cast<const char*>(one.good.data()) + begin, n);
        damage.make(text, n);
        text.resize(n);
        Bytes bad = one.good;
        std::ranges::copy(bytes_of(text), bad.begin() + static_cast<std::ptrdiff_t>(begin));
        reseal(bad, n_sections);
        const Bytes before = bytes_of(*one.target);
        const auto to = damage.below(8) == 0 ? std::optional<SequenceId>(1) : std::nullopt;
        if (refused(*one.target, bad, to)) {
            EXPECT_TRUE(bytes_of(*one.target) == before);
            return;
        }
        const Bytes taken = bytes_of(*one.target);
        one.target->session()->load_state(taken, {});
        EXPECT_TRUE(bytes_of(*one.target) == taken);
        for (const SequenceId s : {0, 1, 2, 3}) {
            try {
                Case::say(*one.target, s, 2);
            } catch (const BatchError&) {  // no position is left
            } catch (const CacheFull&) {
            }
        }
        one.target->session()->clear();
        Case::say(*one.target, 3, 4);
    });
}

}  // namespace
}  // namespace plait
