#include "base/hash.h"

#include <bit>
#include <cstring>

namespace plait {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87ull;
constexpr uint64_t kPrime2 = 0xC2B2AE3D27D4EB4Full;
constexpr uint64_t kPrime3 = 0x165667B19E3779F9ull;
constexpr uint64_t kPrime4 = 0x85EBCA77C2B2AE63ull;
constexpr uint64_t kPrime5 = 0x27D4EB2F165667C5ull;

uint64_t stir(uint64_t lane, uint64_t word) {
    return std::rotl(lane + word * kPrime2, 31) * kPrime1;
}

// Reads values from the front.
class Words {
public:
    explicit Words(std::span<const std::byte> bytes) : at_(bytes.data()), left_(bytes.size()) {}
    size_t left() const { return left_; }
    template <typename T>
    T take() {
        T value;
        std::memcpy(&value, at_, sizeof value);
        at_ += sizeof value;
        left_ -= sizeof value;
        return value;
    }

private:
    const std::byte* at_;
    size_t left_;
};

}  // namespace

uint64_t checksum(std::span<const std::byte> bytes) {
    Words words(bytes);
    uint64_t hash = kPrime5;
    if (bytes.size() >= 32) {
        uint64_t lanes[4] = {kPrime1 + kPrime2, kPrime2, 0, 0 - kPrime1};
        while (words.left() >= 32)
            for (uint64_t& lane : lanes) lane = stir(lane, words.take<uint64_t>());
        hash = std::rotl(lanes[0], 1) + std::rotl(lanes[1], 7) + std::rotl(lanes[2], 12) +
               std::rotl(lanes[3], 18);
        for (const uint64_t lane : lanes) hash = (hash ^ stir(0, lane)) * kPrime1 + kPrime4;
    }
    hash += bytes.size();
    while (words.left() >= 8)
        hash = std::rotl(hash ^ stir(0, words.take<uint64_t>()), 27) * kPrime1 + kPrime4;
    if (words.left() >= 4)
        hash = std::rotl(hash ^ words.take<uint32_t>() * kPrime1, 23) * kPrime2 + kPrime3;
    while (words.left() > 0) hash = std::rotl(hash ^ words.take<uint8_t>() * kPrime5, 11) * kPrime1;
    hash = (hash ^ hash >> 33) * kPrime2;
    hash = (hash ^ hash >> 29) * kPrime3;
    return hash ^ hash >> 32;
}

}  // namespace plait
