// Damages bytes at random, for as long as it is given: PLAIT_FUZZ_SECONDS, by default what a test
// may take. PLAIT_FUZZ_SEED is the first round's seed; a failure says the one that makes it again.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>

#if defined(__SANITIZE_ADDRESS__)
extern "C" void __sanitizer_set_death_callback(void (*callback)());
#endif

namespace plait::test {

#if defined(__SANITIZE_ADDRESS__)
inline constexpr const char* kDamages = " damages under ASan and UBSan";
#else
inline constexpr const char* kDamages = " damages";
#endif

class Damage {
public:
    explicit Damage(uint64_t seed) : random_(seed) {}

    size_t below(size_t n) { return n == 0 ? 0 : random_() % n; }
    // One to four changes, most of them in the first `n_head` bytes.
    void make(std::string& bytes, size_t n_head) {
        for (size_t n = 1 + below(4); n > 0 && !bytes.empty(); --n) change(bytes, n_head);
    }

private:
    void change(std::string& bytes, size_t n_head) {
        const size_t at = below(below(8) == 0 ? bytes.size() : std::min(n_head, bytes.size()));
        const size_t left = bytes.size() - at;
        switch (below(9)) {
        case 0: bytes[at] = static_cast<char>(bytes[at] ^ 1 << below(8)); break;
        case 1: bytes[at] = static_cast<char>(random_()); break;
        case 2: put(bytes, at, interesting(), 4); break;
        case 3: put(bytes, at, interesting(), 8); break;
        case 4: put(bytes, at, random_() >> below(64), 8); break;
        case 5: bytes.resize(at); break;
        case 6: bytes.erase(at, 1 + below(std::min<size_t>(left, 64))); break;
        case 7: bytes.insert(at, bytes.substr(below(bytes.size()), 1 + below(64))); break;
        case 8: {  // a stretch of the file in another place
            const std::string piece = bytes.substr(below(bytes.size()), 1 + below(64));
            bytes.replace(at, std::min(left, piece.size()), piece);
            break;
        }
        }
    }
    void put(std::string& bytes, size_t at, uint64_t value, size_t n) {
        for (size_t i = 0; i < n && at + i < bytes.size(); ++i)
            bytes[at + i] = static_cast<char>(value >> 8 * i);
    }
    // The ends of ranges, and what is next to them.
    uint64_t interesting() {
        constexpr unsigned kBits[] = {0, 1, 4, 5, 8, 16, 24, 31, 32, 33, 48, 61, 62, 63};
        const uint64_t power = uint64_t{1} << kBits[below(std::size(kBits))];
        return (below(4) == 0 ? ~power : power) + below(5) - 2;
    }

    std::mt19937_64 random_;
};

inline uint64_t environment(const char* name, uint64_t otherwise) {
    const char* text = std::getenv(name);
    return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

// round(damage) with one seed after the other; returns how many.
inline uint64_t fuzz(const std::function<void(Damage&)>& round) {
    using std::chrono::steady_clock, std::chrono::milliseconds;
    const auto end =
        steady_clock::now() + milliseconds(environment("PLAIT_FUZZ_SECONDS", 0) * 1000 + 500);
    const uint64_t first = environment("PLAIT_FUZZ_SEED", 1);
    static uint64_t seed;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_set_death_callback([] { std::fprintf(stderr, "PLAIT_FUZZ_SEED=%ju\n", seed); });
#endif
    uint64_t n = 0;
    for (; n == 0 || (steady_clock::now() < end && !testing::Test::HasFailure()); ++n) {
        seed = first + n;
        const testing::ScopedTrace trace(__FILE__, __LINE__,
                                         "PLAIT_FUZZ_SEED=" + std::to_string(seed));
        Damage damage(seed);
        round(damage);
    }
    testing::Test::RecordProperty("figure", std::to_string(n) + kDamages);
    return n;
}

}  // namespace plait::test
