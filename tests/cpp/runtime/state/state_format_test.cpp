// The format of saved states: round trips, and rejection of damaged bytes.
#include "runtime/state/state_format.h"

#include <gmock/gmock.h>

#include <cstring>
#include <random>

#include "base/error.h"
#include "base/hash.h"
#include "state_bytes.h"

namespace plait {
namespace {

using testing::HasSubstr;

MemoryState some_state() {
    MemoryState state{.whole = true, .sequences = {0, 3}};
    PartState& keys = state.parts.emplace_back();
    keys.window = {WindowKind::sliding, 16};
    keys.n_items = 3;
    keys.axes = 1;
    keys.positions = {4, 5, 9};
    keys.ordinals = {4, 5, 6};
    keys.sequences = {{.items = {0, 1}, .unstored = {0, 4}}, {.items = {0, 2}}};
    PartState& states = state.parts.emplace_back();
    states.kind = RecurrentSpec::kind().code;
    states.n_items = 1;
    states.sequences = {{.items = {0}, .unstored = {0, 6}}, {.items = {0}, .unstored = {0, 6}}};
    return state;
}

constexpr size_t kSections = 6;  // of some_bytes()
constexpr size_t kHead = state_head_bytes(kSections);
const Facts kFacts = {{"architecture", "llama"}, {"keys of layer 0", "F16 [2, 16]"}};
const std::vector<ActiveChange> kActive = {{"LoRA a", 0.5f}, {"control vector", 1.0f}};

std::vector<std::byte> write(const Facts& facts, const MemoryState& state,
                             const std::vector<uint64_t>& row_bytes) {
    const StateImage image(facts, kActive, state, row_bytes);
    std::vector<std::byte> bytes(image.bytes());
    for (size_t i = 0; i < row_bytes.size(); ++i)
        for (std::byte& b : image.rows(bytes, i)) b = static_cast<std::byte>(i + 1);
    image.seal(bytes);
    return bytes;
}

std::vector<std::byte> some_bytes() { return write(kFacts, some_state(), {12, 0, 100}); }

std::string message_of(std::span<const std::byte> bytes) {
    try {
        read_state(bytes);
    } catch (const StateError& error) {
        return error.what();
    }
    return "nothing thrown";
}

TEST(StateFormat, RoundTrip) {
    const std::vector<std::byte> bytes = some_bytes();
    const StateReading read = read_state(bytes);
    EXPECT_EQ(read.facts, kFacts);
    EXPECT_EQ(read.active, kActive);
    EXPECT_EQ(read.memory, some_state());
    ASSERT_EQ(read.rows.size(), 3u);
    EXPECT_EQ(read.rows[0].size(), 12u);
    EXPECT_TRUE(read.rows[1].empty());
    EXPECT_EQ(read.rows[2].size(), 100u);
    EXPECT_EQ(read.rows[2][99], std::byte{3});
    EXPECT_EQ(some_bytes(), bytes);
    EXPECT_EQ(read_state_bytes(std::span(bytes).first(kStateHeaderBytes)), bytes.size());
}

TEST(StateFormat, EmptyStateRoundTrips) {
    const std::vector<std::byte> bytes = write({}, {.whole = true}, {});
    EXPECT_EQ(read_state(bytes).memory, MemoryState{.whole = true});
}

TEST(StateFormat, EveryFlippedBitIsDetected) {
    const std::vector<std::byte> good = some_bytes();
    for (size_t i = 0; i < good.size(); ++i) {
        for (int bit = 0; bit < 8; ++bit) {
            std::vector<std::byte> bad = good;
            bad[i] ^= static_cast<std::byte>(1 << bit);
            EXPECT_THROW(read_state(bad), StateError) << "bit " << bit << " of byte " << i;
        }
    }
}

TEST(StateFormat, TruncatedAndExtraBytesAreDetected) {
    std::vector<std::byte> bytes = some_bytes();
    for (size_t n = 0; n < bytes.size(); ++n)
        EXPECT_THROW(read_state(std::span(bytes).first(n)), StateError) << n;
    bytes.push_back(std::byte{0});
    EXPECT_THAT(message_of(bytes), HasSubstr("bytes, expected"));
}

TEST(StateFormat, OtherFilesAndVersionsAreRejected) {
    const auto text_bytes = std::as_bytes(std::span("GGUF and more than a header of bytes"));
    EXPECT_THAT(message_of(text_bytes), HasSubstr("not a saved state"));
    std::vector<std::byte> bytes = some_bytes();
    put(bytes, 8, uint32_t{7});
    EXPECT_EQ(message_of(bytes), "the state has version 7, expected 1");
    bytes.resize(20);
    EXPECT_THAT(message_of(some_bytes()), "nothing thrown");
    EXPECT_THAT(message_of(std::span(bytes).first(11)), HasSubstr("cut short after 11"));
}

// Checksums may be valid, since the author of a file can compute them.
TEST(StateFormat, TooLargeNumbersAreRejected) {
    const std::vector<std::byte> good = some_bytes();
    int refused = 0;
    for (const uint32_t value : {0x7fffffffu, 0xffffffffu, 0x40000001u, 0x80000000u}) {
        for (size_t at = 12; at + 4 <= kHead + 160; ++at) {
            if (at >= kStateHeaderBytes && at < kHead) continue;
            std::vector<std::byte> bad = good;
            put(bad, at, value);
            if (bad == good) continue;
            reseal(bad, kSections);
            try {
                const StateReading read = read_state(bad);
                EXPECT_TRUE(read.facts != kFacts || read.active != kActive ||
                            !(read.memory == some_state()))
                    << at;
            } catch (const StateError&) {
                ++refused;
            }
        }
    }
    EXPECT_GT(refused, 100);
}

TEST(StateFormat, TooManySectionsAreRejected) {
    std::vector<std::byte> bad = some_bytes();
    put(bad, 12, static_cast<uint32_t>(bad.size() / 20));
    EXPECT_THAT(message_of(bad), HasSubstr("claims"));
}

TEST(StateFormat, OverflowingSectionLengthsAreRejected) {
    for (const uint64_t size : {UINT64_MAX, UINT64_MAX - 500, uint64_t{1} << 63, uint64_t{0}}) {
        for (size_t section = 0; section < kSections; ++section) {
            std::vector<std::byte> bad = some_bytes();
            const size_t at = kStateHeaderBytes + 20 * section + 4;
            if (section == 4 && size == 0) continue;  // it has no rows
            put(bad, at, size);
            put(bad, kStateHeaderBytes + 20 * kSections,
                checksum(std::span(bad).first(kStateHeaderBytes + 20 * kSections)));
            EXPECT_THROW(read_state(bad), StateError) << section;
        }
    }
    std::vector<std::byte> bad = some_bytes();
    put(bad, kStateHeaderBytes, uint32_t{1});
    put(bad, kStateHeaderBytes + 20 * kSections,
        checksum(std::span(bad).first(kStateHeaderBytes + 20 * kSections)));
    EXPECT_THAT(message_of(bad), HasSubstr("another section"));
}

TEST(StateFormat, TooLargeAdapterCountIsRejected) {
    std::vector<std::byte> bytes = some_bytes();
    uint64_t n_facts = 0;
    std::memcpy(&n_facts, bytes.data() + kStateHeaderBytes + 4, 8);
    put(bytes, kHead + n_facts, uint32_t{200});
    reseal(bytes, kSections);
    EXPECT_THAT(message_of(bytes), HasSubstr("section \"adapters\" claims 200 entries"));
}

TEST(StateFormat, RandomDamageWithValidChecksumsIsReadOrRejected) {
    const std::vector<std::byte> good = some_bytes();
    std::mt19937 random(1);
    for (int i = 0; i < 20000; ++i) {
        std::vector<std::byte> bad = good;
        const size_t at = kHead + random() % (bad.size() - 100 - kHead);
        bad[at] = static_cast<std::byte>(random());
        reseal(bad, kSections);
        try {
            read_state(bad);
        } catch (const StateError&) {
        }
    }
}

TEST(Facts, ErrorContainsTheFirstDifference) {
    const auto message = [](const Facts& state, const Facts& here) -> std::string {
        try {
            check_facts(state, here);
        } catch (const StateError& error) {
            return error.what();
        }
        return "";
    };
    const Facts a = {{"x", "1"}, {"y", "2"}, {"z", "3"}};
    EXPECT_EQ(message(a, a), "");
    EXPECT_EQ(message({{"x", "1"}, {"y", "5"}, {"z", "3"}}, a),
              "the state does not fit: 'y' is '5' in it, expected '2'");
    EXPECT_EQ(message({{"x", "1"}, {"z", "3"}}, a),
              "the state does not fit: 'y' is unknown in it, expected '2'");
    EXPECT_EQ(message(a, {{"x", "1"}, {"z", "3"}}),
              "the state does not fit: 'y' is '2' in it, expected unknown");
    EXPECT_EQ(message({{"x", "1"}}, a),
              "the state does not fit: 'y' is unknown in it, expected '2'");
    EXPECT_EQ(message(a, {{"x", "1"}}),
              "the state does not fit: 'y' is '2' in it, expected unknown");
    EXPECT_THAT(message({{"x", "\x01\xff"}}, {{"x", "1"}}), HasSubstr("'\\x01\\xff'"));
}

}  // namespace
}  // namespace plait
